"""Contents of a reply: text, reasoning, tool calls, usage, and the time of each part.

This is what the APIs have in common; each endpoint's module says how its own events and bodies are read. Tool calls of
chat messages include those of the older form, one unnamed `function_call`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from llmirage_client.measure.record import RequestError
from llmirage_client.targets.sse import ESCAPED_BYTE, split_events
from llmirage_client.targets.wire_json import parse


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
        self._read_whole(stamp_s, value)

    def _read_chunk(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        """Take in the object of one event."""
        raise NotImplementedError

    def _read_whole(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        """Take in the object of a reply that was not streamed."""
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
