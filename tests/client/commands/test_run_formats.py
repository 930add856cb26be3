"""Formats with options through `llmirage run`: what reaches an endpoint, message by message."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoked import invoke, refusal
from workload_files import write

from llmirage_client.load.options import RunOptions
from llmirage_client.load.runner import Runner
from llmirage_client.measure.record import Exchange, RequestError
from llmirage_client.targets.target import Call
from llmirage_client.workload.registry import load
from llmirage_shared.tokenizer_loader import embedded

DATA = Path(__file__).parents[2] / "data" / "evalscope"


class Echo:
    """Answers at once with "re: " and the last user text; fails where that has FAIL in it."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def send(self, call: Call) -> Exchange:
        self.bodies.append(json.loads(json.dumps(call.body)))
        exchange = Exchange(start_s=self.now(), streamed=call.stream)
        exchange.end_s = self.now()
        last = (call.body["messages"] or [{"content": ""}])[-1]["content"]
        if "FAIL" in str(last):
            exchange.error = RequestError(500, "http_error", "forced")
        else:
            exchange.status = 200
            exchange.message = {"role": "assistant", "content": f"re: {last}"}
        return exchange

    async def close(self) -> None: ...


def sent(path: str, options: dict[str, Any] | None = None, **settings: Any) -> list[list[str]]:
    """The texts of the messages of each request, assistant's replies included."""
    return [[str(message["content"]) for message in body["messages"]] for body in bodies(path, options, **settings)]


def bodies(path: str, options: dict[str, Any] | None = None, **settings: Any) -> list[Any]:
    echo = Echo()
    workload = load(path, None, options)
    asyncio.run(Runner(workload, RunOptions(model="m", seed=1, inter_turn_delay_cap_s=0.0, **settings), echo).run())
    return echo.bodies


def u(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def a() -> dict[str, str]:
    return {"role": "assistant", "content": "from the file"}


def test_live_replies_take_the_places_of_the_file_s(tmp_path: Path) -> None:
    path = write(tmp_path, [u("one"), a(), u("two"), u("more"), a(), u("three")])
    assert sent(path) == [["one"], ["one", "re: one", "two", "more"], ["one", "re: one", "two", "more", "re: more", "three"]]


def test_a_failure_abandons_its_conversation_and_the_next_one_starts(tmp_path: Path) -> None:
    path = write(tmp_path, [u("one"), a(), u("FAIL"), a(), u("never")], [u("two")])
    assert sent(path, num_conversations=3) == [
        ["one"],
        ["one", "re: one", "FAIL"],
        ["two"],
        ["one"],
        ["one", "re: one", "FAIL"],
    ]


def test_conversations_are_claimed_in_order_and_from_the_top_again(tmp_path: Path) -> None:
    path = write(tmp_path, *([u(str(number))] for number in range(3)))
    assert sent(path, num_conversations=5) == [["0"], ["1"], ["2"], ["0"], ["1"]]
    assert sent(path, {"dataset_offset": 2}) == [["2"]]
    assert sent(path, {"dataset_offset": 2}, num_conversations=2) == [["2"], ["0"]]


def test_a_trace_s_lengths_and_limits_are_on_the_wire() -> None:
    count = embedded().encode
    seen = [
        (body["max_tokens"], [len(count(m["content"])) for m in body["messages"] if m["role"] == "user"])
        for body in bodies(str(DATA / "trie.jsonl"), use_legacy_max_tokens=True)
    ]
    assert seen == [
        (5, [120]), (7, [120, 20]), (3, [120, 20, 40]), (12, [120, 20, 40, 8]), (6, [33]), (9, [64]), (4, [64, 1])
    ]  # fmt: skip


def test_a_routing_id_is_in_the_body_and_nowhere_else() -> None:
    rids = [body.get("rid") for body in bodies(str(DATA / "swe_smith.json"))]
    assert rids == [None, None, "route-1_t1", "route-1_t2", "route-1_t3"]


@given(st.integers(1, 3), st.integers(0, 2), st.integers(1, 40), st.integers(0, 20))
def test_random_conversations_have_their_lengths_and_prefix(turns: int, more: int, length: int, prefix: int) -> None:
    options = {
        "min_turns": turns, "max_turns": turns + more, "min_prompt_length": length, "max_prompt_length": length,
        "prefix_length": prefix, "conversations": 2,
    }  # fmt: skip
    requests = bodies("random_multi_turn", options)
    for body in requests:
        users = [m["content"] for m in body["messages"] if m["role"] == "user"]
        assert all(len(embedded().encode(text)) == length + prefix for text in users)
    depths = [len(body["messages"]) // 2 + 1 for body in requests]
    assert depths[0] == 1
    assert turns <= max(depths) <= turns + more


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format-option", "max_turns"], "'max_turns' is neither key=value nor a JSON object"),
        (["--multi-turn-args", "{"], "'{' is not a JSON object"),
        (
            ["--format-option", "max_turn=2"],
            "option max_turn: custom_multi_turn has no such option (did you mean 'max_turns'?)",
        ),
        (["--dataset-offset", "3"], "option dataset_offset: 3 skips all of the 3 conversations of the file"),
        (["--max-turns", "0"], "Invalid value for '--max-turns': must be at least 1, not 0"),
        (["--format", "trie"], "line 1: Input should be a valid dictionary (a JSON object), got an array"),
    ],
)
def test_options_that_make_no_sense_end_with_2_and_a_reason(arguments: list[str], words: str) -> None:
    assert words in refusal("run", DATA / "custom_multi_turn.jsonl", "--url", "127.0.0.1:9", *arguments)


def test_a_generated_workload_needs_its_options() -> None:
    result = invoke("run", "random_multi_turn", "--url", "127.0.0.1:9", status=2)
    needed = "random_multi_turn: option max_turns: random_multi_turn needs it (most turns of a conversation)\n"
    assert result.output == needed
