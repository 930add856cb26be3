"""A fault: its parameters, and its effect on the events of a response, whichever its API, as steps for the connection."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from llmirage_shared.settings import make_plain, settings_of, under
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import encoded, event, named_event

END = b"\n\n"  # of an event
ENDS = re.compile(rb"\r?\n\r?\n")  # also in other servers' streams
# What reading objects that are not this server's may raise.
OTHER_FORM = (AttributeError, KeyError, TypeError, ValueError, RecursionError)
_TEXT_KEYS = frozenset(
    ("content", "text", "delta", "reasoning_content", "refusal", "arguments", "input", "thinking", "partial_json")
)
_CHAT_TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call", "token_ids")
_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed", "message_delta", "message_stop")


@dataclass(slots=True, frozen=True)
class StreamEvent:
    """raw: its bytes with the blank line. name: of an event that has one. data: its JSON value, None if it has none.

    brings_tokens: it carries part of what the model writes. ends_reply: it comes after the last token. text: what it adds to
    the visible answer.
    """

    raw: bytes
    name: str = ""
    data: Any = None
    brings_tokens: bool = False
    ends_reply: bool = False
    text: str = ""

    def with_data(self, data: Any) -> bytes:
        """Return the bytes of this event with another value."""
        return named_event(self.name, data) if self.name else event(data)


def read_event(raw: bytes) -> StreamEvent:
    """Read an event; one of another form than this server's (a recorded one, for instance) brings nothing.

    raw: with its blank line.
    """
    head, _, written = raw.partition(b"data:")
    name = head[6:].strip().decode("utf-8", "replace") if head.startswith(b"event:") else ""
    if written.strip() == b"[DONE]":
        return StreamEvent(raw, ends_reply=True)
    try:
        return _read(raw, name, json.loads(written))
    except OTHER_FORM:
        return StreamEvent(raw, name)


def _read(raw: bytes, name: str, data: Any) -> StreamEvent:
    """Read an event with these data. Raises OTHER_FORM."""
    if "choices" in data:
        return _of_chat(raw, data)
    kind = data.get("type", "")
    if kind == "content_block_delta":
        return StreamEvent(raw, name, data, brings_tokens=True, text=data["delta"].get("text", ""))
    if kind.endswith(".delta"):
        said = data["delta"] if kind == "response.output_text.delta" else ""
        return StreamEvent(raw, name, data, brings_tokens=True, text=said)
    if "meta_info" in data:  # SGLang's /generate
        ended = data["meta_info"].get("finish_reason") is not None
        return StreamEvent(raw, name, data, brings_tokens=not ended, ends_reply=ended)
    return StreamEvent(raw, name, data, ends_reply=kind in _LAST_EVENTS)


def _of_chat(raw: bytes, data: Any) -> StreamEvent:
    deltas = [choice.get("delta", choice) for choice in data["choices"]]
    said = "".join([delta.get("content") or delta.get("text") or "" for delta in deltas])
    brings = bool(said) or any(delta.get(key) for delta in deltas for key in _CHAT_TEXTS)
    ends = not data["choices"] or any(choice.get("finish_reason") for choice in data["choices"])
    return StreamEvent(raw, "", data, brings_tokens=brings, ends_reply=ends and not brings, text=said)


def with_text(data: Any, change: Callable[[str], str]) -> Any:
    """Return the same JSON value with the model's first text changed; without one, with its first text of any kind."""
    for keys in (_TEXT_KEYS, None):
        changed, found = _change_first(data, change, keys)
        if found:
            return changed
    return data


def _change_first(data: Any, change: Callable[[str], str], keys: frozenset[str] | None) -> tuple[Any, bool]:
    pairs = list(data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ())
    for key, value in pairs:
        if isinstance(value, str):
            if value and (keys is None or key in keys):
                changed, found = change(value), True
            else:
                continue
        else:
            changed, found = _change_first(value, change, keys)
        if found:
            if isinstance(data, dict):
                return {**data, key: changed}, True
            return [*data[:key], changed, *data[key + 1 :]], True
    return data, False


parameter = under("Parameters")


@dataclass(slots=True, frozen=True)
class Pause:
    """Nothing is sent for so long. Cluster time."""

    seconds: float


@dataclass(slots=True, frozen=True)
class Close:
    """The end of the response.

    ended: the body ends as a complete one does; closed: the connection is closed before the body is complete (FIN); reset:
    the connection is reset (RST), and what the client has not read may be lost.
    """

    how: Literal["ended", "closed", "reset"]


