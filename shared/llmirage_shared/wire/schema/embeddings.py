"""The bodies of POST /v1/embeddings, /pooling, /classify, /rerank, /score and /v1/moderations."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from llmirage_shared.wire.schema.base import EMBEDDINGS_EXTENSIONS, Integer, WireModel, either
from llmirage_shared.wire.schema.chat import PROMPT, ImagePart, Message, TextPart

MOST_INPUTS = 2048  # of one request, as OpenAI documents for embeddings
_TEXT, _TEXTS, _IDS, _LISTS_OF_IDS = PROMPT["anyOf"]
EMBEDDED: dict[str, Any] = {
    "anyOf": [
        _TEXT,
        {**_TEXTS, "maxItems": MOST_INPUTS},
        {**_IDS, "maxItems": 8192},
        {**_LISTS_OF_IDS, "maxItems": MOST_INPUTS},
    ]
}


class EmbeddingRequest(WireModel):
    """POST /v1/embeddings. `input` is read by hand: it may be many thousand token ids.

    messages: vLLM's alternative, a conversation as the chat template writes it.
    """

    model_config = ConfigDict(json_schema_extra=either("input", "messages"))
    extensions: ClassVar[frozenset[str]] = EMBEDDINGS_EXTENSIONS

    model: str
    input: Annotated[Any, Field(json_schema_extra=EMBEDDED)] = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_generation_prompt: bool | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[Integer, Field(ge=1)] | None = None
    user: str | None = None


class RerankDocument(WireModel):
    text: str


class PoolingRequest(EmbeddingRequest):
    """POST /pooling, as vLLM has it. task: "embed", or one vector for each token."""

    task: Literal["embed", "token_embed"] | None = None


class ClassifyRequest(EmbeddingRequest):
    """POST /classify, as vLLM has it."""


class RerankRequest(WireModel):
    """POST /rerank, as Jina, Cohere and vLLM have it; with `texts` as Hugging Face's TEI has it, without a model."""

    model_config = ConfigDict(json_schema_extra=either("documents", "texts"))

    model: str | None = None
    query: str
    documents: Annotated[list[str | RerankDocument], Field(min_length=1, max_length=MOST_INPUTS)] | None = None
    texts: Annotated[list[str], Field(min_length=1, max_length=MOST_INPUTS)] | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None
    top_n: Annotated[Integer, Field(ge=0)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[Integer, Field(ge=0)] | None = None


class RankingRequest(WireModel):
    """POST /v1/ranking, as NVIDIA's NIM has it."""

    model: str
    query: RerankDocument
    passages: Annotated[list[RerankDocument], Field(min_length=1, max_length=MOST_INPUTS)]
    truncate: Literal["NONE", "END"] | None = None


class ScoreRequest(WireModel):
    """POST /score, as vLLM has it: one text with one or many, or as many with as many."""

    model: str
    text_1: str | Annotated[list[str], Field(min_length=1, max_length=MOST_INPUTS)] | None = None
    text_2: str | Annotated[list[str], Field(min_length=1, max_length=MOST_INPUTS)] | None = None
    # The names that newer releases have for the same.
    queries: str | Annotated[list[str], Field(min_length=1, max_length=MOST_INPUTS)] | None = None
    documents: str | Annotated[list[str], Field(min_length=1, max_length=MOST_INPUTS)] | None = None


def _item_tag(value: object) -> str:
    return "part" if isinstance(value, dict) else "text"


ModerationItem = Annotated[
    Annotated[str, Tag("text")] | Annotated[Annotated[TextPart | ImagePart, Field(discriminator="type")], Tag("part")],
    Discriminator(_item_tag),
]


class ModerationRequest(WireModel):
    """POST /v1/moderations: texts, each judged by itself, or the parts of one message."""

    input: str | Annotated[list[ModerationItem], Field(min_length=1, max_length=MOST_INPUTS)]
    model: str | None = None
