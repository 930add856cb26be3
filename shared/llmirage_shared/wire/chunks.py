"""Server-sent events of a stream from byte templates: what surrounds a token's text is the same for a whole choice.

A chunk is head + text as JSON + tail. Several chunks are one join with tail + head between the texts, so the cost of a token
is one dictionary look-up and one copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llmirage_shared.wire.responses import Head

DONE = b"data: [DONE]\n\n"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_ESCAPED_LIMIT = 200_000  # pieces are tokens of one vocabulary, so this is only ever reached by echoed prompts
_escaped: dict[str, bytes] = {}


def escape(text: str) -> bytes:
    """`text` as a JSON string in UTF-8, quotes included; remembered."""
    known = _escaped.get(text)
    if known is None:
        if len(_escaped) >= _ESCAPED_LIMIT:
            _escaped.clear()
        known = _escaped[text] = _encode(text).encode()
    return known


def encoded(value: dict[str, Any]) -> bytes:
    """A value as JSON in UTF-8."""
    return _encode(value).encode()


def event(value: dict[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: " + _encode(value).encode() + b"\n\n"


@dataclass(slots=True, frozen=True)
class ChunkTemplate:
    """The bytes of one choice's stream."""

    opening: bytes  # leaves together with the first token
    head: bytes
    tail: bytes
    joint: bytes  # tail + head
    ending_head: bytes  # + finish_reason, stop_reason + ending_tail
    ending_tail: bytes

    def chunks(self, pieces: Iterable[str]) -> bytes:
        """One chunk for each piece that shows something."""
        known = _escaped
        try:
            body = self.joint.join([known[piece] for piece in pieces if piece])
        except KeyError:
            body = self.joint.join([escape(piece) for piece in pieces if piece])
        return self.head + body + self.tail if body else b""

    def joined(self, pieces: Iterable[str]) -> bytes:
        """One chunk for all pieces together; none if they show nothing."""
        body = b"".join([escape(piece)[1:-1] for piece in pieces])
        return self.head + b'"' + body + b'"' + self.tail if body else b""

    def ending(self, finish_reason: str, stop_reason: str | int | None) -> bytes:
        """The chunk that says why the choice ended."""
        reasons = b'"finish_reason":' + escape(finish_reason)
        if stop_reason is not None:
            reasons += b',"stop_reason":' + _encode(stop_reason).encode()
        return self.ending_head + reasons + self.ending_tail


@dataclass(slots=True, frozen=True)
class StreamTemplate:
    """The bytes of one response's stream, before the index of a choice is known."""

    start: bytes  # up to and including "index":
    end: bytes  # what follows the choice
    text: bytes  # between the index and a token's text
    text_end: bytes  # after a token's text, finish_reason null included
    opening: bytes | None  # the whole choice of an opening chunk, after the index
    ending: bytes  # between the index and finish_reason

    def choice(self, index: int) -> ChunkTemplate:
        front = self.start + str(index).encode()
        tail = self.text_end + self.end
        head = front + self.text
        return ChunkTemplate(
            opening=b"" if self.opening is None else front + self.opening + self.end,
            head=head,
            tail=tail,
            joint=tail + head,
            ending_head=front + self.ending,
            ending_tail=b"}" + self.end,
        )


def _frame(head: Head, kind: str, extra: str, include_usage: bool) -> tuple[bytes, bytes]:
    start = (
        f'data: {{"id":{_encode(head.id)},"object":"{kind}","created":{head.created},"model":{_encode(head.model)},{extra}'
        f'"system_fingerprint":{_encode(head.system_fingerprint)},"choices":[{{"index":'
    )
    return start.encode(), b'],"usage":null}\n\n' if include_usage else b"]}\n\n"


@dataclass(slots=True, frozen=True)
class ChoiceFrame:
    """What surrounds the object of one choice in its chunks."""

    start: bytes  # up to and including "index": and the index
    end: bytes  # after the choice

    def chunk(self, choice: bytes, usage: bytes | None = None, more: bytes = b"") -> bytes:
        """A chunk around the JSON object of a choice without its index; with `usage` as the usage of this chunk.

        more: other keys of the chunk, each with a comma before it.
        """
        end = self.end if usage is None else b'],"usage":' + usage + b"}\n\n"
        if more:
            end = b"]" + more + end[1:]
        return self.start + b"," + choice[1:] + end


def chat_frame(head: Head, index: int, include_usage: bool) -> ChoiceFrame:
    """The frame of the chunks of one choice of a streamed chat completion."""
    start, end = _frame(head, "chat.completion.chunk", f'"service_tier":"{head.service_tier}",', include_usage)
    return ChoiceFrame(start + str(index).encode(), end)


def text_frame(head: Head, index: int, include_usage: bool) -> ChoiceFrame:
    """The frame of the chunks of one choice of a streamed text completion."""
    start, end = _frame(head, "text_completion", "", include_usage)
    return ChoiceFrame(start + str(index).encode(), end)


def chat_stream(head: Head, include_usage: bool) -> StreamTemplate:
    """Chunks of a streamed chat completion."""
    start, end = _frame(head, "chat.completion.chunk", f'"service_tier":"{head.service_tier}",', include_usage)
    return StreamTemplate(
        start=start,
        end=end,
        text=b',"delta":{"content":',
        text_end=b'},"logprobs":null,"finish_reason":null}',
        opening=b',"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}',
        ending=b',"delta":{},"logprobs":null,',
    )


def text_stream(head: Head, include_usage: bool) -> StreamTemplate:
    """Chunks of a streamed text completion."""
    start, end = _frame(head, "text_completion", "", include_usage)
    return StreamTemplate(
        start=start,
        end=end,
        text=b',"text":',
        text_end=b',"logprobs":null,"finish_reason":null}',
        opening=None,
        ending=b',"text":"","logprobs":null,',
    )


def usage_event(head: Head, kind: str, usage: dict[str, Any]) -> bytes:
    """The last chunk before [DONE] when include_usage was asked for: no choices, only usage."""
    value: dict[str, Any] = {"id": head.id, "object": kind, "created": head.created, "model": head.model}
    if kind == "chat.completion.chunk":
        value["service_tier"] = head.service_tier
    value |= {"system_fingerprint": head.system_fingerprint, "choices": [], "usage": usage}
    return event(value)
