"""Runs of traces and schedules: when each turn goes out, and what goes out for prompts known by their lengths."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from workload_files import write

from llmirage_client.cli import main
from llmirage_client.workload.registry import load
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.tokenizer_loader import load as load_tokenizer

ROWS = [
    {"session_id": "a", "timestamp": 10_000, "text_input": "a0"},
    {"session_id": "a", "timestamp": 10_500, "text_input": "a1"},
    {"session_id": "a", "timestamp": 17_000, "delay": 9_000, "text_input": "a2"},
    {"session_id": "a", "delay": 250, "text_input": "a3"},
    {"session_id": "b", "timestamp": 12_000, "text_input": "b0"},
]


@pytest.mark.parametrize("speed", [1.0, 4.0])
def test_a_scheduled_turn_goes_out_at_its_time_or_with_the_reply_before(bench: Any, tmp_path: Path, speed: float) -> None:
    _, target = bench.run(load(write(tmp_path, *ROWS)), fixed_schedule=True, speed=speed)
    # Replies take 1 s: a1 is due at 0.5 s and waits for the reply to a0; a2 is due at 7 s; a3 comes 0.25 s after its reply.
    second = 1 / speed
    due = [("a0", 0.0), ("a1", 1.0), ("b0", max(2 * second, 0)), ("a2", max(7 * second, 2.0)), ("a3", 0.0)]
    due[-1] = ("a3", due[-2][1] + 1 + 0.25 * second)
    assert sorted(target.times()) == [(name, pytest.approx(at)) for name, at in sorted(due)]


def test_without_the_schedule_only_delays_count(bench: Any, tmp_path: Path) -> None:
    _, target = bench.run(load(write(tmp_path, *ROWS)), concurrency=2)
    times = dict(target.times())
    assert times == {
        "a0": 0.0,
        "b0": pytest.approx(0.0),
        "a1": pytest.approx(1.0),
        "a2": pytest.approx(11.0),
        "a3": pytest.approx(12.25),
    }


def test_lengths_add_up_with_the_live_replies_between_them(bench: Any, tmp_path: Path) -> None:
    rows = [{"session_id": "s", "input_length": n, "hash_ids": [7]} for n in (30, 40)]
    result, target = bench.run(load(write(tmp_path, *rows), None, {"block_size": 32}), seed=5)
    vocabulary = load_tokenizer(None)[0]
    first, second = (sent.call.body["messages"] for sent in target.sent)
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[0] == first[0]
    counts = [len(vocabulary.encode(message["content"])) for message in (first[0], second[2])]
    assert counts == [30, 40]
    assert second[2]["content"].startswith(first[0]["content"])
    assert result.notes == ["lengths of a session are what each line adds to the history (option prompts=delta)"]


def test_whole_prompts_share_their_blocks_token_for_token(bench: Any, tmp_path: Path) -> None:
    rows = [
        {"chat_id": 1, "timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 9, "turn": 2, "input_length": 64, "output_length": 5}
        | {"hash_ids": [1, 2, 4, 5]},
    ]
    _, target = bench.run(load(write(tmp_path, *rows)), fixed_schedule=True)
    encoder = PromptEncoder(*load_tokenizer(None))
    first, second = (list(encoder.encode_chat(sent.call.body["messages"])) for sent in target.sent)
    head = next(i for i in range(16) if encoder.encode_chat([{"role": "user", "content": "x"}])[i] != first[i])
    assert len(second) - len(first) == 24
    shared = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert shared == head + 32


@pytest.mark.parametrize("kind", ["llmirage", "vllm", "other"])
def test_replies_are_as_long_as_in_the_trace_where_the_endpoint_can_be_told(bench: Any, tmp_path: Path, kind: str) -> None:
    rows = [{"input_length": 5, "output_length": 7}, {"text_input": "x", "output_length": 7}]
    _, target = bench.run(load(write(tmp_path, *rows)), endpoint_kind=kind)
    length, text = (sent.call.body for sent in target.sent)
    assert length["max_completion_tokens"] == text["max_completion_tokens"] == 7
    told = {"min_tokens": 7, "ignore_eos": True} if kind != "other" else {}
    assert {key: length[key] for key in ("min_tokens", "ignore_eos") if key in length} == told
    assert not {"min_tokens", "ignore_eos"} & text.keys()


def test_a_system_prompt_stands_before_every_turn(bench: Any, tmp_path: Path) -> None:
    turns = [{"role": "system", "text": "S"}, {"text": "a"}, {"text": "b"}]
    _, target = bench.run(load(write(tmp_path, {"turns": turns})))
    assert target.histories() == {"a": ["S", "a"], "b": ["S", "a", "re a", "b"]}


def test_lines_of_a_single_turn_session_share_nothing(bench: Any, tmp_path: Path) -> None:
    rows = [{"session_id": "s", "text": "a"}, {"session_id": "s", "text": "b", "delay": 500}]
    _, target = bench.run(load(write(tmp_path, *rows)))
    assert target.histories() == {"a": ["a"], "b": ["b"]}
    assert target.times() == [("a", 0.0), ("b", pytest.approx(1.5))]


def test_tools_of_whole_messages_are_of_their_request_alone(bench: Any, tmp_path: Path) -> None:
    whole = [{"session_id": "s", "messages": [bench.user(text)]} for text in "ab"]
    deltas = [{**row, "session_id": "d", "message_mode": "delta"} for row in whole]
    rows = [{**row, "tools": [{"type": "function"}]} if i % 2 == 0 else row for i, row in enumerate([*whole, *deltas])]
    _, target = bench.run(load(write(tmp_path, *rows)))
    assert ["tools" in sent.call.body for sent in target.sent] == [True, False, True, True]
    assert len(target.sent[3].call.body["messages"]) == 3


def test_conversations_of_mlperf_have_salts_and_names_by_their_repeat(bench: Any, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for name in ("c1", "c2"):
        rows += [
            {"conversation_id": name, "turn": 1, "role": "user", "content": "q", "system": f"You are {name}."},
            {"conversation_id": name, "turn": 2, "role": "assistant", "content": "a"},
            {"conversation_id": name, "turn": 3, "role": "user", "content": "more"},
        ]
    file = write(tmp_path, *rows)
    _, target = bench.run(load(file, None, {"salts": True}), num_conversations=5)
    seen = [(s.call.headers["X-Session-ID"], s.call.body["messages"][0]["content"]) for s in target.sent]
    assert seen[::2] == seen[1::2]  # the salts are those of the conversation, in both of its turns
    assert [name for name, _ in seen[::2]] == ["c1", "c2", "c1__repeat_2", "c2__repeat_2", "c1__repeat_3"]
    # the values that MLPerf Endpoints put on the wire: 4461, ba75 and 0967 for passes 1, 2 and 3
    assert seen[0][1] == "[salt: 4461]\n\nYou are c1.\n\n[salt: 6d82]"
    assert [text[7:11] for _, text in seen[::2]] == ["4461", "4461", "ba75", "ba75", "0967"]
    _, plain = bench.run(load(file))
    assert plain.sent[0].call.body["messages"][0]["content"] == "You are c1."


def call(t: float, *blocks: int, api_s: float = 0.5) -> dict[str, Any]:
    return {"t": t, "type": "s", "in": 64 * len(blocks), "out": 4, "hash_ids": blocks, "api_time": api_s}


def agent(t: float, end: float, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "agent_id": "a", "duration_ms": (end - t) * 1e3, "requests": calls}


# Replies take 1 s, twice as long as in the recordings.
@pytest.mark.parametrize(
    ("requests", "plain", "ordered"),
    [
        pytest.param(  # the child of a marker within the parent's request: after its reply, or during it
            [call(0.0, 1, api_s=3.0), agent(0.5, 2.0, call(0.7, 7)), call(5.0, 1, 2)],
            {("t", 0): 0.0, ("t::sa:a", 0): 1.2, ("t", 1): 3.0},
            {("t", 0): 0.0, ("t::sa:a", 0): 0.7, ("t", 1): 3.0},
            id="marker",
        ),
        pytest.param(  # an agent without a marker begins at once
            [call(0.0, 1, api_s=1.5), call(0.5, 1, 2), call(4.0, 1, 3)],
            {("t", 0): 0.0, ("t::aux:000", 0): 1.0, ("t", 1): 3.5},
            {("t", 0): 0.0, ("t::aux:000", 0): 0.5, ("t", 1): 3.5},
            id="flat",
        ),
        pytest.param(  # the child's first request was over when the parent's second began; nothing joins it
            [call(0.0, 1), agent(0.6, 9.0, call(0.6, 7), call(8.0, 7, 8)), call(1.3, 1, 2)],
            {("t", 0): 0.0, ("t::sa:a", 0): 1.0, ("t", 1): 1.8, ("t::sa:a", 1): 8.9},
            {("t", 0): 0.0, ("t::sa:a", 0): 1.0, ("t", 1): 1.8, ("t::sa:a", 1): 8.9},
            id="other scope",
        ),
        pytest.param(  # the same without markers; another agent began when the first one's request was over
            [call(0.0, 1), call(0.6, 7, 9, api_s=0.1), call(0.8, 8, 9, api_s=0.1), call(3.0, 1, 2)],
            {("t", 0): 0.0, ("t::aux:000", 0): 1.0, ("t::aux:001", 0): 1.2, ("t", 1): 3.5},
            {("t", 0): 0.0, ("t::aux:000", 0): 1.0, ("t::aux:001", 0): 2.0, ("t", 1): 3.5},
            id="order",
        ),
        pytest.param(  # by its marker the child ends before the parent goes on, by its requests after it
            [call(0.0, 1), agent(0.6, 2.0, call(0.6, 7), call(3.0, 7, 8)), call(2.2, 1, 2)],
            {("t", 0): 0.0, ("t::sa:a", 0): 1.0, ("t::sa:a", 1): 3.9, ("t", 1): 4.9},
            {("t", 0): 0.0, ("t::sa:a", 0): 1.0, ("t::sa:a", 1): 3.9, ("t", 1): 4.9},
            id="join",
        ),
    ],
)
def test_agents_keep_the_recorded_order_where_it_is_asked_for(
    bench: Any, tmp_path: Path, requests: list[Any], plain: dict[Any, float], ordered: dict[Any, float]
) -> None:
    file = write(tmp_path, {"id": "t", "block_size": 64, "requests": requests})
    for expected, options in ((plain, {}), (ordered, {"recorded_order": True})):
        result, _ = bench.run(load(file, options=options))
        sent = {(r.conversation_id, r.turn_index): round(r.exchange.start_s, 6) for r in result.records}
        assert sent == {key: pytest.approx(at) for key, at in expected.items()}


def test_agents_that_fork_from_one_request_and_overlap_are_named_as_a_group(tmp_path: Path) -> None:
    pairs = [(1.0, 10), (1.1, 20), (1.2, 30), (4.0, 40)]  # the last begins when the others are over
    forks = [request for t, block in pairs for request in (call(t, 1, block), call(t + 1, 1, block, block + 1))]
    once = call(1.3, 1, 50)  # it is one of the group, and a sidecar by its name
    requests = sorted(
        [call(0.0, *range(1, 7)), *forks, once, call(6.0, *range(1, 8))], key=lambda request: float(request["t"])
    )
    names = set(load(write(tmp_path, {"id": "t", "block_size": 64, "requests": requests})).sessions)
    assert names == {"t", "t::wg:000_000", "t::wg:000_001", "t::wg:000_002", "t::aux:003", "t::fa:004"}
    two = [request for request in requests if 30 not in request["hash_ids"] and 50 not in request["hash_ids"]]
    names = set(load(write(tmp_path, {"id": "t", "block_size": 64, "requests": two})).sessions)
    assert names == {"t", "t::fa:000", "t::fa:001", "t::fa:002"}  # two are no group


def test_a_request_that_names_the_conversation_does_not_say_what_its_agents_are(tmp_path: Path) -> None:
    """It is of another model, as Claude Code's titles are."""
    large = [*range(1, 401)]
    title = call(0.0, 900) | {"model": "small", "out": 9}
    rest = [call(1.0, *large), call(2.0, *large[:300], 500), call(9.0, *large, 401)]
    sole = [request | {"model": "large", "out": 5_000} for request in rest]
    workload = load(write(tmp_path, {"id": "t", "block_size": 64, "requests": [title, *sole]}))
    assert set(workload.sessions) == {"t", "t::fa:000"}


