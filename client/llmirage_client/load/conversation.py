"""One running conversation: its identifiers, its history, and the request that each of its turns becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmirage_client.load.history import Message, authored, forget, inherited, items_of
from llmirage_client.load.options import RunOptions
from llmirage_client.load.tool_results import fit_results
from llmirage_client.measure.record import BranchMode, Exchange
from llmirage_client.targets.endpoints import Ask, Endpoint, EndpointName, endpoint_named
from llmirage_client.targets.target import Call
from llmirage_client.targets.wire_json import WireObject
from llmirage_client.workload.session import Session, Turn

LIVE_MODES = ("accumulate", "server_state", "server_conversation", "tokens")  # live replies become part of the history


@dataclass(slots=True, eq=False)
class Conversation:
    """An instance of a session: the same session runs as several when roots repeat or parents share a child.

    correlation_id: its own. affinity_id: what a sticky router goes by: a fork child has its parent's. gates: for each turn
    that waits for children, the children. own_turns_done: set when its last turn has its reply, whatever its children do.
    """

    session: Session
    number: int
    correlation_id: str
    affinity_id: str
    root_correlation_id: str
    parent: Conversation | None = None
    depth: int = 0
    history: list[Mapping[str, Any]] = field(default_factory=list)
    tools: Any = None
    gates: dict[int, list[Conversation]] = field(default_factory=dict)
    own_turns_done: asyncio.Event = field(default_factory=asyncio.Event)
    counted: bool = False  # among the children that were spawned
    last_failed: bool = False
    fresh_texts: int = 0  # synthetic texts written for it that share nothing
    branch_mode: BranchMode = "root"
    parent_turn_index: int | None = None  # the parent's turn whose reply started it
    last_turn_index: int | None = None  # the last turn it sent
    response_id: str | None = None  # the last reply of a server that keeps the history itself
    on_server: int = 0  # so many messages of the history are there

    def continue_from(self, parent: Conversation) -> None:
        """Begins where another conversation is now, as a fork does."""
        self.tools = parent.tools
        if self.session.mode == "server_state":
            self.history = list(parent.history)
            self.response_id = parent.response_id
            self.on_server = parent.on_server
        else:
            self.history = inherited(parent.history)

    def append_reply(self, exchange: Exchange) -> None:
        """Threads the live reply into the history; a failed request leaves none."""
        if self.last_turn_index == len(self.session.turns) - 1:
            forget(self.history)  # it goes out no more, but for forks; the bodies of the run are kept and would keep it
        if exchange.error is not None or self.session.mode not in LIVE_MODES:
            return
        if exchange.message is not None:
            items = None if exchange.items is None else [WireObject(item) for item in exchange.items]
            self.history.append(Message(exchange.message, items, live=True))
        if self.session.mode == "server_state" and exchange.response_id is not None:
            self.response_id = exchange.response_id
            self.on_server = len(self.history)
        elif self.session.mode == "server_conversation":
            self.on_server = len(self.history)


def message_call(conversation: Conversation, turn: Turn, options: RunOptions, endpoint: Endpoint) -> Call:
    """The request of a turn that has messages; they stay in the conversation's history."""
    mode = conversation.session.mode
    new: Sequence[Mapping[str, Any]] = turn.messages
    items: list[Mapping[str, Any]]
    if mode in LIVE_MODES:
        # The typed APIs refuse a history in which a call has no result; for chat a file means what it means to AIPerf.
        new = fit_results(
            conversation.history, new, options.tool_results or ("fitted" if endpoint.translates else "authored")
        )
    if mode == "isolated":
        items = [dict(item) for item in endpoint.items(new)]  # sent once: nothing to remember
    else:
        conversation.history.extend(authored(new, endpoint))
        items = items_of(conversation.history[conversation.on_server :], endpoint)
    if turn.tools is not None:
        conversation.tools = endpoint.tools(turn.tools)
    elif mode == "isolated":
        conversation.tools = None
    ask = Ask(
        items,
        turn.model or options.model,
        options.streaming,
        tools=conversation.tools,
        max_tokens=turn.max_tokens,
        legacy_max_tokens=options.use_legacy_max_tokens,
        previous_response_id=conversation.response_id,
        conversation_id=conversation.correlation_id if mode == "server_conversation" else None,
        alone=mode == "isolated" or _only_request(conversation),
    )
    body = endpoint.body(ask)
    if turn.min_tokens is not None and options.knows_ignore_eos and endpoint.knows_ignore_eos:
        body |= {"min_tokens": turn.min_tokens, "ignore_eos": True}
    return finished_call(endpoint, body, turn, options)


def _only_request(conversation: Conversation) -> bool:
    turns = conversation.session.turns
    return len(turns) == 1 and not turns[0].branches and conversation.branch_mode != "fork"


def verbatim_call(turn: Turn, options: RunOptions) -> Call:
    """The turn's payload as the file has it. Where it goes is seen from its keys unless the endpoint type is given."""
    assert turn.payload is not None
    endpoint = endpoint_named(options.endpoint_type or _endpoint_of(turn.payload))
    return _call(endpoint, turn.payload, turn.payload.get("stream") is True, options)


def finished_call(endpoint: Endpoint, body: dict[str, Any], turn: Turn, options: RunOptions) -> Call:
    """Adds what the command line and then the turn say on top, and asks a stream for its usage."""
    body.update(options.extra_inputs)
    body.update(endpoint.extra(turn.extra))
    stream = bool(body.get("stream"))
    wishes = body.get("stream_options")
    if stream and endpoint.asks_for_usage and (wishes is None or isinstance(wishes, dict)):
        body["stream_options"] = {"include_usage": True, **(wishes or {})}
    return _call(endpoint, body, stream, options)


def _call(endpoint: Endpoint, body: Mapping[str, Any], stream: bool, options: RunOptions) -> Call:
    path = options.endpoint_path
    return Call(
        path or endpoint.path,
        body,
        stream=stream,
        new_reply=endpoint.new_reply,
        api=endpoint.name,
        from_root=path is not None,
    )


def _endpoint_of(payload: Mapping[str, Any]) -> EndpointName:
    if "messages" in payload:
        return "chat"
    return "completions" if "prompt" in payload else "responses" if "input" in payload else "chat"


def headers(conversation: Conversation, request_id: str, call: Call, options: RunOptions) -> dict[str, str]:
    return {
        "X-Request-ID": request_id,
        options.session_header or "X-Correlation-ID": conversation.correlation_id,
        "X-Session-Affinity": conversation.affinity_id,
        "Accept": "text/event-stream" if call.stream else "application/json",
    }
