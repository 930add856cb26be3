"""Completions as they are sent: ids, the usage object, and the chunks of a stream from byte templates.

The bytes around a token's text are the same for all chunks of a choice, so a chunk is head + text as JSON + tail. Text and
tail are made once for a token of the vocabulary, with the padding of that text. Several chunks are one join with the head
between them: a token costs one dictionary look-up and one copy.
"""

from __future__ import annotations

import json
import os
import re
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

DONE = b"data: [DONE]\n\n"

# Lengths of `obfuscation` in recorded streams of the OpenAI API: a chat chunk without the field, in characters of JSON, and
# the delta of a Responses event, in characters of text, are each followed by as many as are missing to a multiple of 16.
_PADDED_TO = 16
_PADDING = "".join(Random("obfuscation").choices(string.ascii_letters + string.digits, k=_PADDED_TO - 1))
_PADDED_ENDS = tuple(f',"obfuscation":"{_PADDING[:missing]}"}}\n\n'.encode() for missing in range(_PADDED_TO))
_OBFUSCATION = re.compile(rb',"obfuscation":"\w*"(\}\n\n)')
_BLANK = len(b"\n\n")
_DATA = len(b"data: ")

json_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=list).encode
"""Return JSON as the API and models write it: no spaces, characters as they are."""
_ESCAPED_LIMIT = 200_000  # pieces are tokens of one vocabulary: only echoed prompts reach this limit
_escaped: dict[str, bytes] = {}


def new_id(prefix: str) -> str:
    """Return a new id: the prefix and 24 hexadecimal digits."""
    return prefix + os.urandom(12).hex()


def new_call_id() -> str:
    """Return a new id of a tool call."""
    return new_id("call_")


@dataclass(slots=True)
class ResponseHead:
    """The fields that an object and every chunk of one response repeat. created: seconds since the epoch."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str = "default"

    def whole(self, kind: str, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        """Return the object of a whole response, or of the last chunk of a stream."""
        tier = {"service_tier": self.service_tier} if kind.startswith("chat") else {}
        start = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        return {**start, "usage": usage, **tier, "system_fingerprint": self.system_fingerprint}


@dataclass(slots=True)
class FinishedChoice:
    """One complete choice. message: fields of chat's message beside role and text."""

    text: str
    finish_reason: str
    stop_reason: str | int | None = None  # vLLM: the stop string or the stop token that ended it
    message: dict[str, Any] | None = None
    logprobs: dict[str, Any] | None = None
    token_ids: list[int] | None = None
    more: dict[str, Any] | None = None  # other keys of the choice

    def ending(self) -> dict[str, Any]:
        """Return the last keys of the choice's object."""
        keys: dict[str, Any] = {"finish_reason": self.finish_reason, "stop_reason": self.stop_reason}
        if self.token_ids is not None:
            keys["token_ids"] = self.token_ids
        return keys | (self.more or {})


def usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int = 0, audio_tokens: int = 0
) -> dict[str, Any]:
    """Return the usage object. cached_tokens: prompt tokens found in the prefix cache; audio_tokens: those of sounds."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens, "audio_tokens": audio_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def reported(usage: dict[str, Any], *, reasoning: bool, cached: bool) -> dict[str, Any]:
    """Return the usage object with SGLang's `reasoning_tokens`, too; cached: with the details of the prompt's tokens."""
    if reasoning:
        usage["reasoning_tokens"] = usage["completion_tokens_details"]["reasoning_tokens"]
    return usage if cached else {**usage, "prompt_tokens_details": None}


def escape(text: str) -> bytes:
    """Return `text` as a JSON string in UTF-8 with its quotes. Cached."""
    known = _escaped.get(text)
    if known is None:
        if len(_escaped) >= _ESCAPED_LIMIT:
            _escaped.clear()
        known = _escaped[text] = json_text(text).encode()
    return known


def encoded(value: Any) -> bytes:
    """Return a value as JSON in UTF-8."""
    return json_text(value).encode()


def event(value: dict[str, Any]) -> bytes:
    """Return one event of a stream."""
    return b"data: " + json_text(value).encode() + b"\n\n"


def named_event(kind: str, value: dict[str, Any]) -> bytes:
    """Return one event of a stream whose events have names."""
    return b"event: " + kind.encode() + b"\ndata: " + json_text(value).encode() + b"\n\n"


EVENT_END = re.compile(rb"\r?\n\r?\n|\r\r")  # also in other servers' streams


class EventSplitter:
    """Collects the bytes of a stream; `rest` is the part of an event that has not ended."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that end in these bytes, with the blank lines that end them."""
        searched = max(0, len(self.rest) - 3)
        self.rest += data
        events = []
        start = 0
        for match in EVENT_END.finditer(self.rest, searched):
            events.append(self.rest[start : match.end()])
            start = match.end()
        self.rest = self.rest[start:]
        return events


