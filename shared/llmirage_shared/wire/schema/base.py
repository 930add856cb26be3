"""The base of every request body, JSON's numbers, and validation that stops at the first wrong item."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import PydanticKnownError, core_schema

from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

# The types that items of the Responses API may have.
ITEMS = (
    "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning",
    "item_reference",
)  # fmt: skip
# Of hosted tools, and others that are stored as they are.
OTHER_ITEMS = (
    "web_search_call", "file_search_call", "computer_call", "computer_call_output", "code_interpreter_call",
    "image_generation_call", "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output",
    "apply_patch_call", "apply_patch_call_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response",
    "mcp_call", "compaction", "compaction_trigger", "configuration_update", "tool_search_call", "tool_search_output",
    "additional_tools", "program", "program_output",
)  # fmt: skip
# The expected types of fields, where pydantic's error names only some of them.
_EXPECTED = {
    "content": "one of a string or array of objects",
    "stop": "one of a string or array of strings",
    "prompt": "one of a string, array of strings, or array of token ids",
    "input": "one of a string or array of objects",
    "output": "one of a string or array of objects",
    "tool_choice": "one of a string or object",
    "function_call": "one of a string or object",
    "conversation": "one of a string or object",
    "messages": "an array of objects",
    "tools": "an array of objects",
    "tool_calls": "an array of objects",
    "system": "a string or an array of content blocks",
}
_EXPECTED_BY_TYPE = {
    "string_type": "a string",
    "bool_type": "a boolean",
    "int_type": "an integer",
    "float_type": "a decimal",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "mapping_type": "an object",
}


def api_error(error: ValidationError, body: Any) -> ApiError:
    """Return the error for the first wrong field; of the alternatives of one field, of the one that got furthest."""
    found = _findings(error, body)
    return _furthest(found).error(found)


def pydantic_error(error: ValidationError, body: Any) -> ApiError:
    """Return the error for the same field in pydantic's words, as Anthropic's API has them."""
    finding = _furthest(_findings(error, body))
    return ApiError(f"{'.'.join(map(str, finding.tagged_path))}: {finding.message}")


def _findings(error: ValidationError, body: Any) -> list[_Finding]:
    return [_Finding(details, body) for details in error.errors(include_url=False, include_context=True)]


def _furthest(found: list[_Finding]) -> _Finding:
    top = found[0].path[:1]
    candidates = [finding for finding in found if finding.path[:1] == top]
    return max(candidates, key=lambda finding: (len(finding.path), finding.kind not in _EXPECTED_BY_TYPE))


class _Finding:
    """One of pydantic's errors, with the path of its location in the body.

    tagged_path: the same with the type of each object whose form depends on it.
    """

    def __init__(self, details: Any, body: Any) -> None:
        self.kind: str = details["type"]
        self.context: Mapping[str, Any] = details.get("ctx") or {}
        self.message: str = details["msg"]
        path: list[str | int] = []
        tagged_path: list[str | int] = []
        at = body
        location = details["loc"]
        for place, step in enumerate(location):
            if place == 2 and path[:1] == ["tools"] and isinstance(at, dict) and at.get("type") == step:
                continue  # the tag of a tool, not the field of that name
            is_index = isinstance(at, list) and isinstance(step, int) and step < len(at)
            if is_index or (isinstance(at, dict) and step in at):
                at = at[step]
            elif not (self.kind == "missing" and place == len(location) - 1):
                if isinstance(at, dict) and at.get("type") == step:
                    tagged_path.append(step)
                continue  # the name of an alternative, not of a field
            path.append(step)
            tagged_path.append(step)
        self.path = path
        self.tagged_path = tagged_path
        self.value = at

    @property
    def name(self) -> str:
        return _name(self.path)

    def error(self, all_found: list[_Finding]) -> ApiError:
        kind, context, value, name = self.kind, self.context, self.value, self.name
        if kind == "missing":
            return errors.missing(name)
        if kind in ("union_tag_invalid", "union_tag_not_found"):
            return self._tag_error(context["discriminator"].strip("'"), _choices(context.get("expected_tags", "")))
        if kind == "unknown_item":
            return self._tag_error("type", [*ITEMS, *OTHER_ITEMS])
        if kind == "literal_error":
            return self._choice_error(_choices(context["expected"]))
        if kind in ("greater_than_equal", "less_than_equal", "greater_than", "less_than"):
            return self._range_error()
        if kind in ("too_short", "too_long", "string_too_short", "string_too_long"):
            return self._length_error()
        if kind == "string_pattern_mismatch":
            return errors.wrong_pattern(name, context["pattern"])
        if kind in ("int_from_float", "int_parsing_size"):
            return errors.wrong_type(name, "an integer", value)
        if kind == "finite_number":
            return errors.wrong_type(name, "a decimal", value)
        if kind in _EXPECTED_BY_TYPE:
            last = self.path[-1] if self.path else ""
            alternatives = [other for other in all_found if other.path == self.path]
            words = list(dict.fromkeys(_EXPECTED_BY_TYPE.get(other.kind, "") for other in alternatives))
            expected = _EXPECTED.get(str(last)) or " or ".join(word for word in words if word) or _EXPECTED_BY_TYPE[kind]
            return errors.wrong_type(name, expected, value)
        if kind == "value_error":
            return errors.invalid_value(name, str(context.get("error", self.message)))
        return errors.invalid_value(name, self.message)

    def _tag_error(self, key: str, choices: list[str]) -> ApiError:
        name = f"{self.name}.{key}" if self.path else key
        if not isinstance(self.value, dict):
            return errors.wrong_type(self.name, "an object", self.value)
        if key not in self.value:
            return errors.missing(name)
        value = self.value[key]
        if not isinstance(value, str):
            return errors.wrong_type(name, "a string", value)
        return errors.not_a_choice(name, value, choices)

    def _choice_error(self, choices: list[str]) -> ApiError:
        if not isinstance(self.value, str):
            return errors.wrong_type(self.name, _EXPECTED.get(str(self.path[-1]), "a string"), self.value)
        return errors.not_a_choice(self.name, self.value, choices)

    def _range_error(self) -> ApiError:
        key, bound = next(iter(self.context.items()))
        kind = "decimal" if isinstance(bound, float) else "integer"  # what the field takes, whatever was sent
        bound = int(bound) if float(bound).is_integer() else bound
        if key in ("ge", "gt"):
            return errors.below_minimum(self.name, kind, bound, self.value)
        return errors.above_maximum(self.name, kind, bound, self.value)

    def _length_error(self) -> ApiError:
        length = len(self.value) if isinstance(self.value, str | list | dict) else 0
        if self.kind == "too_short" and length == 0:
            return errors.empty_array(self.name)
        if self.kind == "too_long" and isinstance(self.value, list):
            return errors.too_long(self.name, "an array", self.context["max_length"], length)
        if self.kind == "too_long" and isinstance(self.value, dict):
            return errors.too_many_properties(self.name, self.context["max_length"], length)
        if self.kind == "string_too_long":
            return errors.too_long(self.name, "a string", self.context["max_length"], length)
        return errors.invalid_value(self.name, self.message.lower())


def _name(path: list[str | int]) -> str:
    name = ""
    for step in path:
        name += f"[{step}]" if isinstance(step, int) else f".{step}" if name else step
    return name


def _choices(expected: str) -> list[str]:
    """Return [a, b, c] for "'a', 'b' or 'c'"."""
    return [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(",") if part.strip()]


_AT_ONCE = 256  # items of an object that are validated together: as many errors are made of wrong ones


def stopping_early(schema: Any) -> Any:
    """Return a model's schema whose arrays end at the first wrong item, and whose objects soon after it.

    A body of a million wrong items must not take seconds.
    """
    return {**schema, **{key: _early(value) for key, value in schema.items()}}


def _early(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)([_early(value) for value in schema])
    if not isinstance(schema, dict) or schema.get("type") == "model":  # another model's is its own
        return schema
    inner = {key: _early(value) for key, value in schema.items()}
    if schema.get("type") == "list":
        return inner | {"fail_fast": True}
    if schema.get("type") == "dict" and "values_schema" in schema:
        most = inner.pop("max_length", None)
        return core_schema.no_info_wrap_validator_function(_piecewise(most), inner)
    return inner


def _piecewise(most: int | None) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """Return a validator that works piece by piece. most: items that the object may have."""

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        if not isinstance(value, dict):
            return handler(value)
        if most is not None and len(value) > most:
            length = {"field_type": "Dictionary", "max_length": most, "actual_length": len(value)}
            raise PydanticKnownError("too_long", length)
        if len(value) <= _AT_ONCE:
            return handler(value)
        items = list(value.items())
        validated: dict[Any, Any] = {}
        for start in range(0, len(items), _AT_ONCE):
            validated |= handler(dict(items[start : start + _AT_ONCE]))
        return validated

    return validate


def word_or_named(value: object) -> str:
    """Return the tag of a choice that is a word or an object with a name."""
    return "named" if isinstance(value, dict) else "word"


class WireModel(BaseModel):
    """An object in a request body. Undeclared fields are kept: other servers accept fields of their own.

    closed: fields whose objects accept declared fields only.
    extensions: undeclared fields that are documented by serving engines or other providers.
    refuse: the error for any other undeclared field, by its path.
    wrong: the error for a body that is not valid.
    """

    closed: ClassVar[tuple[str, ...]] = ()
    extensions: ClassVar[frozenset[str]] = frozenset()
    refuse: ClassVar[Callable[[str], ApiError]] = errors.unknown_parameter
    wrong: ClassVar[Callable[[ValidationError, Any], ApiError]] = api_error

    model_config = ConfigDict(extra="allow", strict=True, hide_input_in_errors=True, protected_namespaces=())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return stopping_early(handler(source))

    @classmethod
    def check(cls, body: Mapping[str, Any], documented_only: bool = False) -> Self:
        """Validate a body. Raises ApiError for the first wrong field; with `documented_only` for undocumented ones, too."""
        try:
            request = cls.model_validate(body)
        except ValidationError as error:
            raise cls.wrong(error, body) from None
        if documented_only and (name := request.undocumented_field()) is not None:
            raise cls.refuse(name)
        return request

    def plain(self) -> dict[str, Any]:
        """Return the object as it was sent."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def undocumented_field(self) -> str | None:
        """Return the path of the first field that neither the API nor any engine documents. Null counts as absent."""
        for name, value in (self.model_extra or {}).items():
            if value is not None and name not in self.extensions:
                return name
        for name in self.closed:
            inner = getattr(self, name)
            if isinstance(inner, WireModel) and inner.model_extra:
                return f"{name}.{next(iter(inner.model_extra))}"
        return None


