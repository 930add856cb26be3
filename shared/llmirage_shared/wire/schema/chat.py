"""The bodies of POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from llmirage_shared.wire import errors
from llmirage_shared.wire.sampling import Sampling
from llmirage_shared.wire.schema.base import (
    CHAT_EXTENSIONS,
    COMPLETIONS_EXTENSIONS,
    CacheOptions,
    CacheRetention,
    Effort,
    Integer,
    Metadata,
    Moderation,
    Number,
    SafetyIdentifier,
    WireModel,
    word_or_named,
)

ToolName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern="^[a-zA-Z0-9_-]+$")]


class FunctionDefinition(WireModel):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class GrammarDefinition(WireModel):
    definition: str
    syntax: Literal["lark", "regex"]


class CustomFormat(WireModel):
    type: Literal["text", "grammar"]
    grammar: GrammarDefinition | None = None


class CustomDefinition(WireModel):
    name: ToolName
    description: str | None = None
    format: CustomFormat | None = None


class FunctionTool(WireModel):
    type: Literal["function"]
    function: FunctionDefinition


class CustomTool(WireModel):
    type: Literal["custom"]
    custom: CustomDefinition


ChatTool = Annotated[FunctionTool | CustomTool, Field(discriminator="type")]


class ToolReference(WireModel):
    name: str


class FunctionChoice(WireModel):
    type: Literal["function"]
    function: ToolReference


class CustomChoice(WireModel):
    type: Literal["custom"]
    custom: ToolReference


class AllowedTools(WireModel):
    mode: Literal["auto", "required"]
    tools: list[Annotated[FunctionChoice | CustomChoice, Field(discriminator="type")]]


class AllowedToolsChoice(WireModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[Annotated[FunctionChoice | CustomChoice | AllowedToolsChoice, Field(discriminator="type")], Tag("named")],
    Discriminator(word_or_named),
]


class JsonSchemaFormat(WireModel):
    name: ToolName
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class PlainResponseFormat(WireModel):
    type: Literal["text", "json_object"]


class JsonSchemaResponseFormat(WireModel):
    type: Literal["json_schema"]
    json_schema: JsonSchemaFormat


ResponseFormat = Annotated[PlainResponseFormat | JsonSchemaResponseFormat, Field(discriminator="type")]


INT64_MAX = 2**63 - 1
MOST_TOOLS = 128


class TextPart(WireModel):
    type: Literal["text"]
    text: str


class InputTextPart(WireModel):
    """The Responses API's text parts, which agents mix in."""

    type: Literal["input_text", "output_text"]
    text: str


class RefusalPart(WireModel):
    type: Literal["refusal"]
    refusal: str


class ImageUrl(WireModel):
    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(WireModel):
    type: Literal["image_url"]
    image_url: ImageUrl


class InputAudio(WireModel):
    data: str
    format: Literal["wav", "mp3", "flac", "opus", "ogg", "pcm16", "m4a", "webm"]  # OpenAI's two, and what vLLM reads


class AudioPart(WireModel):
    type: Literal["input_audio"]
    input_audio: InputAudio


class ChatFile(WireModel):
    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None

    @model_validator(mode="after")
    def _has_source(self) -> ChatFile:
        if self.file_id is None and self.file_data is None and "file_url" not in (self.model_extra or {}):
            raise ValueError("expected one of 'file_id' or 'file_data'.")
        return self


class FilePart(WireModel):
    type: Literal["file"]
    file: ChatFile


ContentPart = Annotated[
    TextPart | InputTextPart | RefusalPart | ImagePart | AudioPart | FilePart, Field(discriminator="type")
]
Content = str | Annotated[list[ContentPart], Field(min_length=1)]


class PromptMessage(WireModel):
    role: Literal["system", "developer", "user"]
    content: Content
    name: str | None = None


class CalledFunction(WireModel):
    name: str
    arguments: str


class CalledCustom(WireModel):
    name: str
    input: str


