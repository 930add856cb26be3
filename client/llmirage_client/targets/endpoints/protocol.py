"""The request of a turn before it has the form of an API, and what the module of an API provides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_client.choices import EndpointKind
from llmirage_client.targets.reply import ReplyReader


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
