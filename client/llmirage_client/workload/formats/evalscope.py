"""evalscope's conversations: a conversation a line or drawn, its turns accumulating live replies.

custom_multi_turn: a conversation a line, as an array of chat messages. Documented by evalscope.

A turn is the messages up to the next one of the assistant. The file's own assistant messages only mark where turns end and
are never sent: the live replies take their places.

share_gpt: ShareGPT conversations of several turns, with live replies in the assistant's places; a line or element each.

Either {"conversation": [{"human": ..., "assistant": ...}]}, documented by evalscope (share_gpt_zh_multi_turn,
share_gpt_en_multi_turn), or {"id": ..., "conversations": [{"from": "human", "value": ...}]} as ShareGPT is published.
Published files have blank questions and empty conversations here and there: they are left out, and noted.

trie: agents' traces as token lengths, one a line; the text is written when a request goes out. Documented by evalscope.

A trace of num_turns tool calls is num_turns + 1 requests. The first sends a user message of input_prompt_length tokens, each
further one the tool's output, as a user message too, after the reply and the tool's latency. max_tokens is the recorded
length of the reply; a reply is as long as that where the endpoint honours ignore_eos (--extra-inputs ignore_eos:true).

random_multi_turn: conversations drawn from given ranges; no file. Documented by evalscope.

Every conversation has its own random numbers, so the first ones do not depend on how many there are, and an offset leads to
others than a run from the start has had.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Mapping
from typing import Any

from llmirage_client.workload.checking import Checker, kind_of
from llmirage_client.workload.conversation_lines import (
    LENGTHS,
    MAX_TURNS,
    SKIP_BAD_LINES,
    LengthFilter,
    conversation,
    load_lines,
    required,
)
from llmirage_client.workload.format import DATASET_OFFSET, Format, Option, any_of, never
from llmirage_client.workload.hash_blocks import key_of
from llmirage_client.workload.loading import LeftOut
from llmirage_client.workload.session import Problem, SyntheticUser, Turn, Workload, WorkloadError
from llmirage_shared.plural import plural

_ROLES = ("user", "assistant")
_ANY_ROLE_HINT = "any_role=true sends every role unchanged"


def load(
    path: str,
    *,
    max_turns: int | None = None,
    any_role: bool = False,
    skip_bad_lines: bool = False,
    min_prompt_length: int = 0,
    max_prompt_length: int = 131_072,
    tokenizer: str | None = None,
) -> Workload:
    """Load every conversation of the file. Raises WorkloadError with all problems, each with its line."""
    left_out = LeftOut()
    lengths = LengthFilter(path, min_prompt_length, max_prompt_length, tokenizer, left_out)

    def read(value: Any, check: Checker) -> tuple[Turn, ...]:
        messages = _messages(value, check, any_role)
        if check.problems:
            return ()
        turns = _turns(messages)
        if not turns:
            left_out.add("conversations of assistant messages only")
            return ()
        first = next((m for m in turns[0].messages if m["role"] == "user"), None)
        measured = first is not None and isinstance(first["content"], str)
        return turns[:max_turns] if first is None or not measured or lengths.keeps(first["content"]) else ()

    return load_lines(path, FORMAT.name, read, left_out, skip_bad_lines, of_arrays=True)


def _messages(value: Any, check: Checker, any_role: bool) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        check.fail(None, f"a conversation is an array of messages, got {kind_of(value)}")
        return []
    if not value:
        check.fail(None, "a conversation needs at least one message")
        return []
    messages = []
    for i, entry in enumerate(value):
        message = check.mapping(entry, f"{i}")
        if message is None:
            continue
        has_role = required(check, message, "role", f"{i}.")
        has_content = required(check, message, "content", f"{i}.")
        if has_role and has_content:
            messages.append(message)
            if not any_role:
                _check_message(message, i, check)
    if not any_role and not check.problems and all(message["role"] != "user" for message in messages):
        check.fail(None, "a conversation must contain at least one user message")
    return messages


def _check_message(message: Mapping[str, Any], i: int, check: Checker) -> None:
    role, content = message["role"], message["content"]
    if role not in _ROLES:
        near = difflib.get_close_matches(role, _ROLES, n=1, cutoff=0.6) if isinstance(role, str) else []
        hint = f"did you mean '{near[0]}'?" if near else _ANY_ROLE_HINT
        shown = f"'{role}'" if isinstance(role, str) else kind_of(role)
        check.fail(f"{i}.role", f"Input should be 'user' or 'assistant', got {shown} ({hint})")
    elif role == "user" and not isinstance(content, str):
        _check_parts(content, i, check)


def _check_parts(content: Any, i: int, check: Checker) -> None:
    """Check a user's content that is no text: parts as chat completions take them, such as text and pictures."""
    if not isinstance(content, list) or not content:
        check.fail(f"{i}.content", f"Input should be a text or a list of parts, got {kind_of(content)}")
        return
    for j, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            check.fail(f"{i}.content.{j}", "Input should be an object with a 'type'")


