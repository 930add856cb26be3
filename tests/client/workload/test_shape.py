"""What `inspect` counts: prompts in tokens, prefix reuse against a plain definition of it, fan-out and arrivals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from workload_files import write

from llmirage_client.cli import main
from llmirage_client.workload.registry import load
from llmirage_client.workload.session import Workload
from llmirage_client.workload.shape import PrefixTree, PromptWriter, WorkloadShape, as_segment, shape
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.tokenizer_loader import load as load_tokenizer

DATA = Path(__file__).parents[2] / "data" / "evalscope"
ENCODER = PromptEncoder(*load_tokenizer(None))


def seen(workload: Workload, reply_tokens: int = 10, most: int = 10_000) -> WorkloadShape:
    return shape(workload, ENCODER, reply_tokens, most)


def prompts(workload: Workload, reply_tokens: int = 10) -> list[int]:
    return [prompt.tokens for prompt in PromptWriter(workload, ENCODER, reply_tokens)]


def chat_tokens(*messages: dict[str, Any]) -> int:
    return len(ENCODER.encode_chat(list(messages)))


def u(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@given(st.lists(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=3), max_size=6))
def test_a_match_is_the_longest_common_prefix_of_tokens_at_equal_cuts(texts: list[list[list[int]]]) -> None:
    tree = PrefixTree()
    earlier: list[list[list[int]]] = []
    for text in texts:
        segments = [as_segment(np.array(segment, dtype=np.int32)) for segment in text]
        assert tree.match(segments) == max((_common(text, other) for other in earlier), default=0)
        tree.put(segments)
        earlier.append(text)


def _common(one: list[list[int]], other: list[list[int]]) -> int:
    """Tokens that two texts begin with alike; after a segment that differs nothing counts."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            alike = 0
            while alike < min(len(mine), len(theirs)) and mine[alike] == theirs[alike]:
                alike += 1
            return count + alike
        count += len(mine)
    return count


def test_a_prompt_is_as_long_as_the_tokenizer_and_the_template_make_it(tmp_path: Path) -> None:
    first, second = u("How warm should a starter be?"), u("And the oven?")
    path = write(tmp_path, [first, {"role": "assistant", "content": "x"}, second])
    reply = 10
    per_message = chat_tokens(u(""), u("")) - chat_tokens(u(""))
    assert prompts(load(path), reply) == [chat_tokens(first), chat_tokens(first, second) + reply + per_message]


def test_a_trace_of_lengths_has_the_prompts_that_the_server_counts() -> None:
    """The figures are usage.prompt_tokens of `llmirage serve` for this file, replies of exactly max_tokens."""
    workload = load(str(DATA / "trie.jsonl"))
    per_message = chat_tokens(u(""), u("")) - chat_tokens(u(""))
    opening = chat_tokens(u("")) - per_message
    sent = [[120], [120, 5, 20], [120, 5, 20, 7, 40], [120, 5, 20, 7, 40, 3, 8], [33], [64], [64, 9, 1]]
    assert prompts(workload) == [sum(lengths) + per_message * len(lengths) + opening for lengths in sent]
    agent = load(str(DATA.parent / "traces" / "weka_trace_0504.json"))  # with a system message of its own
    lengths = [turn.synthetic.tokens for turn in next(iter(agent.sessions.values())).turns if turn.synthetic]
    assert prompts(agent) == [tokens + 2 * per_message + opening for tokens in lengths]


def test_reuse_is_all_of_the_last_prompt_and_reply_within_a_conversation() -> None:
    reuse = seen(load(str(DATA / "trie.jsonl"))).reuse
    per_message = chat_tokens(u(""), u("")) - chat_tokens(u(""))
    held = [[120, 5], [120, 5, 20, 7], [120, 5, 20, 7, 40, 3], [64, 9]]
    assert reuse.own_tokens == sum(sum(lengths) + per_message * len(lengths) for lengths in held)


def test_equal_beginnings_of_other_conversations_are_reused_and_roles_tell_apart(tmp_path: Path) -> None:
    text = "The same question, word for word."
    workload = load(write(tmp_path, [u(text)], [u(text)], [{"role": "system", "content": text}]), None, {"any_role": True})
    shape_ = seen(workload)
    assert shape_.reuse.own_tokens == 0
    per_message = chat_tokens(u(""), u("")) - chat_tokens(u(""))
    assert shape_.reuse.other_tokens == min(len(ENCODER.encode(text)) + per_message, chat_tokens(u(text)) - 1)


