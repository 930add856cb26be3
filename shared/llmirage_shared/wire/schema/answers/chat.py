"""Chat and text completions, and their chunks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from llmirage_shared.wire.schema.answers.base import Answer

FinishReason = Literal["stop", "length", "tool_calls", "function_call", "content_filter"]
Count = Annotated[int, Field(ge=0)]


class PromptTokensDetails(Answer):
    cached_tokens: Count
    audio_tokens: Count


class CompletionTokensDetails(Answer):
    reasoning_tokens: Count
    audio_tokens: Count
    accepted_prediction_tokens: Count
    rejected_prediction_tokens: Count


class Usage(Answer):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class CalledFunctionAnswer(Answer):
    name: str
    arguments: str


class CalledCustomAnswer(Answer):
    name: str
    input: str


class ToolCallAnswer(Answer):
    id: str
    type: Literal["function", "custom"]
    function: CalledFunctionAnswer | None = None
    custom: CalledCustomAnswer | None = None


class TokenLogprobAnswer(Answer):
    token: str
    logprob: Annotated[float, Field(le=0)]
    bytes: list[int] | None
    top_logprobs: list[dict[str, Any]]


class ChoiceLogprobs(Answer):
    content: list[TokenLogprobAnswer] | None
    refusal: list[TokenLogprobAnswer] | None


class AssistantAnswer(Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    annotations: list[dict[str, Any]]
    tool_calls: list[ToolCallAnswer] | None = None
    function_call: CalledFunctionAnswer | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class ChatChoice(Answer):
    index: Count
    message: AssistantAnswer
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Answer):
    """The answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str
    system_fingerprint: str


class StoredCompletion(ChatCompletion):
    metadata: dict[str, str]


class TextLogprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Answer):
    text: str
    index: Count
    logprobs: TextLogprobs | None
    finish_reason: FinishReason


class TextCompletion(Answer):
    """The answer of POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    system_fingerprint: str
