"""The interface of an API: the request of a turn before it has its form, what its module provides, and its replies."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NamedTuple, Protocol

from llmirage_client.measure.record import RequestError
from llmirage_client.settings import EndpointKind
from llmirage_client.targets.wire_json import parse


@dataclass(slots=True, frozen=True)
class TurnRequest:
    """One request, independent of the API except for items and tools, which already have the API's own form.

    previous_response_id: of the response that this request continues; items are then only the new ones. conversation_id:
    likewise; the client's name of a conversation that ServersTarget creates. alone: it neither continues a request nor
    is continued.
    """

    items: Sequence[Mapping[str, Any]]
    model: str
    stream: bool
    tools: list[Mapping[str, Any]] | None = None
    max_tokens: int | None = None
    legacy_max_tokens: bool = False
    previous_response_id: str | None = None
    conversation_id: str | None = None
    alone: bool = False


class Endpoint:
    """One API. Histories and files are in chat's form; it translates them to its own, and reads its replies.

    path: below the API root. translates: its items are other things than chat's messages.
    exact_kinds: the kinds of servers that take vLLM's `ignore_eos` and `min_tokens` in it.
    key_header: Authorization, where a key goes behind "Bearer", or a header of its own. headers: what else the API wants.
    least_max_tokens: the API refuses lower limits of a reply, unless the body has an engine's field.
    asks_for_usage: a stream reports its usage only when `stream_options` says so.
    """

    name: str
    path: str
    new_reply: type[ReplyReader]
    translates = True
    exact_kinds: tuple[EndpointKind, ...] = ("llmirage", "vllm")
    least_max_tokens = 1
    asks_for_usage = False
    key_header = "Authorization"
    headers: Mapping[str, str] = {}

    def items(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return chat messages that follow each other, as items of this API. One translation need not fit one message."""
        raise NotImplementedError

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return tools of chat's form in this API's."""
        raise NotImplementedError

    def extra(self, extra: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return further parameters that a file gives in chat's words."""
        raise NotImplementedError

    def body(self, request: TurnRequest) -> dict[str, Any]:
        """Return the body of a request; its tools and items are in this API's form already."""
        raise NotImplementedError


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(r"\r\n|\n|\r")
# Atomic groups, so that one CRLF is never taken for two line ends.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")


class Events(NamedTuple):
    """stamps_s[i]: arrival of the last byte of the i-th event (its blank line); data[i]: its data lines joined by LF.

    rest: the data of a last event whose blank line never came, or None; the standard says to drop it.
    Bytes that are not UTF-8 appear as lone surrogates (surrogateescape).
    """

    stamps_s: list[float]
    data: list[str]
    rest: str | None


def split_events(segments: Sequence[tuple[float, bytes]]) -> Events:
    """Return the events of a stream that arrived as segments of (time, bytes), in order; segments may cut it anywhere."""
    stream = b"".join([piece for _, piece in segments])
    start = len(_BYTE_ORDER_MARK) if stream.startswith(_BYTE_ORDER_MARK) else 0
    blank = b"\r\n\r\n" if b"\r" in stream else b"\n\n"
    # The plain case, which is nearly all traffic: every event is one data line. A split, and hardly anything per event.
    if stream.startswith(b"data: ", start) and stream.endswith(blank):
        between = blank + b"data: "
        pieces = stream[start + len(b"data: ") : -len(blank)].split(between)
        joined = b"".join(pieces)
        if b"\n" not in joined and b"\r" not in joined:
            ends = accumulate([len(piece) + len(between) for piece in pieces], initial=start)
            next(ends)
            data = [piece.decode("utf-8", "surrogateescape") for piece in pieces]
            return Events(_stamps(segments, list(ends)), data, None)
    named = _split_named(stream, start, segments) if blank == b"\n\n" else None
    return _split_any(stream, start, segments) if named is None else named


def _split_named(stream: bytes, start: int, segments: Sequence[tuple[float, bytes]]) -> Events | None:
    """Return the other plain case: every event is a line with its name and one data line.

    None where any is something else.
    """
    if not stream.startswith(b"event: ", start) or not stream.endswith(b"\n\n"):
        return None
    pieces = stream[start:-2].split(b"\n\n")
    data: list[str] = []
    for piece in pieces:
        name, found, value = piece.partition(b"\ndata: ")
        if not found or b"\n" in value or b"\n" in name or not name.startswith(b"event: "):
            return None
        data.append(value.decode("utf-8", "surrogateescape"))
    ends = accumulate([len(piece) + 2 for piece in pieces], initial=start)
    next(ends)
    return Events(_stamps(segments, list(ends)), data, None)


