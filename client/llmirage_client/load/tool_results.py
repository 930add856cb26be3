"""Authored tool results meet live tool calls: the file cannot know the ids that the model gives its calls in this run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_client.choices import ToolResults
from llmirage_client.load.history import Message
from llmirage_client.targets.reply import tool_calls_of

_NO_RESULT = "done"

ChatMessage = Mapping[str, Any]


def fit_results(history: Sequence[ChatMessage], messages: Sequence[ChatMessage], policy: ToolResults) -> list[ChatMessage]:
    """The turn's messages as they follow the history. Only what follows a live reply, or a failed one, is changed: not the
    results of calls that the file itself makes, in the history or in the turn.

    policy: authored: they go as they are. matched: where a turn answers as many calls as the live reply before it made, in
    order, they get the ids of these. fitted: besides, a call that the turn does not answer gets a result, and a result that
    answers no call becomes a message of the user, so that every API accepts the history.
    """
    own = next((place for place, message in enumerate(messages) if message.get("role") == "assistant"), len(messages))
    if own < len(messages):
        return [*fit_results(history, messages[:own], policy), *messages[own:]]
    last = history[-1] if history else None
    said_by_file = last is None or (last.get("role") == "assistant" and not (isinstance(last, Message) and last.live))
    if policy == "authored" or said_by_file:
        return list(messages)
    assert last is not None
    ids = [str(call.get("id")) for call in tool_calls_of(last)] if last.get("role") == "assistant" else []
    results = [message for message in messages if _is_result(message)]
    known = {_answered(result) for result in results} == set(ids)
    if len(results) == len(ids):
        return list(messages) if known else _renamed(messages, ids)
    return list(messages) if policy == "matched" else _fitted(messages, results, ids)


def _renamed(messages: Sequence[ChatMessage], ids: Sequence[str]) -> list[ChatMessage]:
    left = iter(ids)
    return [_answering(message, next(left)) if _is_result(message) else message for message in messages]


def _fitted(messages: Sequence[ChatMessage], results: Sequence[ChatMessage], ids: Sequence[str]) -> list[ChatMessage]:
    """Results come first, one for each call."""
    fitted = [_answering(result, id_) for result, id_ in zip(results, ids, strict=False)]
    fitted += [{"role": "tool", "tool_call_id": id_, "content": _NO_RESULT} for id_ in ids[len(results) :]]
    spare = [{"role": "user", "content": result.get("content") or result.get("output")} for result in results[len(ids) :]]
    return [*fitted, *spare, *[message for message in messages if not _is_result(message)]]


def _is_result(message: ChatMessage) -> bool:
    return message.get("role") == "tool" or message.get("type") == "function_call_output"


def _answered(result: ChatMessage) -> str:
    return str(result.get("call_id") if "type" in result else result.get("tool_call_id"))


def _answering(result: ChatMessage, call_id: str) -> ChatMessage:
    return {**result, ("call_id" if "type" in result else "tool_call_id"): call_id}
