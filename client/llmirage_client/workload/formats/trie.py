"""trie: agents' traces as token lengths, one a line; the text is written when a request goes out. Documented by evalscope.

A trace of num_turns tool calls is num_turns + 1 requests. The first sends a user message of input_prompt_length tokens, each
further one the tool's output, as a user message too, after the reply and the tool's latency. max_tokens is the recorded
length of the reply; a reply is as long as that where the endpoint honours ignore_eos (--extra-inputs ignore_eos:true).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmirage_client.workload.checking import Checker, kind_of
from llmirage_client.workload.conversation_lines import MAX_TURNS, SKIP_BAD_LINES, LeftOut, load_lines, required
from llmirage_client.workload.format import Format
from llmirage_client.workload.hash_blocks import key_of
from llmirage_client.workload.session import SyntheticUser, Turn, Workload

_LISTS = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")
_KEYS = ("input_prompt_length", "num_turns", *_LISTS, "final_assistant_response_length")
_MOST = 10_000_000  # no model takes as many tokens


def load(path: str, *, max_turns: int | None = None, skip_bad_lines: bool = False) -> Workload:
    """Every trace of the file. Raises WorkloadError with all problems, each with line and field."""

    def read(value: Any, check: Checker) -> tuple[Turn, ...]:
        row = check.mapping(value, None)
        return () if row is None else _turns(row, check)[:max_turns]

    return load_lines(path, FORMAT.name, read, LeftOut(), skip_bad_lines)


def _turns(row: Mapping[str, Any], check: Checker) -> tuple[Turn, ...]:
    if [key for key in _KEYS if not required(check, row, key)]:
        return ()
    prompt_tokens = _count(row["input_prompt_length"], "input_prompt_length", check, 1)
    num_turns = _count(row["num_turns"], "num_turns", check, 0)
    replies, outputs, waits_s = (_values(row[key], key, num_turns, check) for key in _LISTS)
    final = _count(row["final_assistant_response_length"], "final_assistant_response_length", check, 1)
    if prompt_tokens is None or final is None or check.problems:
        return ()
    turns = []
    key = key_of("trie", check.line)
    for i, max_tokens in enumerate([*replies, final]):
        tokens = max(1, int(outputs[i - 1])) if i else prompt_tokens  # a tool without output still has to answer something
        message = SyntheticUser(tokens, key + i)
        turns.append(Turn(synthetic=message, max_tokens=int(max_tokens), delay_s=waits_s[i - 1] if i else 0.0))
    return tuple(turns)


def _values(value: Any, key: str, count: int | None, check: Checker) -> list[float]:
    """The list under `key`, of `count` values: whole tokens, or seconds."""
    if not isinstance(value, list):
        check.fail(key, f"Input should be a valid list, got {kind_of(value)}")
        return []
    if count is not None and len(value) != count:
        check.fail(key, f"has {len(value)} value{'s' * (len(value) != 1)}, but num_turns is {count}")
    if key == "tool_call_latency":
        return [_seconds(entry, f"{key}.{i}", check) for i, entry in enumerate(value)]
    minimum = 0 if key == "tool_call_output_length" else 1
    return [_count(entry, f"{key}.{i}", check, minimum) or 0 for i, entry in enumerate(value)]


def _seconds(value: Any, field: str, check: Checker) -> float:
    if type(value) is float and value >= 0:
        return value
    return check.number(value, field) or 0.0


def _count(value: Any, field: str, check: Checker, minimum: int) -> int | None:
    """A number of tokens or turns; a fraction is cut off."""
    if type(value) is int and minimum <= value <= _MOST:  # published files have hundreds of thousands of them
        return value
    number = check.number(value, field, minimum=minimum)
    if number is not None and number > _MOST:
        check.fail(field, f"Input should be less than or equal to {_MOST}")
        return None
    return None if number is None else math.floor(number)


FORMAT = Format(
    name="trie",
    summary="agent traces as lengths: prompt, replies, tool outputs and tool latencies, one a line",
    needs="'input_prompt_length', 'num_turns' and the lists of lengths on every line",
    recognises=lambda keys: (
        "input_prompt_length" in keys or {"tool_call_output_length", "assistant_response_length"} <= set(keys)
    ),
    load=load,
    aliases=("applied_compute_agentic", "trie_agentic_coding", "trie_code_qa", "trie_office_work"),
    order=40,
    options=(MAX_TURNS, SKIP_BAD_LINES),
    fetch="agentic_coding_8k.jsonl, code_qa_8k.jsonl or office_work_8k.jsonl from "
    "modelscope.cn/datasets/evalscope/trie-workloads",
)