def _split_any(stream: bytes, start: int, segments: Sequence[tuple[float, bytes]]) -> Events:
    """Split every other stream: comments, pings, several lines an event, mixed line ends, a stream cut short."""
    ends, data = [], []
    for match in _BLANK_LINE.finditer(stream, start):
        joined = _data_of(stream[start : match.start()])
        start = match.end()
        if joined is not None:
            ends.append(start)
            data.append(joined)
    return Events(_stamps(segments, ends), data, _data_of(stream[start:]))


def _stamps(segments: Sequence[tuple[float, bytes]], ends: list[int]) -> list[float]:
    """Return when the byte before each position of `ends` arrived."""
    times = [time_s for time_s, _ in segments]
    segment_ends = list(accumulate([len(piece) for _, piece in segments]))
    if ends == segment_ends:  # one event a segment
        return times
    return [times[bisect_left(segment_ends, end)] for end in ends]


def _data_of(block: bytes) -> str | None:
    """Return the data lines of one event, joined; None where there is none: comments, pings, an `event:` line alone."""
    lines = []
    for line in _LINE_END.split(block.decode("utf-8", "surrogateescape")):
        name, _, value = line.partition(":")
        if name == "data":
            lines.append(value.removeprefix(" "))
    return "\n".join(lines) if lines else None


# An unescaped "key": in JSON text. Inside a string value both quotes would be escaped, so only a real key matches.
_KEYS = {
    key: re.compile(rf'(?<!\\)"{key}"[ \t\r\n]*:[ \t\r\n]*"')
    for key in ("content", "text", "reasoning_content", "reasoning", "thinking")
}

# A byte that was not UTF-8, as split_events hands it on.
ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


class ChunkModel:
    """The constant bytes around the text of a chunk. `key` is the JSON key that holds the text."""

    __slots__ = ("_after", "_before", "_before_length", "reasoning")

    def __init__(self, before: str, after: str, reasoning: bool) -> None:
        self._before = before
        self._before_length = len(before)
        self._after = after
        self.reasoning = reasoning

    @classmethod
    def of(cls, chunk: str, key: str) -> ChunkModel | None:
        """Return the model of a valid chunk whose text is under `key`; None where that key is not there exactly once."""
        found = list(_KEYS[key].finditer(chunk))
        if len(found) != 1:
            return None
        before = found[0].end()
        _, after = scanstring(chunk, before)
        return cls(chunk[:before], chunk[after - 1 :], key.startswith("reasoning") or key == "thinking")

    def text_of(self, chunk: str) -> str | None:
        """Return the text of a chunk that differs from the model in nothing else; None when it differs."""
        if not chunk.startswith(self._before):
            return None
        try:
            text, end = scanstring(chunk, self._before_length)
        except ValueError:
            return None
        return text if chunk[end - 1 :] == self._after and (chunk.isascii() or not ESCAPED_BYTE.search(text)) else None


class TextModel(Protocol):
    """Knows a chunk that carries a piece of text and nothing else from its bytes, without parsing it."""

    reasoning: bool

    def text_of(self, chunk: str) -> str | None: ...