def test_a_system_prompt_is_told_apart_as_long_as_the_prompts_begin_with_it(tmp_path: Path) -> None:
    child = agent(2.0, 3.0, call(2.0, 7, 8, 9), call(2.6, 1, 2, 3, 4)) | {"tool_tokens": 64}
    flat = [call(5.0, 1, 2, 20), call(5.1, 1, 30, 31)]  # two agents: one begins with all of it
    requests = [call(0.0, 1, 2, 3, api_s=9.0), child, *flat, call(11.0, 1, 2, 4), call(12.0, 1, 5), call(13.0, 1, 5, 6)]
    workload = load(write(tmp_path, {"id": "t", "block_size": 64, "system_tokens": 90, "requests": requests}))
    told = {
        name: [turn.synthetic.system_tokens // 64 for turn in session.turns if turn.synthetic]
        for name, session in workload.sessions.items()
    }
    assert told == {"t": [2, 2, 1, 1], "t::aux:000": [2], "t::aux:001": [0], "t::sa:a": [1, 0]}


def test_a_prompt_of_a_system_prompt_alone_is_a_message_without_a_marker(bench: Any, tmp_path: Path) -> None:
    requests = [call(0.0, 1, 2), call(1.0, 1, 2), call(2.0, 1, 2, 3)]
    file = write(tmp_path, {"id": "t", "block_size": 64, "system_tokens": 128, "requests": requests})
    _, target = bench.run(load(file))
    roles = [[message["role"] for message in sent.call.body["messages"]] for sent in target.sent]
    assert roles == [["system"], ["system"], ["system", "user"]]
    words = ["simulate", str(file), "--model", "Qwen/Qwen3-8B", "--scenario", "agentx", "--unsafe-override", "--json"]
    engine, api = (
        json.loads(
            CliRunner().invoke(main, [*words, "--benchmark-duration", "60", "--concurrency", "2", "--via", via]).stdout
        )
        for via in ("engine", "api")
    )
    same = ("requests", "ttft_ms", "total_tok_per_s", "cached_token_share")
    assert [engine[key] for key in same] == [api[key] for key in same]


def test_a_recorded_root_frees_its_slot_before_its_children_are_over(bench: Any, tmp_path: Path) -> None:
    child = {"t": 0.1, "type": "subagent", "agent_id": "a", "requests": [call(0.1, 7), call(9.0, 7)]}
    trace = {"block_size": 64, "requests": [call(0.0, 1), child]}
    file = write(tmp_path, {"id": "one", **trace}, {"id": "two", **trace})
    result, _ = bench.run(load(file), concurrency=1)
    began = {r.conversation_id: r.exchange.start_s for r in result.records if r.turn_index == 0}
    assert began["two"] == pytest.approx(began["one"] + 1.0)
    assert len(result.records) == 6  # and the run waits for the children all the same
