"""The Responses API, conversations and the Messages API."""

from __future__ import annotations

from typing import Any, Literal

from llmirage_shared.wire.schema.answers.base import Answer
from llmirage_shared.wire.schema.answers.chat import Count


class CachedInput(Answer):
    cached_tokens: Count
    cache_write_tokens: Count


class OutputTokensDetails(Answer):
    reasoning_tokens: Count


class ResponseUsage(Answer):
    input_tokens: Count
    input_tokens_details: CachedInput
    output_tokens: Count
    output_tokens_details: OutputTokensDetails
    total_tokens: Count


class OutputItemAnswer(Answer):
    id: str
    type: str


class ResponseFailure(Answer):
    code: str
    message: str


class ResponseAnswer(Answer):
    """The answer of POST /v1/responses."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: ResponseFailure | None
    incomplete_details: dict[str, Any] | None
    instructions: str | list[dict[str, Any]] | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputItemAnswer]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None
    metadata: dict[str, str]


class InputTokens(Answer):
    object: Literal["response.input_tokens"]
    input_tokens: Count


class CompactedResponse(Answer):
    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage


class ConversationAnswer(Answer):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class ItemAnswer(Answer):
    id: str
    type: str


class MessagesUsage(Answer):
    input_tokens: Count
    cache_creation_input_tokens: Count
    cache_read_input_tokens: Count
    output_tokens: Count


class MessageAnswer(Answer):
    """The answer of POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
    stop_sequence: str | None
    usage: MessagesUsage


class MessagesTokenCount(Answer):
    input_tokens: Count
