"""`llmirage generate`: what it writes loads, has the lengths that were asked for, and hangs on the seed alone."""

import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoked import invoke, refusal

from llmirage_client.commands.actions import workload_files as actions
from llmirage_client.operations import workload_files as operations
from llmirage_client.report import progress
from llmirage_client.workload import registry
from llmirage_client.workload.convert import differences
from llmirage_client.workload.session import Workload
from llmirage_client.workload.synthesis.parameters import presets
from llmirage_shared.tokenizer_loader import embedded

CHAIN = ("agent-chain", "--sessions", "12", "--set", "turns=2:4", "--set", "first_input=20:60")
MADE_WITH = {
    "coding-agent": ("agent-chain",),
    "coding-agent-team": ("coding-agent", "--conversations", "12", "--set", "forks.background=0.3"),
    "chat": ("chat", "--conversations", "30"),
    "rag": ("rag", "--conversations", "30"),
}


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = invoke("generate", *arguments)
    return [json.loads(line) for line in result.stdout.splitlines()]


def generated(tmp_path: Path, *arguments: str) -> Workload:
    path = tmp_path / "generated.jsonl"
    invoke("generate", *arguments, "-o", path)
    return registry.load(str(path))


def contents(workload: Workload) -> list[str]:
    return [m["content"] for s in workload.sessions.values() for turn in s.turns for m in turn.messages]


def prompts(workload: Workload) -> dict[str, list[list[int]]]:
    """Prompt ids by session."""
    found: dict[str, list[list[int]]] = {}
    for session in workload.sessions.values():
        for turn in session.turns:
            found.setdefault(session.id, []).append(turn.tokens.input_ids.tolist())
    return found


def test_a_call_s_prompt_is_the_previous_prompt_its_reply_and_a_tool_result() -> None:
    for row in rows(*CHAIN):
        for before, after in itertools.pairwise(row["sub_requests"]):
            history = before["input_tok_ids"] + before["output_tok_ids"]
            assert after["input_tok_ids"][: len(history)] == history
            assert 30 <= after["input_toks"] - len(history) <= 170


def test_every_figure_is_within_its_range() -> None:
    sessions = rows(*CHAIN)
    assert len(sessions) == 12
    assert sessions[0]["arrival_time_ns"] == 0
    assert all(a["arrival_time_ns"] < b["arrival_time_ns"] for a, b in itertools.pairwise(sessions))
    for row in sessions:
        calls = row["sub_requests"]
        assert 2 <= len(calls) <= 4
        assert 720 <= calls[0]["input_toks"] <= 760  # 400 of the system prompt and 300 of the repository
        assert all(40 <= call["output_toks"] <= 160 for call in calls)
        assert all(50e6 <= call["tool_duration_ns"] <= 300e6 for call in calls[:-1])
        assert calls[-1]["tool_duration_ns"] == 0


def test_all_sessions_share_a_system_prompt_and_some_share_a_repository() -> None:
    first = [tuple(row["sub_requests"][0]["input_tok_ids"]) for row in rows(*CHAIN, "--set", "shared_context.groups=2")]
    assert len({prompt[:400] for prompt in first}) == 1
    assert len({prompt[:700] for prompt in first}) == 2
    assert len(set(first)) == 12


def test_ids_are_readable_text_of_the_embedded_tokenizer() -> None:
    tokenizer = embedded()
    ids = rows(*CHAIN)[0]["sub_requests"][0]["input_tok_ids"]
    text = tokenizer.decode(np.array(ids, dtype=np.int32))
    assert max(ids) < tokenizer.vocab_size
    assert len(text.split()) > len(ids) / 3


def test_without_ids_the_counts_waits_and_arrivals_are_the_same() -> None:
    stripped = rows(*CHAIN)
    for row in stripped:
        for call in row["sub_requests"]:
            del call["input_tok_ids"], call["output_tok_ids"]
    assert rows(*CHAIN, "--no-token-ids") == stripped


def test_the_seed_decides_and_the_first_conversations_do_not_depend_on_how_many_there_are() -> None:
    assert rows("chat", "--conversations", "8") == rows("chat", "--conversations", "8")
    assert rows("chat", "--conversations", "3")[0] == rows("chat", "--conversations", "8")[0]
    assert rows("chat", "--conversations", "3", "--random-seed", "1")[0] != rows("chat", "--conversations", "3")[0]


