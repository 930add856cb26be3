"""The bodies of vLLM's POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from llmirage_shared.wire.schema.base import WireModel, either
from llmirage_shared.wire.schema.chat import Message
from llmirage_shared.wire.schema.completions import TOKEN_IDS
from llmirage_shared.wire.schema.tools import ChatTool


class TokenizeRequest(WireModel):
    """POST /tokenize: a text, or a conversation as the chat template writes it."""

    model_config = ConfigDict(json_schema_extra=either("prompt", "messages"))

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: list[ChatTool] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(WireModel):
    """POST /detokenize. `tokens` is read by hand: there may be very many."""

    model: str | None = None
    tokens: Annotated[Any, Field(json_schema_extra={**TOKEN_IDS, "minItems": 0})]
