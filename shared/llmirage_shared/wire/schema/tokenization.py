"""The bodies of vLLM's POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from llmirage_shared.wire.schema.base import WireModel
from llmirage_shared.wire.schema.chat import Message
from llmirage_shared.wire.schema.tools import ChatTool


class TokenizeRequest(WireModel):
    """POST /tokenize: a text, or a conversation as the chat template writes it."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: list[ChatTool] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(WireModel):
    """POST /detokenize. `tokens` is read by hand: there may be very many."""

    model: str | None = None
    tokens: Annotated[Any, Field(json_schema_extra={"type": "array", "items": {"type": "integer", "minimum": 0}})]
