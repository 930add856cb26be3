"""Faults in the middle of a reply: it stalls, breaks off, or one of its events is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from llmirage_server.faults.events import END, StreamEvent, with_text
from llmirage_server.faults.fault import (
    Close,
    CrashInstance,
    FaultAtToken,
    Pause,
    SoFar,
    Step,
    duration,
    edited_body,
    parameter,
)
from llmirage_server.faults.replies import error_of_status
from llmirage_shared.wire.output import event, named_event

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
