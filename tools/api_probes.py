"""The requests of api_docs.py: one for each endpoint, and a value for each parameter that should make a difference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MODEL = "Qwen/Qwen3-30B-A3B"


@dataclass(frozen=True)
class Probe:
    """beside: other fields that the value needs. refused: by design, whatever the error's code.

    made: the value is the id of the object that this path and body create.
    """

    value: Any = None
    beside: dict[str, Any] = field(default_factory=dict)
    refused: bool = False
    made: tuple[str, dict[str, Any]] | None = None


_SAID = [{"role": "user", "content": "Tell me about the weather in Paris as json"}]
_GREETING = [{"role": "user", "content": "Good morning!"}]
_BEGUN = [*_SAID, {"role": "assistant", "content": "The"}]
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
_TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": _SCHEMA}}
_OTHER = {"type": "function", "function": {"name": "get_time", "description": "Time of a city", "parameters": _SCHEMA}}
_BOTH = [{"role": "user", "content": "get_weather and get_time of Paris"}]
_FLAT = {"type": "function", "name": "get_weather", "description": "Weather of a city", "parameters": _SCHEMA}
_ANSWER_FORM = {
    "format": {
        "type": "json_schema",
        "schema": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
    }
}
_INPUT_TOOL = {"name": "get_weather", "description": "Weather of a city", "input_schema": _SCHEMA}

BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": _SAID, "max_tokens": 40},
    "/v1/completions": {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 40},
    "/v1/responses": {"model": MODEL, "input": "Tell me about the weather in Paris as json", "max_output_tokens": 60},
    "/v1/messages": {"model": MODEL, "messages": _SAID, "max_tokens": 2000},
    "/v1/embeddings": {"model": "text-embedding-3-small", "input": "Hello"},
    "/v1/moderations": {"input": "Hello"},
    "/tokenize": {"prompt": "Hello there"},
    "/detokenize": {"tokens": [100, 200]},
    "/v1/ranking": {"model": "bge-m3", "query": {"text": "Paris"}, "passages": [{"text": "Bananas"}]},
    "/rerank": {"model": "bge-m3", "query": "Paris", "documents": ["Paris is a city", "Bananas"]},
    "/score": {"model": "bge-m3", "text_1": "Paris", "text_2": ["Paris is a city", "Bananas"]},
    "/generate": {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 40}},
}

_SAMPLING = {
    "model": Probe("another-model"),
    "temperature": Probe(0.3),
    "top_p": Probe(0.5),
    "presence_penalty": Probe(1.0),
    "frequency_penalty": Probe(1.0),
    "logit_bias": Probe({"100": 5}),
    "n": Probe(2),
    "seed": Probe(1234),
    "stop": Probe([" the", "."]),
    "max_tokens": Probe(5),
    "stream": Probe(True),
    "stream_options": Probe({"include_usage": True}, {"stream": True}),
    "user": Probe("somebody"),
    "min_tokens": Probe(600, {"max_tokens": None}),
    "ignore_eos": Probe(True, {"max_tokens": None}),
    "include_stop_str_in_output": Probe(True, {"stop": [" the", "."]}),
    "stop_token_ids": Probe(list(range(0, 30_000, 7))),
    "top_k": Probe(5),
    "min_p": Probe(0.1),
    "repetition_penalty": Probe(1.2),
    "skip_special_tokens": Probe(False, {"include_stop_str_in_output": True, "max_tokens": None}),
    "return_token_ids": Probe(True),
    "return_tokens_as_token_ids": Probe(True, {"logprobs": 1}),
    "prompt_logprobs": Probe(2),
    "truncate_prompt_tokens": Probe(3),
    "priority": Probe(1, refused=True),
    "structured_outputs": Probe({"choice": ["red", "green"]}),
    "guided_json": Probe(_SCHEMA),
    "guided_regex": Probe("[ab]{5}"),
    "guided_choice": Probe(["red", "green"]),
    "guided_grammar": Probe('start: "a" | "b"'),
    "guided_json_object": Probe(True),
    "json_schema": Probe(_SCHEMA),
    "regex": Probe("[ab]{5}"),
    "ebnf": Probe('root ::= "a" | "b"'),
    "grammar": Probe('root ::= "a" | "b"'),
    "response_format": Probe({"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}}),
}

PROBES: dict[str, dict[str, Probe]] = {
    "/v1/chat/completions": {
        **_SAMPLING,
        "messages": Probe([{"role": "user", "content": "Hello"}]),
        "return_tokens_as_token_ids": Probe(True, {"logprobs": True}),
        "max_completion_tokens": Probe(5, {"max_tokens": None}),
        "logprobs": Probe(True),
        "top_logprobs": Probe(2, {"logprobs": True}),
        "tools": Probe([_TOOL]),
        "tool_choice": Probe("required", {"tools": [_TOOL], "messages": _GREETING}),
        "parallel_tool_calls": Probe(False, {"tools": [_TOOL, _OTHER], "tool_choice": "required", "messages": _BOTH}),
        "functions": Probe([_TOOL["function"]]),
        "function_call": Probe({"name": "get_weather"}, {"functions": [_TOOL["function"]], "messages": _GREETING}),
        "reasoning_effort": Probe("low"),
        "verbosity": Probe("low", {"max_tokens": None}),
        "service_tier": Probe("flex"),
        "store": Probe(True),
        "metadata": Probe({"a": "b"}),
        "modalities": Probe(["text"]),
        "audio": Probe({"voice": "alloy", "format": "wav"}),
        "prediction": Probe({"type": "content", "content": "a"}),
        "web_search_options": Probe({}),
        "prompt_cache_key": Probe("key"),
        "prompt_cache_retention": Probe("24h"),
        "prompt_cache_options": Probe({"mode": "explicit"}),
        "moderation": Probe({"model": "omni-moderation-latest"}),
        "safety_identifier": Probe("somebody"),
        "chat_template_kwargs": Probe({"enable_thinking": True}),
        "include_reasoning": Probe(False, {"reasoning_effort": "low"}),
        "add_generation_prompt": Probe(False),
        "continue_final_message": Probe(True, {"messages": _BEGUN}),
    },
    "/v1/completions": {
        **_SAMPLING,
        "min_tokens": Probe(600, {"max_tokens": 1000}),
        "ignore_eos": Probe(True, {"max_tokens": 1000}),
        "skip_special_tokens": Probe(False, {"max_tokens": 1000, "include_stop_str_in_output": True}),
        "prompt": Probe("Hello"),
        "logprobs": Probe(2),
        "echo": Probe(True),
        "suffix": Probe(" the end"),
        "prompt_cache_key": Probe("key"),
        "best_of": Probe(2),
    },
    "/v1/responses": {
        "model": Probe("another-model"),
        "input": Probe("Hello"),
        "instructions": Probe("Be brief"),
        "previous_response_id": Probe(made=("/v1/responses", BASES["/v1/responses"])),
        "conversation": Probe(made=("/v1/conversations", {"items": _SAID})),
        "tools": Probe([_FLAT]),
        "tool_choice": Probe("required", {"tools": [_FLAT], "input": _GREETING}),
        "parallel_tool_calls": Probe(False, {"tools": [_FLAT, {**_FLAT, "name": "get_time"}], "tool_choice": "required",
                                             "input": _BOTH}),
        "reasoning": Probe({"effort": "low", "summary": "auto"}),
        "text": Probe({"format": {"type": "json_schema", "name": "s", "schema": _SCHEMA}}),
        "truncation": Probe("auto"),
        "background": Probe(True),
        "include": Probe(["message.output_text.logprobs"]),
        "max_output_tokens": Probe(20),
        "max_tool_calls": Probe(1),
        "metadata": Probe({"a": "b"}),
        "prompt": Probe({"id": "pmpt_1"}),
        "prompt_cache_key": Probe("key"),
        "prompt_cache_retention": Probe("24h"),
        "prompt_cache_options": Probe({"mode": "explicit"}),
        "moderation": Probe({"model": "omni-moderation-latest"}),
        "context_management": Probe(
            [{"type": "compaction", "compact_threshold": 1000}], {"instructions": "Be brief. " * 500}
        ),
        "safety_identifier": Probe("somebody"),
        "service_tier": Probe("flex"),
        "store": Probe(False),
        "stream": Probe(True),
        "stream_options": Probe({"include_obfuscation": False}, {"stream": True}),
        "temperature": Probe(0.3),
        "top_p": Probe(0.5),
        "top_logprobs": Probe(2),
        "presence_penalty": Probe(1.0),
        "frequency_penalty": Probe(1.0),
        "user": Probe("somebody"),
        "seed": Probe(1234),
        "structured_outputs": Probe({"choice": ["red", "green"]}),
        "ignore_eos": Probe(True, {"max_output_tokens": None}),
        "min_tokens": Probe(600, {"max_output_tokens": None}),
    },
    "/v1/messages": {
        "model": Probe("another-model"),
        "messages": Probe([{"role": "user", "content": "Hello"}]),
        "system": Probe("Be brief"),
        "tools": Probe([_INPUT_TOOL]),
        "tool_choice": Probe({"type": "any"}, {"tools": [_INPUT_TOOL], "messages": _GREETING}),
        "thinking": Probe({"type": "enabled", "budget_tokens": 1024}),
        "output_config": Probe(_ANSWER_FORM),
        "output_format": Probe(_ANSWER_FORM["format"]),
        "thread": Probe({"type": "create"}),
        "max_tokens": Probe(5),
        "stop_sequences": Probe([" the", "."]),
        "stream": Probe(True),
        "temperature": Probe(0.3),
        "top_p": Probe(0.5),
        "top_k": Probe(5),
        "metadata": Probe({"user_id": "somebody"}),
        "service_tier": Probe("auto"),
        "ignore_eos": Probe(True),
        "min_tokens": Probe(600),
        "mcp_servers": Probe([{"type": "url", "name": "docs", "url": "https://example.com/mcp"}]),
        "container": Probe({"skills": []}),
        "context_management": Probe({"edits": [{"type": "clear_tool_uses_20250919"}]}),
    },
    "/v1/embeddings": {
        "model": Probe("text-embedding-3-large"),
        "input": Probe("Good bye"),
        "messages": Probe(_SAID, {"input": None}),
        "add_generation_prompt": Probe(True, {"input": None, "messages": _SAID}),
        "encoding_format": Probe("base64"),
        "dimensions": Probe(8),
        "user": Probe("somebody"),
    },
    "/v1/moderations": {"input": Probe("I will kill you"), "model": Probe("text-moderation-latest")},
    "/tokenize": {
        "model": Probe(MODEL),
        "prompt": Probe("Good bye"),
        "messages": Probe(_SAID),
        "tools": Probe([_TOOL], {"messages": _SAID}),
        "add_special_tokens": Probe(False),
        "return_token_strs": Probe(True),
        "add_generation_prompt": Probe(False, {"messages": _SAID}),
        "continue_final_message": Probe(True, {"messages": _BEGUN}),
        "chat_template_kwargs": Probe({"enable_thinking": True}, {"messages": _SAID}),
    },
    "/detokenize": {"model": Probe(MODEL), "tokens": Probe([300])},
    "/rerank": {
        "model": Probe("bge-large-en-v1.5"),
        "query": Probe("fruit"),
        "documents": Probe(["x"]),
        "texts": Probe(["x"], {"documents": None}),
        "raw_scores": Probe(True, {"documents": None, "texts": ["x"]}),
        "return_text": Probe(True, {"documents": None, "texts": ["x"]}),
        "top_n": Probe(1),
        "return_documents": Probe(False),
        "max_tokens_per_doc": Probe(5),
    },
    "/v1/ranking": {
        "model": Probe("bge-large-en-v1.5"),
        "query": Probe({"text": "fruit"}),
        "passages": Probe([{"text": "x"}]),
        "truncate": Probe("END"),
    },
    "/score": {
        "model": Probe("bge-large-en-v1.5"),
        "text_1": Probe("fruit"),
        "text_2": Probe("fruit"),
        "queries": Probe("fruit", {"text_1": None}),
        "documents": Probe("fruit", {"text_2": None}),
    },
    "/generate": {
        "text": Probe("Hello"),
        "input_ids": Probe([1, 2, 3], {"text": None}),
        "sampling_params": Probe({"max_new_tokens": 5}),
        "rid": Probe("mine"),
        "stream": Probe(True),
        "return_logprob": Probe(True),
        "logprob_start_len": Probe(0, {"return_logprob": True}),
        "top_logprobs_num": Probe(2, {"return_logprob": True}),
        "return_text_in_logprobs": Probe(True, {"return_logprob": True}),
        "priority": Probe(1, refused=True),
    },
}  # fmt: skip

_KEPT = "the object can be retrieved later"
_SESSION = "session of the router `session`"
_WORDS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
NOTES: dict[tuple[str, str], str] = {
    **{(path, "user"): f"{_SESSION}, without `prompt_cache_key`" for path in _WORDS},
    **{(path, "prompt_cache_key"): _SESSION for path in _WORDS},
    **{(path, "store"): _KEPT for path in _WORDS},
    **{(path, "priority"): "honoured by clusters with `schedule_policy: priority`" for path in (*_WORDS, "/generate")},
    **{
        (path, "skip_special_tokens"): "the end of the turn is shown with `include_stop_str_in_output`"
        for path in _WORDS[:2]
    },
    ("/v1/messages", "mcp_servers"): "simulated: no MCP server is contacted",
    ("/v1/messages", "context_management"): "`clear_tool_uses_20250919`, `clear_thinking_20251015`",
    ("/v1/messages", "metadata"): f"`user_id` is the {_SESSION}",
}
