"""`llmirage generate`: what it writes loads, grows as agents' contexts do, shares prefixes, and hangs on the seed alone."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from llmirage_client.commands.generate import generate
from llmirage_client.workload import registry
from llmirage_client.workload.generate import AgentProfile, Span
from llmirage_client.workload.generate import generate as rows_of
from llmirage_client.workload.session import Workload
from llmirage_shared.tokens import embedded

SMALL = AgentProfile(sessions=12, calls=Span(2, 4), first_context_tokens=Span(100, 140))


def run(*arguments: str) -> Any:
    return CliRunner().invoke(generate, list(arguments))


def prompts(workload: Workload) -> dict[str, list[list[int]]]:
    """Prompt ids by session."""
    found: dict[str, list[list[int]]] = {}
    for session in workload.sessions.values():
        for turn in session.turns:
            assert turn.tokens is not None
            assert turn.tokens.input_ids is not None
            found.setdefault(session.id, []).append(turn.tokens.input_ids.tolist())
    return found


def test_a_call_s_prompt_is_the_previous_prompt_its_reply_and_a_tool_result() -> None:
    for row in rows_of(SMALL):
        calls = row["sub_requests"]
        for before, after in itertools.pairwise(calls):
            history = before["input_tok_ids"] + before["output_tok_ids"]
            assert after["input_tok_ids"][: len(history)] == history
            assert SMALL.growth_tokens.low <= after["input_toks"] - len(history) <= SMALL.growth_tokens.high


def test_every_figure_is_within_its_span() -> None:
    rows = list(rows_of(SMALL))
    assert len(rows) == 12
    assert rows[0]["arrival_time_ns"] == 0
    assert all(a["arrival_time_ns"] < b["arrival_time_ns"] for a, b in itertools.pairwise(rows))
    for row in rows:
        calls = row["sub_requests"]
        assert 2 <= len(calls) <= 4
        assert 100 <= calls[0]["input_toks"] <= 140
        assert all(40 <= call["output_toks"] <= 160 for call in calls)
        assert all(50e6 <= call["tool_duration_ns"] <= 300e6 for call in calls[:-1])
        assert calls[-1]["tool_duration_ns"] == 0


def test_all_sessions_share_a_system_prompt_and_some_share_a_repository() -> None:
    first_prompts = [tuple(row["sub_requests"][0]["input_tok_ids"]) for row in rows_of(SMALL)]
    assert len({prompt[:40] for prompt in first_prompts}) == 1  # 40 % of 100 tokens
    assert len({prompt[:70] for prompt in first_prompts}) == 2  # 30 % more, one of two repositories
    assert len(set(first_prompts)) == 12


def test_ids_are_readable_text_of_the_embedded_tokenizer() -> None:
    tokenizer = embedded()
    ids = next(rows_of(SMALL))["sub_requests"][0]["input_tok_ids"]
    text = tokenizer.decode(np.array(ids, dtype=np.int32))
    assert max(ids) < tokenizer.vocab_size
    assert len(text.split()) > len(ids) / 3


def test_without_ids_the_counts_waits_and_arrivals_are_the_same() -> None:
    bare = AgentProfile(sessions=12, calls=Span(2, 4), first_context_tokens=Span(100, 140), token_ids=False)
    stripped = list(rows_of(SMALL))
    for row in stripped:
        for call in row["sub_requests"]:
            del call["input_tok_ids"], call["output_tok_ids"]
    assert list(rows_of(bare)) == stripped


def test_the_seed_decides() -> None:
    assert list(rows_of(SMALL)) == list(rows_of(SMALL))
    other = AgentProfile(sessions=12, calls=Span(2, 4), first_context_tokens=Span(100, 140), seed=1)
    assert next(rows_of(other)) != next(rows_of(SMALL))


def test_the_command_writes_a_file_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "agents.jsonl"
    result = run("-o", str(path), "--sessions", "3", "--calls", "2", "--first-context", "50:60", "--random-seed", "7")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr.startswith(f"{path}: 3 sessions, 6 calls, ")
    workload = registry.load(str(path))
    assert (len(workload.sessions), workload.notes) == (3, ())
    assert [len(calls) for calls in prompts(workload).values()] == [2, 2, 2]
    assert list(tmp_path.iterdir()) == [path]


def test_a_packed_file_and_standard_output_hold_the_same(tmp_path: Path) -> None:
    path = tmp_path / "agents.jsonl.gz"
    options = ("--sessions", "2", "--no-token-ids")
    run("-o", str(path), *options)
    assert gzip.decompress(path.read_bytes()) == run("-o", "-", *options).stdout_bytes
    assert path.read_bytes()[4:8] == b"\0\0\0\0"  # no time stamp, so that the same command writes the same file


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--calls", "15:8"), "'15:8' ends before it begins"),
        (("--calls", "0:8"), "'0:8' begins below 1, the least that makes sense here"),
        (("--calls", "many"), "'many' is not MIN:MAX, two whole numbers such as 8:15"),
        (("--rate", "0"), "0.0 is not in the range x>0"),
        (("--sessions", "0"), "0 is not in the range x>=1"),
        (("--no-token-ids", "-o", "/nowhere/at/all.jsonl"), "cannot write /nowhere/at/all.jsonl: No such file or directory"),
    ],
)
def test_bad_options_are_refused_with_status_2(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_the_bundled_workload_is_what_the_defaults_write() -> None:
    bundled = registry.load("bundled:coding-agent")
    rows = list(rows_of(AgentProfile(token_ids=False)))
    assert [row["session_id"] for row in rows] == list(bundled.sessions)
    for row in rows:
        session = bundled.sessions[row["session_id"]]
        assert session.arrival_s == row["arrival_time_ns"] / 1e9
        specs = [turn.tokens for turn in session.turns if turn.tokens is not None]
        assert [(s.input_tokens, s.output_tokens) for s in specs] == [
            (call["input_toks"], call["output_toks"]) for call in row["sub_requests"]
        ]


def test_the_bundled_ids_share_prefixes_and_are_text_of_the_embedded_tokenizer() -> None:
    bundled = prompts(registry.load("bundled:coding-agent"))
    first_prompts = [calls[0] for calls in bundled.values()]
    system = first_prompts[0][:400]
    assert all(prompt[:400] == system for prompt in first_prompts)
    assert len({tuple(prompt[:700]) for prompt in first_prompts}) == 9
    assert len({tuple(prompt) for prompt in first_prompts}) == 50
    tokenizer = embedded()
    text = tokenizer.decode(np.array(system, dtype=np.int32))
    # Fails when the tokenizer changed: write the file anew, as workloads/README.md says.
    assert tokenizer.encode(text).tolist() == system