@dataclass(slots=True, frozen=True)
class CrashInstance:
    """The instance that serves the request crashes. restart_after_s: None: it does not come back."""

    restart_after_s: float | None


Step = bytes | Pause | Close | CrashInstance
Header = tuple[bytes, bytes]


@dataclass(slots=True)
class SoFar:
    """The part of one response that has passed.

    error_body: an error in the form of the request's API. tokens: events with tokens; text: the answer's text in them.
    sent_bytes: of all events. struck: the fault has happened. response, sequence: of a Responses stream, the last object and
    the number of the last event.
    """

    error_body: Callable[[ApiError], dict[str, Any]]
    tokens: int = 0
    sent_bytes: int = 0
    text: str = ""
    struck: bool = False
    response: Any = None
    sequence: int = 0

    def note(self, event: StreamEvent) -> None:
        self.tokens += event.brings_tokens
        self.sent_bytes += len(event.raw)
        self.text += event.text
        if event.name.startswith("response."):
            self.response = event.data.get("response", self.response)
            self.sequence = event.data.get("sequence_number", self.sequence)


@dataclass(frozen=True, kw_only=True)
class InjectedFault:
    """One fault with its parameters. A subclass says what it changes; what it does not override stays as it is.

    kind: its name. example: as a line of a file of faults. streams_only: whether it needs a streamed reply. exclusive: pairs
    of parameters of which only one may be given.
    """

    kind: ClassVar[str]
    example: ClassVar[str]
    streams_only: ClassVar[bool] = False
    exclusive: ClassVar[Sequence[tuple[str, str]]] = ()

    def __post_init__(self) -> None:
        make_plain(self)

    @property
    def refusal(self) -> ApiError | None:
        """The response that is sent instead of a reply."""
        return None

    @property
    def hold_s(self) -> float:
        """Seconds of cluster time that the request is kept before the cluster gets it."""
        return 0.0

    @property
    def limits(self) -> tuple[int | None, int | None] | None:
        """Requests and tokens per minute and key that replace the server's; None: no others."""
        return None

    def headers(self, headers: Sequence[Header]) -> Sequence[Header]:
        """Return the headers of the response, without content-length, which follows from the body."""
        return headers

    def begin(self) -> Iterable[Step]:
        """Return the steps before the response begins."""
        return ()

    def event(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        """Yield the steps for one event of a streamed reply."""
        yield event.raw

    def whole(self, body: bytes) -> Iterable[Step]:
        """Yield the steps for a reply in one piece."""
        yield body

    def parameters(self) -> dict[str, Any]:
        """Return the parameters by name."""
        return {name: getattr(self, about.field) for name, about in settings_of(type(self)).items()}


@dataclass(frozen=True, kw_only=True)
class FaultAtToken(InjectedFault):
    """A fault that happens once, before the event that brings the next token after `after_tokens` of them.

    A reply that is shorter meets it before its end.
    """

    after_tokens: int = parameter(
        1, "Events with tokens that are sent before it; a shorter reply meets it at its end.", least=0
    )

    def event(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        due = event.brings_tokens and so_far.tokens >= self.after_tokens
        if so_far.struck or not (due or event.ends_reply):
            yield event.raw
        else:
            so_far.struck = True
            yield from self.strike(event, so_far)

    def strike(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        """Yield the steps in place of that event."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class EditedReply(InjectedFault):
    """A fault that changes objects of the reply: each event of a stream, and the body of a reply in one piece."""

    def edit(self, data: Any) -> Any:
        """Return the object as it is sent, None for an event that is left out. data: a fresh copy."""
        raise NotImplementedError

    def event(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        if event.data is None:
            yield event.raw
            return
        try:
            edited = self.edit(event.data)
            renamed = edited.get("type", event.name) if edited and event.name else ""
        except OTHER_FORM:
            yield event.raw
        else:
            if edited is not None:
                yield StreamEvent(b"", renamed).with_data(edited)

    def whole(self, body: bytes) -> Iterable[Step]:
        yield edited_body(body, self.edit)


def edited_body(body: bytes, edit: Callable[[Any], Any]) -> bytes:
    """Return a body of JSON, edited; one of another form as it is."""
    try:
        return encoded(edit(json.loads(body)))
    except OTHER_FORM:
        return body


def duration(default: Any, help: str, **about: Any) -> Any:
    """Declare a parameter in seconds of the cluster's time: at --speed N it takes an Nth of them."""
    return parameter(default, help, **({"least": 0, "most": 86_400} | about))
