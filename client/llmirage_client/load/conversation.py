"""One running conversation: its identifiers, its history, and the request that each of its turns becomes."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.record import BranchMode, Exchange
from llmirage_client.targets.target import Call
from llmirage_client.workload.session import Session, Turn

CHAT_PATH = "/chat/completions"
COMPLETIONS_PATH = "/completions"


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

    def append_reply(self, exchange: Exchange) -> None:
        """Threads the live reply into the history; a failed request leaves none."""
        if self.session.mode in ("accumulate", "tokens") and exchange.error is None and exchange.message is not None:
            self.history.append(exchange.message)


class Identifiers:
    """Names conversations and requests: UUIDs that depend on the seed and on their place in the run, not on its timing."""

    def __init__(self, seed: int | None) -> None:
        self._seed = uuid.uuid4().hex if seed is None else f"seed {seed}"

    def make(self, *place: object) -> str:
        digest = hashlib.blake2b("/".join(map(str, (self._seed, *place))).encode(), digest_size=16).digest()
        return str(uuid.UUID(bytes=digest, version=4))


def message_call(conversation: Conversation, turn: Turn, options: RunOptions) -> Call:
    """The chat request of a turn that has messages; they stay in the conversation's history."""
    if conversation.session.mode == "isolated":
        messages = list(turn.messages)
    else:
        conversation.history.extend(turn.messages)
        messages = list(conversation.history)
    if turn.tools is not None:
        conversation.tools = turn.tools
    body: dict[str, Any] = {"messages": messages, "model": turn.model or options.model, "stream": options.streaming}
    if conversation.tools is not None:
        body["tools"] = conversation.tools
    if turn.max_tokens is not None:
        body["max_tokens" if options.use_legacy_max_tokens else "max_completion_tokens"] = turn.max_tokens
    if turn.min_tokens is not None and options.knows_ignore_eos:
        body |= {"min_tokens": turn.min_tokens, "ignore_eos": True}
    return finished_call(CHAT_PATH, body, turn, options)


def verbatim_call(turn: Turn, options: RunOptions) -> Call:
    """The turn's payload as the file has it. Where it goes is seen from its keys unless the endpoint type is given."""
    assert turn.payload is not None
    text_prompt = "prompt" in turn.payload and "messages" not in turn.payload
    completions = options.endpoint_type == "completions" or (options.endpoint_type is None and text_prompt)
    return Call(COMPLETIONS_PATH if completions else CHAT_PATH, turn.payload, stream=turn.payload.get("stream") is True)


def finished_call(path: str, body: dict[str, Any], turn: Turn, options: RunOptions) -> Call:
    """Adds what the command line and then the turn say on top, and asks a stream for its usage."""
    body.update(options.extra_inputs)
    body.update(turn.extra)
    stream = body.get("stream") is True
    if stream:
        body["stream_options"] = {"include_usage": True, **(body.get("stream_options") or {})}
    else:
        body.pop("stream_options", None)
    return Call(path, body, stream=stream)


def headers(conversation: Conversation, request_id: str, call: Call, options: RunOptions) -> dict[str, str]:
    return {
        "X-Request-ID": request_id,
        options.session_header or "X-Correlation-ID": conversation.correlation_id,
        "X-Session-Affinity": conversation.affinity_id,
        "Accept": "text/event-stream" if call.stream else "application/json",
    }