@pytest.mark.parametrize("preset", sorted(presets()))
def test_every_preset_loads_and_has_text_of_the_lengths_that_were_drawn(preset: str, tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    result = invoke("generate", preset, "--conversations", "5", "-o", path)
    workload = registry.load(str(path))
    assert len(workload.roots) == 5
    assert workload.notes == ()
    assert "of them can come from a prefix cache" in result.stderr
    assert "turns" in result.stderr


def test_messages_have_exactly_the_tokens_that_were_asked_for(tmp_path: Path) -> None:
    lengths = ("system_prompt.tokens=77", "first_input=33", "input=21", "documents.per_message=3", "documents.tokens=50")
    workload = generated(tmp_path, "rag", "--conversations", "4", *(x for each in lengths for x in ("--set", each)))
    tokenizer = embedded()
    counts = [
        [len(tokenizer.encode(m["content"])) for turn in s.turns for m in turn.messages] for s in workload.sessions.values()
    ]
    assert {tuple(count[:2]) for count in counts} == {(77, 33 + 150)}
    assert {length for count in counts for length in count[2:]} == {21 + 150}


def test_a_message_too_short_for_its_parts_still_has_its_length(tmp_path: Path) -> None:
    lengths = ("first_input=1", "input=1", "documents.per_message=2", "documents.tokens=1")
    workload = generated(tmp_path, "rag", "--conversations", "3", *(x for each in lengths for x in ("--set", each)))
    users = [m["content"] for s in workload.sessions.values() for t in s.turns for m in t.messages if m["role"] == "user"]
    assert {len(embedded().encode(text)) for text in users} == {3}


def test_a_team_has_sub_agents_that_are_waited_for_and_branches_that_inherit(tmp_path: Path) -> None:
    changes = ("sub_agents.share=1", "sub_agents.nested=1", "forks.share=1", "forks.background=1", "turns=5:6")
    workload = generated(tmp_path, "coding-agent", "--conversations", "3", *(x for c in changes for x in ("--set", c)))
    for name in workload.roots:
        branches = [branch for turn in workload.sessions[name].turns for branch in turn.branches]
        assert {(b.kind, b.background) for b in branches} == {("spawn", False), ("fork", True), ("fork", False)}
        assert all(b.join_at is not None for b in branches if b.kind == "spawn")
        assert len(workload.sessions[name].turns[-1].branches[0].children) in (2, 3)
    children = [s for s in workload.sessions.values() if "/agent-" in s.id and s.id.count("/") == 1]
    assert all(c.turns[0].messages[0]["role"] == "system" for c in children)
    assert any(turn.branches for child in children for turn in child.turns)
    assert all(s.arrival_s is not None for s in map(workload.sessions.__getitem__, workload.roots))


def test_replies_have_exact_lengths_unless_that_is_turned_off(tmp_path: Path) -> None:
    exact = generated(tmp_path, "batch", "--conversations", "2")
    turn = exact.sessions[exact.roots[0]].turns[0]
    assert turn.extra == {"min_tokens": turn.max_tokens, "ignore_eos": True}
    loose = generated(tmp_path, "batch", "--conversations", "2", "--set", "exact_replies=false")
    assert loose.sessions[loose.roots[0]].turns[0].extra == {}


@pytest.mark.parametrize("format_name", ["dag_jsonl", "multi_turn", "mooncake_trace"])
def test_a_chat_is_the_same_in_every_format_that_can_hold_it(format_name: str, tmp_path: Path) -> None:
    workload = generated(tmp_path, "chat", "--conversations", "3", "--to", format_name)
    assert workload.format == format_name
    assert contents(workload) == contents(generated(tmp_path, "chat", "--conversations", "3"))


def test_a_file_may_begin_with_a_preset_and_flags_win_over_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("preset: chat\nconversations: 4\nturns: {mean: 2, cv: 0.1}\noutput: 7:9\nwait_s: 3\n")
    workload = generated(tmp_path, str(path), "--set", "wait_s=5")
    assert len(workload.roots) == 4
    assert {turn.delay_s for s in workload.sessions.values() for turn in s.turns[1:]} == {5.0}
    assert {turn.max_tokens for s in workload.sessions.values() for turn in s.turns} <= {7, 8, 9}
    assert {len(s.turns) for s in workload.sessions.values()} == {2}


@pytest.mark.parametrize("preset", sorted(presets()))
def test_what_show_prints_gives_the_same_workload(preset: str, tmp_path: Path) -> None:
    path = tmp_path / f"{preset}.yaml"
    path.write_text(invoke("generate", preset, "--conversations", "3", "--show").stdout)
    assert rows(str(path)) == rows(preset, "--conversations", "3")


def test_the_table_holds_what_was_asked_and_what_was_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = invoke("generate", "chat", "--conversations", "400", "--set", "output=lognormal(mean=100,sigma=0.5)").stderr
    line = next(line for line in told.splitlines() if line.startswith("output")).split()
    asked, drawn = float(line[-7]), float(line[-6])
    assert asked == pytest.approx(100, rel=0.01)
    assert drawn == pytest.approx(100, rel=0.05)
    assert "(requested 0.5)" in told


def test_bursts_are_what_was_asked_for() -> None:
    arrivals = [
        row["timestamp"] / 1000
        for row in rows("batch", "--conversations", "3000", *_gamma(cv=3.0), "--set", "first_input=1")
    ]
    gaps = np.diff(arrivals)
    assert 1 / gaps.mean() == pytest.approx(5, rel=0.2)
    assert gaps.std() / gaps.mean() == pytest.approx(3, rel=0.2)


def _gamma(cv: float) -> Sequence[str]:
    changes = ("arrivals.process=gamma", "arrivals.rate_per_s=5", f"arrivals.cv={cv}", "system_prompt.tokens=0")
    return [x for change in changes for x in ("--set", change)]


def test_a_rate_alone_makes_poisson_arrivals() -> None:
    assert "timestamp" not in rows("batch", "--conversations", "2")[1]
    assert rows("batch", "--conversations", "2", "--rate", "4")[1]["timestamp"] > 0


def test_a_packed_file_and_standard_output_hold_the_same(tmp_path: Path) -> None:
    path = tmp_path / "agents.jsonl.gz"
    options = ("--sessions", "2", "--no-token-ids")
    invoke("generate", "-o", path, *options)
    assert gzip.decompress(path.read_bytes()) == invoke("generate", "-o", "-", *options).stdout_bytes
    assert path.read_bytes()[4:8] == b"\0\0\0\0"  # no time stamp, so that the same command writes the same file
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("to", ["chat", "agent-chain", "coding-agent"])
def test_a_large_file_is_written_in_parts_that_are_one_workload(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (to, "--conversations", "3", "--set", "turns=2:3")
    whole = generated(tmp_path, *command)
    monkeypatch.setattr(operations, "_PART_TOKENS", 1)
    monkeypatch.setattr(actions, "_KEPT_FOR_REUSE", 1)
    monkeypatch.setattr(actions, "QUIET_S", -1.0)
    monkeypatch.setattr(progress, "PLAIN_LINE_S", -1.0)
    told = invoke("generate", *command, "-o", tmp_path / "parts.jsonl.gz").stderr
    assert not differences(whole, registry.load(str(tmp_path / "parts.jsonl.gz")))
    assert [line.split(" conv")[0] for line in told.splitlines()[:3]] == ["1 of 3", "2 of 3", "3 of 3"]
    assert "(of the first " in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cat",), "cat: there is no such preset or file; presets are agent-chain, batch, chat, coding-agent"),
        (("chat", "--set", "turns=15:8"), "chat: turns: the lowest value 15 is above the largest, 8"),
        (("chat", "--set", "turns=0:8"), "chat: turns: gives 0; values below 1 are not allowed here"),
        (("chat", "--set", "turns=many"), "chat: turns: 'many' is neither a number nor LOW:HIGH nor of the form"),
        (("chat", "--set", "turns.std=2"), "chat: turns: gamma has no 'std'; it has mean, shape, cv, min, max"),
        (("chat", "--set", "inptu=2"), "chat: inptu: there is no such parameter (did you mean 'input'?)"),
        (("chat", "--set", "turns"), "'turns' is not NAME=VALUE, such as turns.mean=12"),
        (("chat", "--to", "trie"), "chat: format: 'trie' is not one of dag_jsonl, multi_turn"),
        (("chat", "--set", "sub_agents.share=2"), "chat: sub_agents.share: '2' is no number from 0 to 1"),
        (("chat", "--rate", "0"), "must be above 0, not 0"),
        (("chat", "--sessions", "0"), "must be at least 1, not 0"),
        (("chat", "--tokenizer", "/nowhere"), "/nowhere"),
        (("coding-agent", "--to", "agentic_jsonl"), "coding-agent: format: agentic_jsonl has only chains of requests: set"),
        (("coding-agent", "--to", "multi_turn"), "this would be lost or changed: forks, spawns and rounds"),
        (("batch", "-o", "/nowhere/at/all.jsonl"), "/nowhere/at/all.jsonl: there is no folder /nowhere/at"),
    ],
)
def test_bad_options_are_refused_with_status_2(arguments: tuple[str, ...], message: str) -> None:
    assert message in refusal("generate", *arguments)


def test_all_that_is_wrong_with_a_file_is_told_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("preset: rag\nturns: {mean: -3}\ndocuments:\n  pool: many\n  tokens: lognormal(mean=1)\nfoo: 1\n")
    result = invoke("generate", path, status=2)
    told = [line.removeprefix(f"{path}: ") for line in result.stderr.splitlines()]
    assert [line.split(": ")[:2] for line in told] == [
        ["line 2", "turns"],
        ["line 4", "documents.pool"],
        ["line 5", "documents.tokens"],
        ["line 6", "foo"],
    ]
    path.write_text("a: [1\nb: 2")
    assert "line 2: invalid YAML: " in refusal("generate", path)
    path.write_text("- 1")
    assert "must hold parameters as NAME: VALUE" in refusal("generate", path)


@pytest.mark.parametrize("name", sorted(MADE_WITH))
def test_a_bundled_workload_is_what_its_command_writes(name: str, tmp_path: Path) -> None:
    # Fails when the tokenizer or a preset changed: write the files anew, as workloads/README.md says.
    path = tmp_path / "again.jsonl"
    invoke("generate", *MADE_WITH[name], "-o", path)
    assert path.read_bytes() == gzip.decompress(registry.bundled()[name].read_bytes())
