"""Replies of the Responses API: https://platform.openai.com/docs/api-reference/responses-streaming."""

from __future__ import annotations

import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from llmirage_client.measure.record import RequestError
from llmirage_client.targets.reply import ReplyReader, TextModel, dicts, kind_of, stated_error, text_of
from llmirage_client.targets.sse import ESCAPED_BYTE

_OUTPUT_DELTAS = {"response.output_text.delta", "response.refusal.delta"}
_REASONING_DELTAS = {"response.reasoning_text.delta", "response.reasoning_summary_text.delta"}
_CALL_DELTAS = {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
_LAST_EVENTS = {"response.completed", "response.incomplete", "response.failed"}
_CALLS = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}

_DELTA = '"delta":"'


class DeltaModel:
    """Events that start like one that was parsed, with the same type. They are numbered, so that the rest always differs."""

    __slots__ = ("_before", "reasoning")

    def __init__(self, before: str, reasoning: bool) -> None:
        self._before = before
        self.reasoning = reasoning

    def text_of(self, chunk: str) -> str | None:
        """The text of the event's delta; None for an event of another kind, and where it is not plain to see."""
        if not chunk.startswith(self._before):
            return None
        # Without a backslash before it this is a key: within a string its quotes would be escaped.
        found = chunk.find(_DELTA, len(self._before))
        if found < 0 or chunk[found - 1] == "\\" or chunk.find(_DELTA, found + 1) >= 0:
            return None
        try:
            text, _ = scanstring(chunk, found + len(_DELTA))
        except ValueError:
            return None
        whole = chunk[-1] == "}" and (chunk.isascii() or not ESCAPED_BYTE.search(chunk))
        return text if whole else None


class ResponsesReply(ReplyReader):
    """items: the output as it came, for the input of the next turn."""

    def __init__(self) -> None:
        super().__init__()
        self._output: list[dict[str, Any]] = []

    def _text_model(self, chunk: str, value: Mapping[str, Any]) -> TextModel | None:
        kind = kind_of(value)
        if kind not in _OUTPUT_DELTAS and kind not in _REASONING_DELTAS:
            return None
        start = re.match(rf'\{{[ ]*"type"[ ]*:[ ]*"{re.escape(kind)}"', chunk)
        return DeltaModel(start[0], kind in _REASONING_DELTAS) if start else None

    def _read_chunk(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        kind = kind_of(value)
        delta = value.get("delta")
        if kind in _OUTPUT_DELTAS and isinstance(delta, str):
            self._text.append(delta)
            self._note_arrival(stamp_s, bool(delta), bool(delta))
        elif kind in _REASONING_DELTAS and isinstance(delta, str):
            self._reasoning.append(delta)
            self._note_arrival(stamp_s, False, bool(delta))
        elif kind in _CALL_DELTAS:
            self._note_arrival(stamp_s, bool(delta), bool(delta))
        elif kind == "response.output_item.added":
            item = value.get("item")
            if isinstance(item, dict) and kind_of(item) in _CALLS:
                self._note_arrival(stamp_s, True)  # the call's name
        elif kind == "response.output_item.done":
            if isinstance(item := value.get("item"), dict):
                self._output.append(item)
                self.items = self._output
        elif kind in _LAST_EVENTS:
            self.ended = True
            response = value.get("response")
            self._read_response(response if isinstance(response, dict) else {})
        elif kind == "error" or value.get("error"):
            self._fail(stated_error(value, None, "stream_error"))
        elif kind == "response.created" and isinstance(response := value.get("response"), dict):
            self.response_id = response.get("id")

    def _read_whole(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        if value.get("error"):
            self._fail(stated_error(value, None, "server_error"))
            return
        self._read_response(value)
        for item in dicts(value.get("output")):
            self._read_texts(item)
        output = bool(self._text or self._tool_calls)
        self._note_arrival(stamp_s, output, output or bool(self._reasoning))

    def _read_texts(self, item: Mapping[str, Any]) -> None:
        if kind_of(item) == "message":
            self._text.extend(
                text_of(part.get("text")) or text_of(part.get("refusal")) for part in dicts(item.get("content"))
            )
        elif kind_of(item) == "reasoning":
            self._reasoning.append(text_of(item.get("content")) or text_of(item.get("summary")))

    def _read_response(self, response: Mapping[str, Any]) -> None:
        """The response as a whole: the last event's, or the body."""
        if isinstance(response.get("id"), str):
            self.response_id = response["id"]
        self.read_model(response)
        if isinstance(usage := response.get("usage"), dict):
            self.usage = chat_usage(usage)
        output = dicts(response.get("output"))
        known = {item.get("id") for item in output}  # servers were seen to leave items out, here or of the events
        self._output = output + [item for item in self._output if item.get("id") not in known]
        self.items = self._output
        self._tool_calls = [_tool_call(item) for item in self._output if kind_of(item) in _CALLS]
        status = response.get("status")
        if status == "failed":
            self._fail(stated_error(response, None, "server_error"))
        elif status == "incomplete":
            reason = (response.get("incomplete_details") or {}).get("reason")
            self.finish_reason = "length" if reason == "max_output_tokens" else reason
        elif status in ("queued", "in_progress", "cancelled"):
            self._fail(RequestError(None, "server_error", f"the response is {status}"))
        else:
            self.finish_reason = "tool_calls" if self._tool_calls else "stop"


def _tool_call(item: Mapping[str, Any]) -> dict[str, Any]:
    """A call in chat's form."""
    kind, written = _CALLS[kind_of(item)]
    call = {"name": item.get("name"), written: item.get(written)}
    return {"id": item.get("call_id"), "type": kind, kind: call}


def chat_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The usage in the words of chat completions."""
    renamed = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
    renamed |= {f"{key}_details": f"{name}_details" for key, name in renamed.items()}
    return {renamed.get(key, key): value for key, value in usage.items()}
