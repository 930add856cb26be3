"""A reply as a message of the Messages API, whole or as the events of a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from llmirage_server.anthropic.refusals import signed
from llmirage_server.anthropic.server_blocks import ServerCall, ServerTools
from llmirage_server.replies.reply import Part, Reply
from llmirage_server.service.generation import Choice, Generation, said_together
from llmirage_shared.wire.output import escape, named_event, new_id

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_DELTAS = {
    "text": ("text_delta", "text"), "refusal": ("text_delta", "text"), "reasoning": ("thinking_delta", "thinking"),
}  # fmt: skip
_CALL_DELTA = ("input_json_delta", "partial_json")


class MessageWriter:
    """A reply as a message, whole or as the writer of its events.

    A part of the reply is a block; of a call that the API itself makes, two.
    """

    def __init__(
        self,
        model: str,
        choice: Choice,
        generation: Generation,
        usage: Callable[[Mapping[str, Any]], dict[str, Any]],
        server: ServerTools,
        more: Mapping[str, Any],
        shows_thoughts: bool = True,
    ) -> None:
        """usage: that of the API, of chat's. more: fields of the message's end. shows_thoughts: else they are left out."""
        self._model = model
        self._usage_of = usage
        self._server = server
        self._shows_thoughts = shows_thoughts
        self._reply: Reply = choice.reply
        self._joined = choice.joined
        self._generation = generation
        self._id = new_id("msg_")
        self._parts = self._reply.all_parts
        cut = self._reply.finish_reason == "length"
        self._ids = {part.start: new_id("toolu_") for part in self._parts if part.kind == "function_call"}
        self._calls: dict[int, ServerCall] = {}  # by the start of their part
        self._citations: dict[int, list[dict[str, Any]]] = {}
        cited: list[dict[str, Any]] = []
        for part in self._parts:
            if part.kind == "hosted_call":
                call = server.call(part, self._reply.said(part), cut and part is self._parts[-1])
                self._calls[part.start] = call
                if (citation := call.citation()) is not None:
                    cited.append(citation)
            elif part.kind == "text" and cited and part.end > part.start:
                self._citations[part.start], cited = cited, []
        self._more = more
        self._next = 0  # index of the next token's part, or of the part after it
        self._open = -1  # index of the open part
        self._index = -1  # of the open block
        self._delta = (b"", b"")

    def whole(self) -> dict[str, Any]:
        content = []
        for part in self._parts:
            text = self._reply.said(part)
            content.append(self._block(part, text, signed(text) if part.kind == "reasoning" else ""))
            if (result := self._result(part)) is not None:
                content.append(result)
        return {**self._head(), "content": content, **self._stop(), **self._more, "usage": self._usage()}

    def tokens(self, start: int, end: int) -> bytes:
        written = []
        if start == 0:
            usage = {**self._usage(), "output_tokens": 1}
            usage.pop("server_tool_use", None)
            message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
            written.append(message_event({"type": "message_start", "message": message}))
            written.append(message_event({"type": "ping"}))
        for places in said_together(self._parts, start, end, self._joined):
            while self._next < len(self._parts) and places.start >= self._parts[self._next].end:
                written.append(self._end_block())
            if self._next == len(self._parts) or places.start < self._parts[self._next].start:
                continue
            if self._open < self._next:
                written.append(self._begin_block())
            if self._delta[0] and (piece := "".join(self._reply.pieces[places.start : places.stop])):
                written.append(self._delta[0] + escape(piece) + self._delta[1])
        return b"".join(written)

    def ending(self) -> bytes:
        written = []
        while self._next < len(self._parts):
            written.append(self._end_block())
        return b"".join(written)

    def closing(self) -> bytes:
        more = dict(self._more)
        management = {"context_management": more.pop("context_management")} if "context_management" in more else {}
        delta = {"type": "message_delta", "delta": {**self._stop(), **more}, "usage": self._usage(), **management}
        return message_event(delta) + message_event({"type": "message_stop"})

    def _head(self) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model}

    def _stop(self) -> dict[str, Any]:
        reply = self._reply
        reason = _STOP_REASONS.get(reply.finish_reason, "end_turn")
        if any(part.kind == "refusal" for part in reply.parts):
            reason = "refusal"
        if reply.stop_reason is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": reply.stop_reason}

    def _usage(self) -> dict[str, Any]:
        return {**self._usage_of(self._generation.usage(int)), **self._server.usage}

    def _block(self, part: Part, text: str, signature: str = "") -> dict[str, Any]:
        """Return the block with this much of its text."""
        if part.kind in ("text", "refusal"):
            cited = {"citations": self._citations[part.start] if text else []} if part.start in self._citations else {}
            return {"type": "text", "text": text, **cited}
        if part.kind == "reasoning":
            return {"type": "thinking", "thinking": text if self._shows_thoughts else "", "signature": signature}
        try:
            written = json.loads(text) if text else {}
        except ValueError:  # cut by max_tokens
            written = {}
        if (call := self._calls.get(part.start)) is not None:
            return call.use(written)
        return {"type": "tool_use", "id": self._ids.get(part.start, ""), "name": part.name, "input": written}

    def _result(self, part: Part) -> dict[str, Any] | None:
        call = self._calls.get(part.start)
        return None if call is None else call.result()

    def _begin_block(self) -> bytes:
        self._open = self._next
        self._index += 1
        part = self._parts[self._open]
        kind, name = _DELTAS.get(part.kind, _CALL_DELTA)
        place = f'{{"type":"content_block_delta","index":{self._index},"delta":{{"type":"{kind}","{name}":'
        self._delta = (b"event: content_block_delta\ndata: " + place.encode(), b"}}\n\n")
        if part.kind == "reasoning" and not self._shows_thoughts:
            self._delta = (b"", b"")
        return self._started(self._block(part, ""))

    def _started(self, block: dict[str, Any]) -> bytes:
        return message_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _end_block(self) -> bytes:
        written = [self._begin_block()] if self._open < self._next else []
        part = self._parts[self._next]
        deltas = [{"type": "citations_delta", "citation": citation} for citation in self._citations.get(part.start, ())]
        if part.kind == "reasoning":
            deltas.append({"type": "signature_delta", "signature": signed(self._reply.said(part))})
        written += [self._event("content_block_delta", delta=delta) for delta in deltas]
        written.append(self._event("content_block_stop"))
        if (result := self._result(part)) is not None:
            self._index += 1
            written += [self._started(result), self._event("content_block_stop")]
        self._next += 1
        return b"".join(written)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return message_event({"type": kind, "index": self._index, **fields})


def message_event(value: dict[str, Any]) -> bytes:
    """Return an event of a stream, named by its type."""
    return named_event(value["type"], value)
