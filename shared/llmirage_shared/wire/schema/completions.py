"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from llmirage_shared.wire.schema.base import COMPLETIONS_EXTENSIONS, Integer
from llmirage_shared.wire.schema.chat import SamplingFields

_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_TOKEN_ID: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
TOKEN_IDS: dict[str, Any] = {"type": "array", "items": _TOKEN_ID, "minItems": 1}
PROMPT: dict[str, Any] = {
    "anyOf": [
        _TEXT,
        {"type": "array", "items": _TEXT, "minItems": 1},
        TOKEN_IDS,
        {"type": "array", "items": TOKEN_IDS, "minItems": 1},
    ]
}


class CompletionRequest(SamplingFields):
    """POST /v1/completions. `prompt` is read by hand: it may be a million token ids."""

    extensions: ClassVar[frozenset[str]] = COMPLETIONS_EXTENSIONS

    prompt: Annotated[Any, Field(json_schema_extra=PROMPT)]
    max_tokens: Annotated[Integer, Field(ge=0)] | None = None
    logprobs: Annotated[Integer, Field(ge=0, le=5)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    prompt_cache_key: str | None = None
    best_of: Annotated[Integer, Field(ge=1, le=20)] | None = None