def padded(event: bytes) -> bytes:
    """Return an event without a name, with the field at its end."""
    return padded_end(event, -_DATA)


def padded_length(head: bytes) -> int:
    """Return the length of the beginning of an event, modulo the step of lengths."""
    return (len(head.decode()) - _DATA) % _PADDED_TO


def padded_end(end: bytes, length: int) -> bytes:
    """Return the end of an event with the field. length: characters of its object before this end."""
    length += (len(end) if end.isascii() else len(end.decode())) - _BLANK
    return end[: -1 - _BLANK] + _PADDED_ENDS[-length % _PADDED_TO]


def after_delta(delta: str) -> bytes:
    """Return the end of an event with a delta: the field, the brace that closes the object, a blank line."""
    return _PADDED_ENDS[-len(delta) % _PADDED_TO]


def delta_padded(event: bytes, delta: str) -> bytes:
    """Return an event with its delta's padding."""
    return event[: -1 - _BLANK] + after_delta(delta)


def without_padding(event: bytes) -> bytes:
    """Return an event without the field."""
    return _OBFUSCATION.sub(rb"\1", event)


@dataclass(slots=True)
class ChunkFrame:
    """The bytes around the object of one choice in its chunks.

    said, silent: more keys of the choice, each after a comma, in chunks that bring text and in all others.
    """

    start: bytes  # up to and including the choice's index
    end: bytes  # after the choice
    obfuscated: bool = False
    said: bytes = b""
    silent: bytes = b""

    def with_keys(self, said: bytes, silent: bytes) -> ChunkFrame:
        return replace(self, said=said, silent=silent)

    def finished(self, chunk: bytes) -> bytes:
        """Return the chunk, with padding if it is to have one."""
        return padded(chunk) if self.obfuscated else chunk

    def chunk(self, choice: bytes, usage: bytes | None = None, more: bytes = b"", says: bool = True) -> bytes:
        """Return a chunk around the JSON object of a choice without its index.

        usage: the usage object of this chunk.
        more: other keys of the chunk, each after a comma.
        says: it brings text.
        """
        end = self.end if usage is None else b'],"usage":' + usage + b"}\n\n"
        if more:
            end = b"]" + more + end[1:]
        return self.finished(self.start + (self.said if says else self.silent) + b"," + choice[1:] + end)


def chunk_frame(head: ResponseHead, kind: str, index: int, include_usage: bool, obfuscated: bool = False) -> ChunkFrame:
    """Return the frame of one choice of a streamed completion. kind: the object type of its chunks."""
    extra = f'"service_tier":"{head.service_tier}",' if kind.startswith("chat") else ""
    of_response = f'data: {{"id":{json_text(head.id)},"object":"{kind}","created":{head.created},"model":'.encode()
    of_choice = f'"choices":[{{"index":{index}'.encode()
    fingerprint = extra.encode() + b'"system_fingerprint":' + escape(head.system_fingerprint)
    start = of_response + escape(head.model) + b"," + fingerprint + b"," + of_choice
    return ChunkFrame(start, b'],"usage":null}\n\n' if include_usage else b"]}\n\n", obfuscated)


def stream_end(
    head: ResponseHead,
    kind: str,
    usage: Callable[[], dict[str, Any]] | None,
    more: Callable[[], dict[str, Any]] = dict,
    obfuscated: bool = False,
) -> bytes:
    """Return the end of a stream.

    usage: of the chunk without choices before [DONE], with include_usage.
    more: keys of the whole response, in a chunk of their own before that one.
    """
    found = more()
    data = event(head.whole(kind, [], None) | found) if found else b""
    if usage is not None:
        last = event(head.whole(kind, [], usage()))
        data += padded(last) if obfuscated else last
    return data + DONE


@dataclass(slots=True, frozen=True)
class ChunkForm:
    """The bytes of a choice's object after its index, in one API."""

    text: bytes  # before a token's text
    text_close: bytes  # after it, before a finish_reason
    opening: bytes  # the whole object of an opening chunk; empty without one
    ending: bytes  # the object of the last chunk, before its finish_reason