def _turns(messages: list[dict[str, Any]]) -> tuple[Turn, ...]:
    runs: list[list[dict[str, Any]]] = [[]]
    for message in messages:
        if message["role"] == "assistant":
            runs.append([])
        else:
            runs[-1].append(message)
    return tuple(Turn(messages=tuple(run)) for run in runs if run)


FORMAT = Format(
    name="custom_multi_turn",
    summary="conversations as arrays of chat messages, one a line; live replies take the assistant's places",
    needs="an array of messages with 'role' and 'content' on every line",
    recognises=never,
    recognises_array=lambda values: not values or any(isinstance(value, dict | list) for value in values),
    load=load,
    order=40,
    options=(
        MAX_TURNS,
        Option(
            "any_role", "boolean", "send messages of any role; without it user and assistant are what there may be", False
        ),
        SKIP_BAD_LINES,
        *LENGTHS,
    ),
)


_HUMANS = ("human", "user")
_OTHERS = ("gpt", "assistant", "chatgpt", "bing", "bard", "claude", "system", "tool", "function_call", "observation")


def load_share_gpt(
    path: str,
    *,
    max_turns: int | None = None,
    skip_bad_lines: bool = False,
    min_prompt_length: int = 0,
    max_prompt_length: int = 131_072,
    tokenizer: str | None = None,
) -> Workload:
    """Load every conversation of the file. Raises WorkloadError with all problems, each with its line."""
    left_out = LeftOut()
    lengths = LengthFilter(path, min_prompt_length, max_prompt_length, tokenizer, left_out)

    def read(value: Any, check: Checker) -> tuple[Turn, ...]:
        questions = _questions(value, check, left_out)
        if check.problems or not questions or not lengths.keeps(questions[0]):
            return ()
        return tuple(Turn(messages=({"role": "user", "content": question},)) for question in questions[:max_turns])

    return load_lines(path, SHARE_GPT.name, read, left_out, skip_bad_lines)


def _questions(value: Any, check: Checker, left_out: LeftOut) -> list[str]:
    row = check.mapping(value, None)
    if row is None:
        return []
    if "conversations" in row and "conversation" not in row:
        return _values(row["conversations"], check, left_out)
    if "conversation" not in row:
        required(check, row, "conversation")
        if any("(is it" in problem.message for problem in check.problems):
            return []
        check.problems.clear()
        left_out.add("lines without 'conversation'")
        return []
    entries = check.items(row["conversation"], "conversation")
    questions = []
    for at, exchange in check.each(entries, "conversation"):
        question = exchange.get("human")
        if question is None:
            _without_human(exchange, at, check, left_out)
        elif not isinstance(question, str):
            check.fail(f"{at}human", f"Input should be a valid string, got {kind_of(question)}")
        elif question.strip():
            questions.append(question.strip())
        else:
            left_out.add("blank questions")
    if entries is not None and not questions and not check.problems:
        left_out.add("conversations without a question")
    return questions


