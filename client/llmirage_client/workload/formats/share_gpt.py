"""share_gpt: ShareGPT conversations of several turns, with live replies in the assistant's places; a line or element each.

Either {"conversation": [{"human": ..., "assistant": ...}]}, documented by evalscope (share_gpt_zh_multi_turn,
share_gpt_en_multi_turn), or {"id": ..., "conversations": [{"from": "human", "value": ...}]} as ShareGPT is published.
Published files have blank questions and empty conversations here and there: they are left out, and noted.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from llmirage_client.workload.checking import Checker, kind_of
from llmirage_client.workload.conversation_lines import (
    LENGTHS,
    MAX_TURNS,
    SKIP_BAD_LINES,
    LeftOut,
    LengthFilter,
    load_lines,
    required,
)
from llmirage_client.workload.format import Format
from llmirage_client.workload.session import Turn, Workload

_HUMANS = ("human", "user")
_OTHERS = ("gpt", "assistant", "chatgpt", "bing", "bard", "claude", "system", "tool", "function_call", "observation")


def load(
    path: str,
    *,
    max_turns: int | None = None,
    skip_bad_lines: bool = False,
    min_prompt_length: int = 0,
    max_prompt_length: int = 131_072,
    tokenizer: str | None = None,
) -> Workload:
    """Every conversation of the file. Raises WorkloadError with all problems, each with its line."""
    left_out = LeftOut()
    lengths = LengthFilter(path, min_prompt_length, max_prompt_length, tokenizer, left_out)

    def read(value: Any, check: Checker) -> tuple[Turn, ...]:
        questions = _questions(value, check, left_out)
        if check.problems or not questions or not lengths.keeps(questions[0]):
            return ()
        return tuple(Turn(messages=({"role": "user", "content": question},)) for question in questions[:max_turns])

    return load_lines(path, FORMAT.name, read, left_out, skip_bad_lines, in_array=True)


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
    for i, entry in enumerate(entries or []):
        at = f"conversation.{i}"
        exchange = check.mapping(entry, at)
        if exchange is None:
            continue
        question = exchange.get("human")
        if question is None:
            _without_human(exchange, at, check, left_out)
        elif not isinstance(question, str):
            check.fail(f"{at}.human", f"Input should be a valid string, got {kind_of(question)}")
        elif question.strip():
            questions.append(question.strip())
        else:
            left_out.add("blank questions")
    if entries is not None and not questions and not check.problems:
        left_out.add("conversations without a question")
    return questions


def _values(value: Any, check: Checker, left_out: LeftOut) -> list[str]:
    """What humans said, of entries with `from` and `value`."""
    questions = []
    for i, entry in enumerate(check.items(value, "conversations") or []):
        at = f"conversations.{i}."
        message = check.mapping(entry, at[:-1])
        if message is None:
            continue
        speaker = check.text(check.required(message, "from", at), f"{at}from")
        text = check.text(check.required(message, "value", at), f"{at}value")
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
    """An exchange with an answer alone occurs in published files; one with neither is a mistake."""
    if "human" in exchange or "assistant" in exchange:
        left_out.add("exchanges without a question")
    else:
        required(check, exchange, "human", f"{at}.")


def recognises(keys: Collection[str]) -> bool:
    return bool({"conversation", "conversations.from", "[].conversations.from", "[].conversation"} & set(keys))


FORMAT = Format(
    name="share_gpt",
    summary="ShareGPT conversations of several turns, one a line; live replies take the assistant's places",
    needs='\'conversation\', a list of {"human", "assistant"}, or \'conversations\', of {"from", "value"}, in every object',
    recognises=recognises,
    load=load,
    aliases=("share_gpt_multi_turn", "share_gpt_zh_multi_turn", "share_gpt_en_multi_turn"),
    order=40,
    options=(MAX_TURNS, SKIP_BAD_LINES, *LENGTHS),
    fetch="common_zh_70k.jsonl or common_en_70k.jsonl from modelscope.cn/datasets/swift/sharegpt",
)