CHAT_FORM = ChunkForm(
    text=b',"delta":{"content":',
    text_close=b'},"logprobs":null,',
    opening=b',"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}',
    ending=b',"delta":{},"logprobs":null,',
)
TEXT_FORM = ChunkForm(text=b',"text":', text_close=b',"logprobs":null,', opening=b"", ending=b',"text":"","logprobs":null,')


class _ChunkEnds(dict[str, bytes]):
    """The bytes after the head of a chunk, by the text of a token: the text as JSON and the rest of the chunk, padded."""

    def __init__(self, tail: bytes, length: int | None) -> None:
        """Create the ends of one tail. length: of a chunk's head in characters, None without padding."""
        self._tail = tail
        self._length = length

    def __missing__(self, piece: str) -> bytes:
        if len(self) >= _ESCAPED_LIMIT:
            self.clear()
        made = self[piece] = self.of(json_text(piece).encode())
        return made

    def of(self, text: bytes) -> bytes:
        """Return the end for `text`, given as JSON."""
        end = text + self._tail
        return end if self._length is None else padded_end(end, self._length)


_ends: dict[tuple[bytes, int | None], _ChunkEnds] = {}  # few: heads differ in length, and only modulo the padding's step


def _chunk_ends(head: bytes, tail: bytes, obfuscated: bool) -> _ChunkEnds:
    length = padded_length(head) if obfuscated else None
    found = _ends.get((tail, length))
    if found is None:
        found = _ends[tail, length] = _ChunkEnds(tail, length)
    return found


class PlainWriter:
    """The writer of the chunks of a choice that is text alone: the fast path."""

    __slots__ = (
        "_close",
        "_echo",
        "_ending",
        "_ends",
        "_frame",
        "_head",
        "_held",
        "_joined",
        "_opening",
        "_pieces",
        "_total",
    )

    def __init__(
        self,
        frame: ChunkFrame,
        form: ChunkForm,
        pieces: Sequence[str],
        finish_reason: str,
        stop_reason: str | int | None,
        *,
        echo: str = "",
        joined: bool = False,
        ends_with_token: bool = False,
    ) -> None:
        """Create the writer of one choice.

        pieces: the text of each token, "" where it shows nothing.
        echo: text before the first token.
        joined: tokens that come together leave in one chunk.
        ends_with_token: the last of them has the finish reason.
        """
        self._pieces = pieces
        self._echo = echo
        self._joined = joined
        self._head = frame.start + frame.said + form.text
        self._frame = frame
        self._ends = _chunk_ends(self._head, form.text_close + b'"finish_reason":null}' + frame.end, frame.obfuscated)
        self._opening = frame.finished(frame.start + frame.silent + form.opening + frame.end) if form.opening else b""
        reasons = b'"finish_reason":' + escape(finish_reason)
        if stop_reason is not None:
            reasons += b',"stop_reason":' + json_text(stop_reason).encode()
        self._total = len(pieces) if ends_with_token else -1
        self._held = b'""'  # the text of the last chunk, which waits for the finish reason
        self._close = form.text_close + reasons + b"}" + frame.end
        self._ending = frame.finished(frame.start + frame.silent + form.ending + reasons + b"}" + frame.end)

    def tokens(self, start: int, end: int) -> bytes:
        """Return the chunks of tokens [start, end)."""
        if end == self._total:
            held = start if self._joined else end - 1
            self._held = self._text(held, end)
            end = held
        if end - start == 1:
            piece = self._pieces[start]
            data = self._head + self._ends[piece] if piece else b""
        elif self._joined:  # as engines send the tokens of one speculative step
            text = self._text(start, end)
            data = self._head + self._ends.of(text) if len(text) > 2 else b""
        else:
            data = self._chunks(self._pieces[start:end])
        if start == 0:
            echo = self._head + self._ends.of(json_text(self._echo).encode()) if self._echo else b""
            data = self._opening + echo + data
        return data

    def ending(self) -> bytes:
        """Return the chunk with the finish reason."""
        return self._ending if self._total < 0 else self._frame.finished(self._head + self._held + self._close)

    def _text(self, start: int, end: int) -> bytes:
        """Return the text of tokens [start, end) as one JSON string."""
        return b'"' + b"".join([escape(piece)[1:-1] for piece in self._pieces[start:end]]) + b'"'

    def _chunks(self, pieces: Iterable[str]) -> bytes:
        ends = self._ends
        shown = [ends[piece] for piece in pieces if piece]
        return self._head + self._head.join(shown) if shown else b""