class CacheOptions(WireModel):
    """Options of prompt caching. Nothing is cached by them."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class Moderation(WireModel):
    """A request to judge input and output. Nothing is blocked, whatever the policy."""

    model: str
    policy: dict[str, Any] | None = None


def _whole(value: Any) -> Any:
    """Return a float without a fraction as an integer: 16.0 is an integer in JSON."""
    return int(value) if type(value) is float and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]
Number = float  # strict mode accepts integers, too
SafetyIdentifier = Annotated[str, Field(max_length=64)]
CacheRetention = Literal["in_memory", "24h"]
KeptName = Annotated[str, Field(max_length=512)]  # of what is remembered by the server
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]  # of reasoning
Metadata = Annotated[dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)]


def either(*names: str) -> dict[str, Any]:
    """Return a JSON Schema that requires one of these fields, not null."""
    return {"anyOf": [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]}


# vLLM, SGLang, TensorRT-LLM, llama.cpp and Dynamo: of every request that generates.
_SAMPLING = (
    "add_special_tokens", "allowed_token_ids", "bad_words", "bootstrap_host", "bootstrap_port", "bootstrap_room",
    "cache_prompt", "cache_salt", "custom_logit_processor", "custom_params", "data_parallel_rank", "detokenize",
    "disagg_prefill_dp_rank", "disaggregated_params", "dry_allowed_length", "dry_base", "dry_multiplier",
    "dry_penalty_last_n", "dynatemp_exponent", "dynatemp_range", "early_stopping", "ec_transfer_params", "extra_key",
    "guided_decoding_backend", "guided_whitespace_pattern", "id_slot",
    "kv_transfer_params", "length_penalty", "logits_processors", "lora_path", "lora_request", "mirostat", "mirostat_eta",
    "mirostat_tau", "n_keep", "n_predict", "n_probs", "no_stop_trim", "nvext", "repeat_last_n", "repeat_penalty",
    "repetition_detection", "request_id", "return_cached_tokens_details", "return_hidden_states", "return_meta_info",
    "return_progress", "return_prompt_text", "return_routed_experts", "return_token_offsets",
    "rid", "routed_dp_rank", "routing_key", "samplers", "session_id", "session_params", "spaces_between_special_tokens",
    "stop_regex", "timings_per_token", "top_a", "tfs", "tfs_z", "truncation_side", "typical_p",
    "use_beam_search", "vllm_xargs", "xtc_probability", "xtc_threshold",
)  # fmt: skip

CHAT_EXTENSIONS = frozenset((
    *_SAMPLING, "best_of", "chat_template", "conversation_params", "documents", "echo", "enable_thinking",
    "image_max_dynamic_patch", "input_ids", "max_dynamic_patch", "media_io_kwargs", "min_dynamic_patch",
    "mm_processor_kwargs", "reasoning_format", "return_assistant_tokens_mask", "return_prompt_token_ids",
    "separate_reasoning", "stream_reasoning", "thinking", "thinking_budget", "thinking_token_budget", "use_audio_in_video",
))  # fmt: skip

COMPLETIONS_EXTENSIONS = frozenset(
    (*_SAMPLING, "max_completion_tokens", "metadata", "prompt_embeds", "return_prompt_token_ids")
)

RESPONSES_EXTENSIONS = frozenset((
    "cache_salt", "chat_template_kwargs", "client_metadata", "enable_response_messages",
    "extra_key", "include_stop_str_in_output", "kv_transfer_params", "logit_bias", "min_p", "mm_processor_kwargs",
    "n", "personality", "previous_input_messages", "priority", "repetition_penalty", "request_id", "rid",
    "skip_special_tokens", "stop", "stop_token_ids", "top_k", "vllm_xargs",
))  # fmt: skip

EMBEDDINGS_EXTENSIONS = frozenset((
    "add_special_tokens", "bytes_only", "cache_salt", "chat_template", "chat_template_kwargs", "embed_dtype", "endianness",
    "input_type", "lora_path", "messages", "mm_processor_kwargs", "modality", "normalize", "nvext", "priority", "request_id",
    "rid", "truncate", "truncate_prompt_tokens", "truncation_side", "use_activation",
))  # fmt: skip

MESSAGES_EXTENSIONS = frozenset((
    "betas", "billing_policy", "cache_control", "chat_template_kwargs", "compaction", "diagnostics",
    "fallback_credit_token", "fallbacks", "inference_geo", "kv_transfer_params", "message", "prefill", "speed",
    "user_profile_id", "workspace_id",
))  # fmt: skip
