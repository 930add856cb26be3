"""The APIs a run can speak, a module each, and raw: any other, where whole bodies of a file go to a path as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmirage_client.settings import EndpointName
from llmirage_client.targets.endpoints.chat import ChatEndpoint, ChatReply, CompletionsEndpoint
from llmirage_client.targets.endpoints.messages import MessagesEndpoint, MessagesReply
from llmirage_client.targets.endpoints.protocol import Endpoint, ReplyReader, TurnRequest, split_events, stated_error
from llmirage_client.targets.endpoints.responses import ResponsesEndpoint, ResponsesReply
from llmirage_client.targets.wire_json import parse

# Where APIs of other servers keep the text of a reply.
_TEXT_KEYS = ("text", "generated_text", "output_text", "output", "response", "content", "token", "delta")


class RawReply(ReplyReader):
    """A reply of any API.

    A reply in the form of a known API is read as that. Of anything else each event counts as output, its text is what
    is found under a usual key, and the end of the bytes is the end of the reply.
    """

    may_be_empty = True

    def read_stream(self, segments: Sequence[tuple[float, bytes]]) -> None:
        events = split_events(segments)
        data = events.data if events.rest is None else [*events.data, events.rest]
        values = [_value(chunk) for chunk in data]
        known = next((found for value in values if (found := _known(value)) is not None), None)
        if known is not None:
            known.read_stream(segments)
            self._be(known)
            return
        stamps_s = events.stamps_s if events.rest is None else [*events.stamps_s, segments[-1][0]]
        for stamp_s, value in zip(stamps_s, values, strict=True):
            if value != "[DONE]":
                self._take(stamp_s, value, "stream_error")
        self.ended = True

    def read_body(self, stamp_s: float, body: bytes) -> None:
        value = _value(body.decode("utf-8", "replace"))
        known = _known(value)
        if known is not None:
            known.read_body(stamp_s, body)
            self._be(known)
        elif body:
            self._take(stamp_s, value, "server_error")

    def _be(self, known: ReplyReader) -> None:
        vars(self).update(vars(known))

    def _take(self, stamp_s: float, value: Any, error_type: str) -> None:
        if isinstance(value, dict) and value.get("error"):
            self._fail(stated_error(value, None, error_type))
            return
        self._text.append(_text_in(value))
        self._note_arrival(stamp_s, True)


class RawEndpoint(ChatEndpoint):
    """Bodies come from the file; nothing is asked of it in other forms."""

    name = "raw"
    path = "/"
    new_reply = RawReply
    exact_kinds = ()
    asks_for_usage = False

    def body(self, request: TurnRequest) -> dict[str, Any]:
        raise NotImplementedError("the raw endpoint sends the bodies of the file")


def _value(text: str) -> Any:
    """Return the value of JSON, or the text itself where it is none."""
    try:
        return parse(text)
    except ValueError:
        return text


def _known(value: Any) -> ReplyReader | None:
    """Return a reader for the API whose reply, or event, this is."""
    if not isinstance(value, dict):
        return None
    kind = str(value.get("type"))
    if isinstance(value.get("choices"), list):
        return ChatReply()
    if value.get("object") == "response" or kind.startswith("response."):
        return ResponsesReply()
    if kind in ("message", "message_start"):
        return MessagesReply()
    return None


def _text_in(value: Any) -> str:
    """Return the text of a JSON value: itself, or what lies under a usual key, however deep."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_text_in(item) for item in value if isinstance(item, dict))
    if isinstance(value, dict):
        return next((text for key in _TEXT_KEYS if key in value and (text := _text_in(value[key]))), "")
    return ""


__all__ = ["CHAT", "Endpoint", "EndpointName", "TurnRequest", "endpoint_named"]

CHAT = ChatEndpoint()


def endpoint_named(name: EndpointName, tokenizer: str | None = None) -> Endpoint:
    """Return the API of a name.

    tokenizer: whose chat template writes the prompts of completions; see CompletionsEndpoint.
    """
    match name:
        case "chat":
            return CHAT
        case "completions":
            return CompletionsEndpoint(tokenizer)
        case "responses":
            return ResponsesEndpoint()
        case "messages":
            return MessagesEndpoint()
        case "raw":
            return RawEndpoint()
