"""The kinds of faults: requests are refused, replies altered as a whole, streams stall, break off or have wrong events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from llmirage_server.faults.fault import (
    END,
    Close,
    CrashInstance,
    EditedReply,
    FaultAtToken,
    Header,
    InjectedFault,
    Pause,
    SoFar,
    Step,
    StreamEvent,
    duration,
    edited_body,
    parameter,
    with_text,
)
from llmirage_shared.settings import ConfigError
from llmirage_shared.wire.errors import INVALID_REQUEST, ApiError
from llmirage_shared.wire.output import event, named_event

# What the OpenAI API says with a status: type, code, message. https://platform.openai.com/docs/guides/error-codes
_SAID: dict[int, tuple[str, str | None, str]] = {
    401: (INVALID_REQUEST, "invalid_api_key", "Incorrect API key provided."),
    404: (INVALID_REQUEST, "model_not_found", "The model does not exist or you do not have access to it."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached. Please try again later."),
    500: ("server_error", None, "The server had an error while processing your request. Sorry about that!"),
    503: ("server_error", "service_unavailable", "The engine is currently overloaded, please try again later."),
    529: ("server_error", "overloaded", "Overloaded."),
}


def _text_problem(text: str | None) -> str | None:
    return None if text is None or text.isprintable() else "must be of printable characters"


@dataclass(frozen=True, kw_only=True)
class StatusFault(InjectedFault):
    """An error response with this status, in the form of the API, instead of the reply."""

    kind = "status"
    example = "{kind: status, status: 429, retry_after_s: 2, times: 2}"

    status: int = parameter(500, "HTTP status.", least=400, most=599)
    retry_after_s: float | None = parameter(
        None, "Retry-After of the response, in seconds of the client's clock.", unset="none", least=0, most=86_400
    )
    message: str | None = parameter(None, "The error's message.", unset="that of the OpenAI API", check=_text_problem)
    code: str | None = parameter(None, "The error's code.", unset="that of the OpenAI API", check=_text_problem)

    @property
    def refusal(self) -> ApiError:
        return error_of_status(self.status, self.message, self.code, self.retry_after_s)


@dataclass(frozen=True, kw_only=True)
class AddedTtft(InjectedFault):
    """The request reaches the cluster so much later: the time to the first token grows by it."""

    kind = "ttft"
    example = "{kind: ttft, added_s: 5, probability: 0.1}"

    added_s: float = duration(2.0, "Seconds of the cluster's time.")

    @property
    def hold_s(self) -> float:
        return self.added_s


@dataclass(frozen=True, kw_only=True)
class RateLimitFault(InjectedFault):
    """Token buckets for each API key, with x-ratelimit headers and 429: as rate_limit=N, for the requests that match."""

    kind = "rate_limit"
    example = "{kind: rate_limit, requests_per_min: 60, model: gpt-4o}"

    requests_per_min: int | None = parameter(None, "Requests per minute and key.", unset="no limit", least=1)
    tokens_per_min: int | None = parameter(
        None, "Prompt tokens plus max_tokens, per minute and key.", unset="no limit", least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.requests_per_min is None and self.tokens_per_min is None:
            raise ConfigError(["needs requests_per_min or tokens_per_min"])

    @property
    def limits(self) -> tuple[int | None, int | None]:
        return self.requests_per_min, self.tokens_per_min


def error_of_status(status: int, message: str | None, code: str | None, retry_after_s: float | None = None) -> ApiError:
    """Return the error of the OpenAI API with a status. retry_after_s: rounded up to whole seconds in Retry-After."""
    kind, usual_code, usual = _SAID.get(status, (INVALID_REQUEST if status < 500 else "server_error", None, _phrase(status)))
    headers = []
    if retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(retry_after_s)))
        headers.append((b"retry-after-ms", b"%d" % math.ceil(retry_after_s * 1000)))
    return ApiError(message or usual, status=status, type=kind, code=code or usual_code, headers=headers)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase + "."
    except ValueError:
        return f"Status {status}."


_MESSAGES_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn", "content_filter": "refusal"}
_RESPONSES_REASONS = {"length": "max_output_tokens"}
_ENDS_OF_RESPONSES = ("response.completed", "response.incomplete")
_OF_OUTPUT = (
    "response.output_",
    "response.content_part",
    "response.refusal",
    "response.reasoning",
    "response.function_call",
)


def _type_problem(value: str) -> str | None:
    return None if value and value.isascii() and value.isprintable() else "must be of printable ASCII characters"


@dataclass(frozen=True, kw_only=True)
class MissingDone(InjectedFault):
    """A stream ends without its last event: `[DONE]`, `message_stop`, or `response.completed`."""

    kind = "missing_done"
    example = "{kind: missing_done}"
    streams_only = True

    def event(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        last = event.data is None and event.ends_reply
        if not (last or event.name in ("message_stop", *_ENDS_OF_RESPONSES)):
            yield event.raw


@dataclass(frozen=True, kw_only=True)
class MissingUsage(EditedReply):
    """The reply has no `usage`, though the request asked for it."""

    kind = "missing_usage"
    example = "{kind: missing_usage}"

    def edit(self, data: Any) -> Any:
        usage = data.pop("usage", None)
        for inner in ("message", "response"):
            if isinstance(data.get(inner), dict):
                data[inner] = {key: value for key, value in data[inner].items() if key != "usage"}
        return None if usage and data.get("choices") == [] else data


@dataclass(frozen=True, kw_only=True)
class WrongContentType(InjectedFault):
    """The response has another Content-Type than its body."""

    kind = "content_type"
    example = "{kind: content_type, value: text/html}"

    value: str = parameter("text/html", "The header's value.", check=_type_problem)

    def headers(self, headers: Sequence[Header]) -> Sequence[Header]:
        return [(name, self.value.encode() if name == b"content-type" else value) for name, value in headers]


@dataclass(frozen=True, kw_only=True)
class EmptyBody(InjectedFault):
    """Status 200, and no byte of a body."""

    kind = "empty_body"
    example = "{kind: empty_body, times: 1}"

    def event(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        yield Close("ended")

    def whole(self, body: bytes) -> Iterable[Step]:
        yield b""


@dataclass(frozen=True, kw_only=True)
class EmptyReply(EditedReply):
    """A reply in the right form that says nothing: empty text, no tool call, finish reason `stop`."""

    kind = "empty_reply"
    example = "{kind: empty_reply, probability: 0.1}"

    def edit(self, data: Any) -> Any:
        kind = data.get("type", "")
        if kind.startswith("content_block") or kind.startswith(_OF_OUTPUT):
            return None
        if "response" in data:
            data["response"] = {**data["response"], "output": []}
        for choice in data.get("choices") or ():
            if choice.get("finish_reason"):
                choice["finish_reason"] = "stop"
            if "text" in choice:
                choice["text"] = ""
            said = choice.get("message") or choice.get("delta")
            if said is not None:
                said.update({key: "" for key in ("content",) if said.get(key)})
                for key in ("tool_calls", "function_call", "refusal", "reasoning", "reasoning_content"):
                    said.pop(key, None)
        if "output" in data:
            data["output"] = []
        if kind == "message":
            data |= {"content": [], "stop_reason": "end_turn"}
        if kind == "message_delta":
            data["delta"]["stop_reason"] = "end_turn"
        return data


@dataclass(frozen=True, kw_only=True)
class WrongFinishReason(EditedReply):
    """The reply is complete, but says that it ended for another reason."""

    kind = "finish_reason"
    example = "{kind: finish_reason, reason: content_filter}"

    reason: str = parameter(
        "content_filter",
        "In chat's words: content_filter, length, stop, tool_calls, or any other. Messages and Responses get their words.",
        check=lambda reason: None if reason else "must not be empty",
    )

    def edit(self, data: Any) -> Any:
        for choice in data.get("choices") or ():
            if choice.get("finish_reason"):
                choice["finish_reason"] = self.reason
        kind = data.get("type", "")
        if kind in ("message", "message_delta"):
            ended = data if kind == "message" else data["delta"]
            ended["stop_reason"] = _MESSAGES_REASONS.get(self.reason, self.reason)
        elif kind in _ENDS_OF_RESPONSES:
            data["response"] = self._response(data["response"])
            data["type"] = f"response.{data['response']['status']}"
        elif data.get("object") == "response":
            data = self._response(data)
        return data

    def _response(self, response: dict[str, Any]) -> dict[str, Any]:
        if self.reason in ("stop", "tool_calls"):
            return {**response, "status": "completed", "incomplete_details": None}
        reason = _RESPONSES_REASONS.get(self.reason, self.reason)
        return {**response, "status": "incomplete", "incomplete_details": {"reason": reason}}


@dataclass(frozen=True, kw_only=True)
class SlowBody(InjectedFault):
    """The body comes in small pieces with time between them; characters of several bytes and events are torn apart."""

    kind = "slow_body"
    example = "{kind: slow_body, piece_bytes: 64, every_s: 0.5}"

    piece_bytes: int = parameter(64, "Bytes of a piece.", least=1)
    every_s: float = duration(0.1, "Seconds of the cluster's time between two pieces.")

    def event(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        return self.whole(event.raw)

    def whole(self, body: bytes) -> Iterable[Step]:
        for start in range(0, len(body), self.piece_bytes):
            yield body[start : start + self.piece_bytes]
            yield Pause(self.every_s)


# --- in the middle of a reply -------------------------------------------------------------------------------------------

_MARK = "\N{EURO SIGN}"  # three bytes in UTF-8
_TORN = _MARK.encode()[:2]


@dataclass(frozen=True, kw_only=True)
class StallFault(FaultAtToken):
    """A stream stops, with the connection open and without pings, and goes on after a while."""

    kind = "stall"
    example = "{kind: stall, after_tokens: 5, for_s: 60}"
    streams_only = True

    for_s: float = duration(30.0, "Seconds of the cluster's time.")

    def strike(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        yield Pause(self.for_s)
        yield event.raw


@dataclass(frozen=True, kw_only=True)
class CutFault(FaultAtToken):
    """The reply breaks off: the connection is closed before the body is complete."""

    kind = "cut"
    example = "{kind: cut, after_tokens: 20}"
    exclusive = (("after_tokens", "after_bytes"),)

    after_bytes: int | None = parameter(
        None,
        "Cut after so many bytes of the body instead; a reply in one piece without it after half of them.",
        unset="none",
        least=0,
    )
    clean: bool = parameter(
        False, "End the body properly, as a proxy does that lost its upstream: only finish reason and end are missing."
    )

    @property
    def _close(self) -> Close:
        return Close("ended" if self.clean else "closed")

    def event(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        if self.after_bytes is None:
            yield from super().event(event, so_far)
            return
        sent = so_far.sent_bytes
        yield event.raw[: max(0, self.after_bytes - sent)]
        if sent + len(event.raw) >= self.after_bytes:
            yield self._close

    def strike(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        yield self._close

    def whole(self, body: bytes) -> Iterable[Step]:
        yield body[: len(body) // 2 if self.after_bytes is None else self.after_bytes]
        yield self._close


@dataclass(frozen=True, kw_only=True)
class ResetFault(FaultAtToken):
    """The connection is reset (RST): before the response, or in the middle of a streamed reply."""

    kind = "reset"
    example = "{kind: reset, probability: 0.05}"

    after_tokens: int | None = parameter(  # type: ignore[assignment]
        None, "Events with tokens that are sent before it.", unset="reset before the response begins", least=0
    )

    def begin(self) -> Iterable[Step]:
        if self.after_tokens is None:
            yield Close("reset")

    def strike(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        yield Close("reset")

    def whole(self, body: bytes) -> Iterable[Step]:
        yield body[: len(body) // 2]
        yield Close("reset")


@dataclass(frozen=True, kw_only=True)
class MalformedFault(FaultAtToken):
    """One event, or a body in one piece, is JSON that breaks off in the middle."""

    kind = "malformed"
    example = "{kind: malformed, after_tokens: 3}"

    def strike(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        yield _half(event)

    def whole(self, body: bytes) -> Iterable[Step]:
        yield body[: len(body) // 2]


@dataclass(frozen=True, kw_only=True)
class TornUtf8Fault(FaultAtToken):
    """The text of one event, or of a body in one piece, ends with two of the three bytes of a character."""

    kind = "torn_utf8"
    example = "{kind: torn_utf8, after_tokens: 3}"

    def strike(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        yield _half(event) if event.data is None else _torn(event.with_data(_marked(event.data)))

    def whole(self, body: bytes) -> Iterable[Step]:
        yield _torn(edited_body(body, _marked))


@dataclass(frozen=True, kw_only=True)
class OversizedFault(FaultAtToken):
    """The text of one event, or of a body in one piece, is longer than clients expect."""

    kind = "oversized"
    example = "{kind: oversized, extra_bytes: 10000000}"

    extra_bytes: int = parameter(1_048_576, "Bytes that the text is longer.", least=1, most=256 * 1024 * 1024)

    def strike(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        yield event.raw if event.data is None else event.with_data(self._longer(event.data))

    def whole(self, body: bytes) -> Iterable[Step]:
        yield edited_body(body, self._longer)

    def _longer(self, data: Any) -> Any:
        return with_text(data, lambda text: text + "x" * self.extra_bytes)


@dataclass(frozen=True, kw_only=True)
class ErrorEventFault(FaultAtToken):
    """A stream ends with an error event, in the form of the API, after its headers said 200."""

    kind = "error_event"
    example = "{kind: error_event, after_tokens: 10, status: 529}"
    streams_only = True

    status: int = parameter(500, "The error's type and message are those of this HTTP status.", least=400, most=599)
    message: str | None = parameter(None, "The error's message.", unset="that of the OpenAI API")
    form: Literal["failed", "error"] = parameter(
        "failed", "In the Responses API: `response.failed`, or an event `error`. The other APIs have one form."
    )

    def strike(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        yield self._error(event, so_far)
        yield Close("ended")

    def _error(self, at: StreamEvent, so_far: SoFar) -> bytes:
        error = error_of_status(self.status, self.message, None)
        if at.name.startswith("response."):
            told = {"code": error.code or "server_error", "message": error.message}
            number = {"sequence_number": so_far.sequence + 1}
            if self.form == "failed" and so_far.response is not None:
                failed = {**so_far.response, "status": "failed", "error": told}
                return named_event("response.failed", {"type": "response.failed", **number, "response": failed})
            return named_event("error", {"type": "error", **told, "param": None, **number})
        body = so_far.error_body(error)
        return named_event("error", body) if at.name else event(body)


@dataclass(frozen=True, kw_only=True)
class DuplicateChunk(FaultAtToken):
    """One event of a stream is sent twice."""

    kind = "duplicate_chunk"
    example = "{kind: duplicate_chunk, after_tokens: 2}"
    streams_only = True

    def strike(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        yield event.raw
        yield event.raw


@dataclass(frozen=True, kw_only=True)
class CrashFault(FaultAtToken):
    """The instance that serves the request crashes, with all its requests; what becomes of them says `on_crash`."""

    kind = "crash"
    example = "{kind: crash, after_tokens: 5, restart_after_s: 30, times: 1}"
    streams_only = True

    restart_after_s: float | None = duration(None, "Seconds until the instance is back.", unset="it does not come back")

    def strike(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        yield CrashInstance(self.restart_after_s)
        yield event.raw


def _half(event: StreamEvent) -> bytes:
    head, mark, written = event.raw.partition(b"data:")
    return head + mark + written[: len(written) // 2].rstrip() + END


def _marked(data: Any) -> Any:
    return with_text(data, lambda text: text + _MARK)


def _torn(raw: bytes) -> bytes:
    head, mark, tail = raw.rpartition(_MARK.encode())
    return head + _TORN + tail if mark else tail


FAULTS: Mapping[str, type[InjectedFault]] = {
    fault.kind: fault
    for fault in (
        *(StatusFault, RateLimitFault, AddedTtft, ResetFault, CutFault, StallFault, SlowBody, MalformedFault, TornUtf8Fault),
        *(OversizedFault, DuplicateChunk, ErrorEventFault, MissingDone, MissingUsage, WrongFinishReason, EmptyReply),
        *(EmptyBody, WrongContentType, CrashFault),
    )
}
