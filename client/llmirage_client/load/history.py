"""What a conversation has said so far: kept as chat messages, sent as whatever the run's API wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llmirage_client.choices import ToolResults
from llmirage_client.measure.record import Exchange
from llmirage_client.targets.endpoints.protocol import Endpoint
from llmirage_client.targets.reply import tool_calls_of
from llmirage_client.targets.wire_json import WireObject
from llmirage_client.workload.session import ContextMode, Workload

# Items and blocks of a reply that a forked conversation does not inherit: hosted tools' own, and the model's thoughts.
_SERVER_BUILT = frozenset({
    "web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call", "computer_call", "mcp_call",
    "mcp_list_tools", "mcp_approval_request", "local_shell_call", "reasoning", "thinking", "redacted_thinking",
    "server_tool_use", "web_search_tool_result", "code_execution_tool_result",
})  # fmt: skip

LIVE_MODES = ("accumulate", "server_state", "server_conversation", "tokens")  # live replies become part of the history

Item = Mapping[str, Any]


class Message(WireObject):
    """A chat message of a history. live: a model said it in this run.

    wire_items: the message in the form of an API that has another one; None until it is read. Messages that have a form
    only together, such as the results of several tools, keep it with the first of them.
    """

    __slots__ = ("live", "wire_items")

    def __init__(self, message: Mapping[str, Any], items: Sequence[Item] | None = None, live: bool = False) -> None:
        super().__init__(message)
        self.wire_items = items
        self.live = live


def authored(messages: Sequence[Mapping[str, Any]], endpoint: Endpoint) -> list[Item]:
    """Messages of the file that come together, as one turn's do. Raises ChatTemplateError for what the API cannot carry."""
    added = [Message(message) for message in messages]
    items = endpoint.items(added)
    if endpoint.translates:
        for place, message in enumerate(added):
            message.wire_items = () if place else items
    return [*added]


def items_of(messages: Sequence[Mapping[str, Any]], endpoint: Endpoint) -> list[Item]:
    """The messages as the API's items, translated once."""
    if not endpoint.translates:
        return list(messages)
    items: list[Item] = []
    for message in messages:
        assert isinstance(message, Message)
        if message.wire_items is None:
            message.wire_items = endpoint.items([message])
        items.extend(message.wire_items)
    return items


def forget(history: Sequence[Mapping[str, Any]]) -> None:
    """Frees what is remembered of encodings; who needs one again makes it again."""
    for message in history:
        if isinstance(message, Message):
            message.forget()
            for item in message.wire_items or ():
                if isinstance(item, WireObject):
                    item.forget()


def inherited(history: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A fork child's history: its parent's, but for what servers built into live replies."""
    kept: list[Mapping[str, Any]] = []
    for message in history:
        if isinstance(message, Message) and message.live and message.wire_items is not None:
            items = [item for item in map(_without_server_parts, message.wire_items) if item is not None]
            if not items:
                continue
            if len(items) != len(message.wire_items) or any(
                a is not b for a, b in zip(items, message.wire_items, strict=True)
            ):
                message = Message(message, items, live=True)
        kept.append(message)
    return kept


def _without_server_parts(item: Item) -> Item | None:
    if item.get("type") in _SERVER_BUILT:
        return None
    content = item.get("content")
    if not isinstance(content, list) or not any(_server_built(part) for part in content):
        return item
    kept = [part for part in content if not _server_built(part)]
    return WireObject({**item, "content": kept}) if kept else None


def _server_built(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _SERVER_BUILT


@dataclass(slots=True)
class Thread:
    """What a conversation has said and offered so far.

    on_server: so many messages of the history are with a server that keeps it; response_id: its last reply there.
    fresh_texts: synthetic texts written for it that share nothing.
    """

    history: list[Mapping[str, Any]] = field(default_factory=list)
    tools: Any = None
    response_id: str | None = None
    on_server: int = 0
    fresh_texts: int = 0

    def forked(self, mode: ContextMode) -> Thread:
        """Where a fork begins; mode: of its session."""
        if mode == "server_state":
            return Thread(list(self.history), self.tools, self.response_id, self.on_server)
        return Thread(inherited(self.history), self.tools)

    def add_reply(self, exchange: Exchange, mode: ContextMode) -> None:
        """Appends the live reply to the history, in modes that do; a failed request leaves none."""
        if exchange.error is not None or mode not in LIVE_MODES:
            return
        if exchange.message is not None:
            items = None if exchange.items is None else [WireObject(item) for item in exchange.items]
            self.history.append(Message(exchange.message, items, live=True))
        if mode == "server_state" and exchange.response_id is not None:
            self.response_id = exchange.response_id
            self.on_server = len(self.history)
        elif mode == "server_conversation":
            self.on_server = len(self.history)


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


CONTEXT_MODES: Mapping[str, ContextMode] = {
    "deltas_without_responses": "accumulate",
    "deltas_with_responses": "accumulate_authored",
    "message_array_with_responses": "isolated",
    "server_state": "server_state",
    "server_conversation": "server_conversation",
}
ON_SERVER = ("server_state", "server_conversation")  # the server keeps the history


def in_context_mode(workload: Workload, name: str) -> Workload:
    """The workload with that mode in every session that has messages. Raises ValueError where that makes no sense."""
    mode = CONTEXT_MODES[name]
    sessions = dict(workload.sessions)
    having = [session for session in sessions.values() if session.mode in CONTEXT_MODES.values() and session.turns]
    if not having:
        raise ValueError(
            f"files of the format {workload.format} give whole bodies or token counts, which have no context mode"
        )
    forks = any(branch.kind == "fork" for session in having for turn in session.turns for branch in turn.branches)
    if mode == "isolated" and forks:
        raise ValueError("forked conversations inherit a history, which message arrays do not have")
    sessions |= {session.id: replace(session, mode=mode) for session in having}
    return replace(workload, sessions=sessions)
