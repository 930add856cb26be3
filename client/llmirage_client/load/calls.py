"""The request that a turn of a conversation becomes: its body and its headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_client.load.conversation import Conversation
from llmirage_client.load.history import LIVE_MODES, Thread, authored, items_of
from llmirage_client.load.options import RunOptions
from llmirage_client.load.tool_results import fit_results
from llmirage_client.targets.endpoints import Endpoint, EndpointName, TurnRequest, endpoint_named
from llmirage_client.targets.target import Call
from llmirage_client.workload.session import Turn, Workload
from llmirage_shared.wire.refusals import ENGINE_FIELDS

_EXACT_FIELDS = ("min_tokens", "ignore_eos")


@dataclass(slots=True, frozen=True)
class Planned:
    """A turn's request and how many tokens it has and asks for, where the workload or our own count says so."""

    call: Call
    input_tokens: int | None = None
    output_tokens: int | None = None


def thread_of(conversation: Conversation) -> Thread:
    """What the conversation has said so far; of a new one, nothing."""
    if conversation.thread is None:
        conversation.thread = Thread()
    return conversation.thread


def message_call(conversation: Conversation, turn: Turn, options: RunOptions, endpoint: Endpoint) -> Call:
    """The request of a turn that has messages; they stay in the conversation's thread."""
    mode, thread = conversation.session.mode, thread_of(conversation)
    new: Sequence[Mapping[str, Any]] = turn.messages
    items: list[Mapping[str, Any]]
    if mode in LIVE_MODES:
        # The typed APIs refuse a history in which a call has no result; for chat a file means what it means to AIPerf.
        new = fit_results(thread.history, new, options.tool_results or ("fitted" if endpoint.translates else "authored"))
    if mode == "isolated":
        items = [dict(item) for item in endpoint.items(new)]  # sent once: nothing to remember
    else:
        thread.history.extend(authored(new, endpoint))
        items = items_of(thread.history[thread.on_server :], endpoint)
    if turn.tools is not None:
        thread.tools = endpoint.tools(turn.tools)
    elif mode == "isolated":
        thread.tools = None
    request = TurnRequest(
        items,
        turn.model or options.model,
        options.streaming,
        tools=thread.tools,
        max_tokens=limit_of(turn, endpoint, options),
        legacy_max_tokens=options.use_legacy_max_tokens,
        previous_response_id=thread.response_id,
        conversation_id=conversation.correlation_id if mode == "server_conversation" else None,
        alone=mode == "isolated" or _only_request(conversation),
    )
    body = endpoint.body(request) | engine_fields(turn, endpoint, options, turn.min_tokens)
    return finished_call(endpoint, body, turn, options)


def limit_of(turn: Turn, endpoint: Endpoint, options: RunOptions) -> int | None:
    """The limit of a turn's reply that goes out: what the API takes at least, where no field of an engine goes beside it."""
    limit = turn.limit
    if limit is None or options.knows_ignore_eos or _is_for_engine(turn, options):
        return limit
    return max(limit, endpoint.least_max_tokens)


def engine_fields(turn: Turn, endpoint: Endpoint, options: RunOptions, exactly: int | None) -> dict[str, int | bool]:
    """Fields of engines for a reply of `exactly` so many tokens, or for a limit that the API alone would refuse."""
    if options.endpoint_kind not in endpoint.exact_kinds:
        return {}
    if exactly is not None:
        return {"min_tokens": exactly, "ignore_eos": True}
    return {"min_tokens": 0} if turn.limit is not None and turn.limit < endpoint.least_max_tokens else {}


def short_limits(workload: Workload, options: RunOptions) -> tuple[int, int]:
    """How many turns have a limit that the API alone refuses, and the least that it takes."""
    least = endpoint_named(options.endpoint_type or "chat").least_max_tokens
    turns = [turn for session in workload.sessions.values() for turn in session.turns]
    return sum(1 for turn in turns if (turn.limit or least) < least and not _is_for_engine(turn, options)), least


def _is_for_engine(turn: Turn, options: RunOptions) -> bool:
    return not (ENGINE_FIELDS.isdisjoint(turn.extra) and ENGINE_FIELDS.isdisjoint(options.extra_inputs))


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
    if options.endpoint_kind in endpoint.exact_kinds:
        body.update({name: turn.extra[name] for name in _EXACT_FIELDS if name in turn.extra})
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
