"""Faults of a whole reply: what its headers, its objects or its pace are wrong in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_server.faults.events import StreamEvent
from llmirage_server.faults.fault import Close, EditedReply, Header, InjectedFault, Pause, SoFar, Step, duration, parameter

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