class ReplyReader:
    """A reply being put together. error: the first thing that was wrong; what was understood is kept all the same.

    items: the reply in its API's own form, as it goes back in the history; None where that is chat's message.
    usage: in the words of chat completions, whatever the API. may_be_empty: a reply without text is no error.
    malformed: the first event that was not JSON, of skipped_events. It matters only if the stream does not end as it should.
    """

    may_be_empty = False

    def __init__(self) -> None:
        self.token_s: list[float] = []
        self.first_output_s: float | None = None
        self.finish_reason: str | None = None
        self.usage: Mapping[str, Any] | None = None
        self.ended = False  # the stream said itself that it is over
        self.error: RequestError | None = None
        self.malformed: RequestError | None = None
        self.skipped_events = 0
        self.response_id: str | None = None
        self.model: str | None = None
        self.items: list[dict[str, Any]] | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._tool_calls: list[dict[str, Any]] = []

    def read_model(self, value: Mapping[str, Any]) -> None:
        """Keep the name of the model that answers, where the object has one."""
        if isinstance(model := value.get("model"), str):
            self.model = model

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def message(self) -> dict[str, Any] | None:
        """Return the assistant message for the history. Reasoning is left out of it, unless there is nothing else."""
        content = self.text or (None if self._tool_calls else self.reasoning)
        if self._tool_calls:
            return {"role": "assistant", "content": content, "tool_calls": self._tool_calls}
        return {"role": "assistant", "content": content} if content else None

    def read_stream(self, segments: Sequence[tuple[float, bytes]]) -> None:
        """Take in an event stream as it arrived."""
        events = split_events(segments)
        model: TextModel | None = None
        token_s, text, reasoning = self.token_s, self._text, self._reasoning
        for stamp_s, chunk in zip(events.stamps_s, events.data, strict=True):
            piece = model.text_of(chunk) if model is not None else None
            if piece is None:
                model = self._read_event(stamp_s, chunk) or model
            elif piece:
                token_s.append(stamp_s)
                if model is not None and model.reasoning:
                    reasoning.append(piece)
                else:
                    text.append(piece)
                    if self.first_output_s is None:
                        self.first_output_s = stamp_s
        if events.rest is not None and _is_complete(events.rest):
            self._read_event(segments[-1][0], events.rest)
        if events.data and events.data[-1] != "[DONE]" and "[DONE]" in events.data:
            self._fail(RequestError(None, "data_after_end", "the stream went on after [DONE]"))

    def read_body(self, stamp_s: float, body: bytes) -> None:
        """Take in a reply that came whole. Raises ValueError when it is not a JSON object."""
        value = parse(body)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        if value.get("error"):
            self._fail(stated_error(value, None, "server_error"))
        else:
            self._read_whole(stamp_s, value)

    def _read_chunk(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        """Take in the object of one event."""
        raise NotImplementedError

    def _read_whole(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        """Take in the object of a reply that was not streamed and is no error."""
        raise NotImplementedError

    def _text_model(self, chunk: str, value: Mapping[str, Any]) -> TextModel | None:
        """Return a model for the events after this one, if it carried text and nothing else."""
        return None

    def _read_event(self, stamp_s: float, chunk: str) -> TextModel | None:
        if chunk == "[DONE]":
            self.ended = True
            return None
        try:
            value = parse(chunk)
        except ValueError:
            value = None
        if not isinstance(value, dict) or ESCAPED_BYTE.search(chunk):
            if chunk.strip():
                self._skip(chunk)
            return None
        self._read_chunk(stamp_s, value)
        return self._text_model(chunk, value)

    def _skip(self, chunk: str) -> None:
        self.skipped_events += 1
        if self.malformed is None:
            excerpt = chunk[:80].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            self.malformed = RequestError(
                None, "malformed_stream", f"an event of the stream is not a JSON object: {excerpt!r}"
            )

    def _fail(self, error: RequestError) -> None:
        if self.error is None:
            self.error = error

    def _note_arrival(self, stamp_s: float, output: bool, carried: bool = True) -> None:
        """Note the time of a part of the reply. output: it was no reasoning."""
        if carried:
            self.token_s.append(stamp_s)
        if output and self.first_output_s is None:
            self.first_output_s = stamp_s


def stated_error(value: Any, status: int | None, kind: str) -> RequestError:
    """Return the error an endpoint reports in a JSON body, in the forms of OpenAI, vLLM, FastAPI and plain gateways."""
    found = value
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    error = value.get("error") if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if status is None and isinstance(code, int):
        status = code
    return RequestError(status, kind, text)


def _is_complete(chunk: str) -> bool:
    """Return whether a stream's last event is complete; some servers leave out its blank line."""
    try:
        return chunk == "[DONE]" or isinstance(parse(chunk), dict)
    except ValueError:
        return False


def text_of(value: Any) -> str:
    """Return the text of a content field: a string, or a list of parts."""
    if isinstance(value, str):
        return value
    return "".join(text_of(part.get("text")) for part in dicts(value))


def kind_of(value: Mapping[str, Any]) -> str:
    """Return the `type` of an event, an item or a block."""
    kind = value.get("type")
    return kind if isinstance(kind, str) else ""


def dicts(value: Any) -> list[dict[str, Any]]:
    """Return the JSON objects of a list; none of another value."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def tool_calls_of(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the calls an assistant message makes; an old one gets its function's name as its id."""
    calls: list[Mapping[str, Any]] = [*dicts(message.get("tool_calls"))]
    old = message.get("function_call")
    if isinstance(old, Mapping):
        calls.append({"id": f"call_{old.get('name')}", "type": "function", "function": old})
    return calls


def tool_result_id(message: Mapping[str, Any]) -> str:
    """Return which call a message of the role tool, or of the older function, answers."""
    return str(message.get("tool_call_id") or f"call_{message.get('name')}")