def _values(value: Any, check: Checker, left_out: LeftOut) -> list[str]:
    """Return the messages of humans, from entries with `from` and `value`."""
    questions = []
    for at, message in check.each(check.items(value, "conversations"), "conversations"):
        speaker = check.need(message, "from", check.text, at)
        text = check.need(message, "value", check.text, at)
        if speaker in _HUMANS and text is not None:
            if text.strip():
                questions.append(text.strip())
            else:
                left_out.add("blank questions")
        elif speaker is not None and speaker not in _OTHERS and speaker not in _HUMANS:
            check.fail(f"{at}from", f"Input should be one of {', '.join((*_HUMANS, *_OTHERS))}, got '{speaker}'")
        elif speaker == "system" and text:
            left_out.add("system prompts")
    if not questions and not check.problems:
        left_out.add("conversations without a question")
    return questions


def _without_human(exchange: dict[str, Any], at: str, check: Checker, left_out: LeftOut) -> None:
    """Note an exchange with neither question nor answer; published files have some with an answer alone."""
    if "human" in exchange or "assistant" in exchange:
        left_out.add("exchanges without a question")
    else:
        required(check, exchange, "human", at)


SHARE_GPT = Format(
    name="share_gpt",
    summary="ShareGPT conversations of several turns, one a line; live replies take the assistant's places",
    needs='\'conversation\', a list of {"human", "assistant"}, or \'conversations\', of {"from", "value"}, in every object',
    recognises=any_of(("conversation",), ("conversations.from",), ("[].conversations.from",), ("[].conversation",)),
    load=load_share_gpt,
    aliases=("share_gpt_multi_turn", "share_gpt_zh_multi_turn", "share_gpt_en_multi_turn"),
    order=40,
    options=(MAX_TURNS, SKIP_BAD_LINES, *LENGTHS),
    fetch="common_zh_70k.jsonl or common_en_70k.jsonl from modelscope.cn/datasets/swift/sharegpt",
)


_TRIE_LISTS = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")
_TRIE_KEYS = ("input_prompt_length", "num_turns", *_TRIE_LISTS, "final_assistant_response_length")
_TRIE_MOST = 10_000_000  # no model takes as many tokens


def load_trie(path: str, *, max_turns: int | None = None, skip_bad_lines: bool = False) -> Workload:
    """Load every trace of the file. Raises WorkloadError with all problems, each with line and field."""

    def read(value: Any, check: Checker) -> tuple[Turn, ...]:
        row = check.mapping(value, None)
        return () if row is None else _trie_turns(row, check)[:max_turns]

    return load_lines(path, TRIE.name, read, LeftOut(), skip_bad_lines)


def _trie_turns(row: Mapping[str, Any], check: Checker) -> tuple[Turn, ...]:
    if [key for key in _TRIE_KEYS if not required(check, row, key)]:
        return ()
    prompt_tokens = _trie_count(row["input_prompt_length"], "input_prompt_length", check, 1)
    num_turns = _trie_count(row["num_turns"], "num_turns", check, 0)
    replies, outputs, waits_s = (_trie_values(row[key], key, num_turns, check) for key in _TRIE_LISTS)
    final = _trie_count(row["final_assistant_response_length"], "final_assistant_response_length", check, 1)
    if prompt_tokens is None or final is None or check.problems:
        return ()
    turns = []
    key = key_of("trie", check.line)
    for i, max_tokens in enumerate([*replies, final]):
        tokens = max(1, int(outputs[i - 1])) if i else prompt_tokens  # a tool without output still has to answer something
        message = SyntheticUser(tokens, key + i)
        turns.append(Turn(synthetic=message, max_tokens=int(max_tokens), delay_s=waits_s[i - 1] if i else 0.0))
    return tuple(turns)


def _trie_values(value: Any, key: str, count: int | None, check: Checker) -> list[float]:
    """Return the list under `key`, of `count` values: whole tokens, or seconds."""
    if not isinstance(value, list):
        check.fail(key, f"Input should be a valid list, got {kind_of(value)}")
        return []
    if count is not None and len(value) != count:
        check.fail(key, f"has {plural(len(value), 'value')}, but num_turns is {count}")
    if key == "tool_call_latency":
        return [_trie_seconds(entry, f"{key}.{i}", check) for i, entry in enumerate(value)]
    minimum = 0 if key == "tool_call_output_length" else 1
    return [_trie_count(entry, f"{key}.{i}", check, minimum) or 0 for i, entry in enumerate(value)]


