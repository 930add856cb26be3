"""Models, embeddings, moderations, and vLLM's and SGLang's own endpoints."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from llmirage_shared.wire.schema.answers.base import Answer
from llmirage_shared.wire.schema.answers.chat import Count


class ModelCard(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Answer):
    object: Literal["list"]
    data: list[ModelCard]


class EmbeddingAnswer(Answer):
    """embedding: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: Count
    embedding: list[float] | str


class PromptUsage(Answer):
    prompt_tokens: Count
    total_tokens: Count


class EmbeddingList(Answer):
    object: Literal["list"]
    data: list[EmbeddingAnswer]
    model: str
    usage: PromptUsage


class ModerationResult(Answer):
    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text", "image"]]]


class Moderation(Answer):
    id: str
    model: str
    results: list[ModerationResult]


class Health(Answer):
    """saturated: queues for which more requests arrive than the cluster serves."""

    saturated: list[dict[str, Any]] | None = None


class Tokenized(Answer):
    count: Count
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Answer):
    prompt: str


class Version(Answer):
    version: str


class ServerLoad(Answer):
    server_load: Count


class RerankResult(Answer):
    index: Count
    relevance_score: float
    document: dict[str, Any] | None = None


class RerankAnswer(Answer):
    id: str
    model: str
    usage: PromptUsage
    results: list[RerankResult]


class ScoreEntry(Answer):
    index: Count
    object: Literal["score"]
    score: float


class ScoreAnswer(Answer):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreEntry]
    usage: PromptUsage


class ServerInfo(Answer):
    version: str


class SglangModelInfo(Answer):
    model_path: str
    tokenizer_path: str
    is_generation: bool


class SglangMeta(Answer):
    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count


class Generated(Answer):
    text: str
    output_ids: list[int]
    meta_info: SglangMeta


class RankLoad(Answer):
    dp_rank: Count
    num_reqs: Count
    num_waiting_reqs: Count
    num_tokens: Count = Field(description="KV in use")