def test_ids_are_compared_token_by_token(tmp_path: Path) -> None:
    def call(ids: list[int], out: list[int]) -> dict[str, Any]:
        return {"input_toks": len(ids), "output_toks": len(out), "input_tok_ids": ids, "output_tok_ids": out}

    session = {
        "session_id": "s",
        "arrival_time_ns": 0,
        "sub_requests": [call([1, 2, 3], [4, 5]), call([1, 2, 3, 4, 9, 9], [7])],
    }
    flat = {"arrival_time_ns": 2_000_000_000, **call([1, 2, 8, 8], [1])}
    reuse = seen(load(write(tmp_path, session, flat, {**flat, "arrival_time_ns": 4_000_000_000}))).reuse
    assert (reuse.prompt_tokens, reuse.own_tokens, reuse.other_tokens) == (17, 4, 2 + 3)  # the last token never counts


def test_lengths_without_ids_continue_the_session_s_last_call(tmp_path: Path) -> None:
    calls = [{"input_toks": n, "output_toks": 5} for n in (100, 120, 110, 50)]
    reuse = seen(load(write(tmp_path, {"session_id": "s", "arrival_time_ns": 0, "sub_requests": calls}))).reuse
    assert (reuse.own_tokens, reuse.other_tokens) == (
        105 + 109 + 49,
        0,
    )  # a prompt that is known whole: all but its last token


def test_forks_share_their_parent_s_history_and_spawns_do_not(tmp_path: Path) -> None:
    def row(name: str, **fields: Any) -> dict[str, Any]:
        return {"session_id": name, "turns": [{"messages": [u(f"words of {name}")], "max_tokens": 20, **fields}]}

    fork = seen(load(write(tmp_path, row("root", forks=["a", "b"]), row("a"), row("b"))))
    spawn = seen(load(write(tmp_path, row("root", spawns=["a", "b"]), row("a"), row("b"))))
    assert fork.reuse.own_tokens > 40
    assert spawn.reuse.own_tokens == 0
    assert fork.distributions["children of a branch"].summary.max == 2


def test_arrivals_waits_and_a_walk_that_is_cut(tmp_path: Path) -> None:
    rows = [{"input_toks": 3, "output_toks": 1, "arrival_time_ns": t * 500_000_000} for t in range(5)]
    shape_ = seen(load(write(tmp_path, *rows)), most=3)
    assert (shape_.arrivals_per_s, shape_.gap_variation, shape_.counted_requests) == (2.0, 0.0, 3)
    assert [i for i, count in enumerate(shape_.arrival_bars) if count] == [0, 15, 30, 45, 59]
    assert "wait before a turn, s" not in shape_.distributions
    assert seen(load(str(DATA / "trie.jsonl"))).distributions["wait before a turn, s"].summary.max == 0.05


def test_the_command_prints_a_table_or_json() -> None:
    text = CliRunner().invoke(main, ["inspect", str(DATA / "custom_multi_turn.jsonl"), "--reply-tokens", "7"])
    assert text.exit_code == 0
    assert "highest prefix reuse" in text.output
    assert "█" in text.output
    assert "6 replies are taken to be 7 tokens long (--reply-tokens), as the file does not say" in text.output
    as_json = json.loads(
        CliRunner().invoke(main, ["inspect", str(DATA / "trie.jsonl"), "--json", "--max-turns", "1"]).output
    )
    assert as_json["requests_when_every_root_runs_once"] == 3
    assert as_json["distributions"]["prompt tokens"]["count"] == 3
    assert sum(as_json["distributions"]["prompt tokens"]["bars"]) == 3
    assert 0 <= as_json["prefix_reuse"]["share"] < 0.1


@pytest.mark.parametrize(
    "name", ["bundled:coding-agent", "bundled:dag-agent-team", "bundled:dag-rounds", "bundled:replay-example"]
)
def test_every_kind_of_workload_can_be_inspected(name: str) -> None:
    shape_ = seen(load(name))
    assert shape_.counted_requests > 0
    assert 0 <= shape_.reuse.share < 1


def test_a_bad_file_ends_with_2_and_its_problems(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["inspect", write(tmp_path, [], [u("x")])])
    assert result.exit_code == 2
    assert "line 1: a conversation needs at least one message" in result.output