class FunctionCall(WireModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class CustomCall(WireModel):
    id: str | None = None
    type: Literal["custom"]
    custom: CalledCustom


class AssistantMessage(WireModel):
    role: Literal["assistant"]
    content: Content | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: Annotated[list[CustomCall | FunctionCall], Field(min_length=1)] | None = None
    function_call: CalledFunction | None = None


class ToolMessage(WireModel):
    role: Literal["tool"]
    content: Content
    tool_call_id: str


class FunctionMessage(WireModel):
    role: Literal["function"]
    content: str | None
    name: str


Message = Annotated[PromptMessage | AssistantMessage | ToolMessage | FunctionMessage, Field(discriminator="role")]


class Prediction(WireModel):
    type: Literal["content"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]


class StreamOptions(WireModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class StructuredOutputs(WireModel):
    """vLLM: one of these constrains the text."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class SamplingFields(WireModel):
    """The fields that chat and text completions share."""

    closed: ClassVar[tuple[str, ...]] = ("stream_options",)

    model: str
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[Number, Field(ge=-100, le=100)]] | None = None
    n: Annotated[Integer, Field(ge=1, le=128)] | None = None
    seed: Annotated[Integer, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    max_tokens: Annotated[Integer, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    # vLLM's and SGLang's own
    min_tokens: Annotated[Integer, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: list[Integer] | None = None
    top_k: Integer | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0)] | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: Annotated[Integer, Field(ge=0, le=20)] | None = None
    truncate_prompt_tokens: Annotated[Integer, Field(ge=-1)] | None = None
    priority: Integer | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None  # llama.cpp's

    def sampling(self, max_tokens: int | None, logprobs: int | None) -> Sampling:
        """Return the settings that these fields mean. max_tokens, logprobs: from the endpoint's own fields.

        Fields that only shape probabilities (temperature, top_p, penalties) have no effect: no reply is sampled. Raises
        ApiError for fields that contradict each other.
        """
        min_tokens = self.min_tokens or 0
        if max_tokens is not None and min_tokens > max_tokens:
            raise errors.invalid_value(
                "min_tokens", f"expected a value <= max_tokens ({max_tokens}), but got {min_tokens} instead."
            )
        options = self.stream_options
        if options is not None and not self.stream:
            raise errors.only_with(
                "stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            )
        if self.prompt_logprobs is not None and self.stream:
            raise errors.only_with("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.")
        for key in self.logit_bias or ():
            if not (key.isascii() and key.isdigit()):
                raise errors.no_token_id(key)
        return Sampling(
            n=self.n or 1,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            ignore_eos=bool(self.ignore_eos),
            stop=self._stop_strings(),
            include_stop_str=bool(self.include_stop_str_in_output),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            shows_end=bool(self.include_stop_str_in_output) and self.skip_special_tokens is False,
            seed=self.seed,
            greedy=self.temperature == 0,
            stream=bool(self.stream),
            include_usage=options is not None and bool(options.include_usage),
            usage_in_every_chunk=options is not None and bool(options.continuous_usage_stats),
            session_key=getattr(self, "prompt_cache_key", None) or self.user,
            logprobs=logprobs,
            priority=self.priority or 0,
            return_token_ids=bool(self.return_token_ids),
            tokens_as_ids=bool(self.return_tokens_as_token_ids),
            prompt_logprobs=self.prompt_logprobs,
            truncate_prompt_tokens=self.truncate_prompt_tokens or 0,
        )

    def _stop_strings(self) -> tuple[str, ...]:
        strings = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        for index, string in enumerate(strings):
            if not string:
                name = "stop" if isinstance(self.stop, str) else f"stop[{index}]"
                raise errors.invalid_value(name, "a stop string cannot be empty.")
        return strings


class ChatCompletionRequest(SamplingFields):
    """POST /v1/chat/completions."""

    extensions: ClassVar[frozenset[str]] = CHAT_EXTENSIONS

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[Integer, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Integer, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[ChatTool], Field(min_length=1, max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionDefinition], Field(min_length=1, max_length=MOST_TOOLS)] | None = None
    function_call: Literal["none", "auto"] | ToolReference | None = None
    reasoning_effort: Effort | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    audio: dict[str, Any] | None = None
    prediction: Prediction | None = None
    web_search_options: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: CacheRetention | None = None
    prompt_cache_options: CacheOptions | None = None
    safety_identifier: SafetyIdentifier | None = None
    moderation: Moderation | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


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