def _trie_seconds(value: Any, field: str, check: Checker) -> float:
    if type(value) is float and value >= 0:
        return value
    return check.number(value, field) or 0.0


def _trie_count(value: Any, field: str, check: Checker, minimum: int) -> int | None:
    """Return a number of tokens or turns; a fraction is cut off."""
    if type(value) is int and minimum <= value <= _TRIE_MOST:  # published files have hundreds of thousands of them
        return value
    number = check.number(value, field, minimum=minimum)
    if number is not None and number > _TRIE_MOST:
        check.fail(field, f"Input should be less than or equal to {_TRIE_MOST}")
        return None
    return None if number is None else math.floor(number)


TRIE = Format(
    name="trie",
    summary="agent traces as lengths: prompt, replies, tool outputs and tool latencies, one a line",
    needs="'input_prompt_length', 'num_turns' and the lists of lengths on every line",
    recognises=any_of(("input_prompt_length",), ("tool_call_output_length", "assistant_response_length")),
    load=load_trie,
    aliases=("applied_compute_agentic", "trie_agentic_coding", "trie_code_qa", "trie_office_work"),
    order=40,
    options=(MAX_TURNS, SKIP_BAD_LINES),
    fetch="agentic_coding_8k.jsonl, code_qa_8k.jsonl or office_work_8k.jsonl from "
    "modelscope.cn/datasets/evalscope/trie-workloads",
)


_CONVERSATIONS = 100


def load_random(
    path: str,
    *,
    max_turns: int,
    min_turns: int,
    min_prompt_length: int,
    max_prompt_length: int,
    prefix_length: int,
    conversations: int,
    seed: int,
    dataset_offset: int,
) -> Workload:
    """Draw `conversations` conversations from number dataset_offset on.

    Raises WorkloadError when a range ends before it begins.
    """
    spans = {"turns": (min_turns, max_turns), "prompt_length": (min_prompt_length, max_prompt_length)}
    problems = [
        Problem(f"{low} is more than max_{name} {high}", field=f"option min_{name}")
        for name, (low, high) in spans.items()
        if low > high
    ]
    if problems:
        raise WorkloadError(path, problems)
    sessions = []
    for number in range(dataset_offset, dataset_offset + conversations):
        draw = random.Random(f"{seed}/{number}")
        key = key_of("random", seed, number)
        turns = []
        for i in range(draw.randint(min_turns, max_turns)):
            tokens = max(1, draw.randint(min_prompt_length, max_prompt_length))  # a message of no tokens is none
            turns.append(Turn(synthetic=SyntheticUser(tokens, key + i, prefix_length)))
        sessions.append(conversation(f"conversation_{number + 1}", tuple(turns)))
    return Workload.of_roots(RANDOM.name, path, sessions)


RANDOM = Format(
    name="random_multi_turn",
    summary="synthetic conversations, drawn from ranges of turns and message lengths; needs no file",
    needs="no file: give its name instead, and the option max_turns",
    recognises=never,
    load=load_random,
    order=200,
    generates=True,
    options=(
        Option("max_turns", "integer", "most turns of a conversation", minimum=1, required=True),
        Option("min_turns", "integer", "fewest turns of a conversation", 1, minimum=1),
        Option("min_prompt_length", "integer", "fewest tokens of a user message", 0),
        Option("max_prompt_length", "integer", "most tokens of a user message", 131_072, minimum=1),
        Option("prefix_length", "integer", "tokens that every user message begins with, besides its own", 0),
        Option("conversations", "integer", "how many there are, unless --num-conversations says", _CONVERSATIONS, minimum=1),
        Option("seed", "integer", "of the draws", 0, minimum=-(2**63), maximum=2**63),
        DATASET_OFFSET,
    ),
)
