"""One valid request body, at least, for each alternative that the POST endpoints document; and changes to them."""

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

from llmirage_server.anthropic.refusals import signed

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
Body = dict[str, Any]

SCHEMA: Body = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "A city", "minLength": 2, "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
        "when": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]+$"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3, "uniqueItems": True},
        "place": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number", "multipleOf": 0.5}}}},
}
FUNCTION: Body = {"name": "get_weather", "description": "The weather of a city", "parameters": SCHEMA, "strict": False}
LARK = 'start: "yes" | "no" WORD\nWORD: /[a-z]+/'
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PNG = f"data:image/png;base64,{PIXEL}"

_CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
_CHAT_PARTS = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    {"type": "file", "file": {"file_data": "data:text/plain;base64,aGk=", "filename": "a.txt"}},
]
_CHAT: list[Body] = [
    {},
    {"n": 2, "temperature": 0.5, "top_p": 0.9, "stop": ["x", "y"], "logit_bias": {"50256": -100}, "seed": 3, "user": "u"},
    {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2, "max_tokens": 9},
    {
        "model": "gpt-audio",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "name": "a", "content": _CHAT_PARTS}],
    },
    {
        "messages": [
            {"role": "user", "content": "The weather in Paris?"},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": False,
    },
    {
        "tools": [
            {"type": "function", "function": FUNCTION},
            {"type": "custom", "custom": {"name": "run", "description": "Run", "format": {"type": "text"}}},
            {"type": "custom", "custom": {"name": "say", "format": {
                "type": "grammar", "grammar": {"syntax": "lark", "definition": LARK}}}},
        ],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
            {"type": "function", "function": {"name": "get_weather"}}, {"type": "custom", "custom": {"name": "say"}}]}},
    },
    {"tools": [{"type": "custom", "custom": {"name": "run"}}], "tool_choice": {"type": "custom", "custom": {"name": "run"}}},
    {"functions": [FUNCTION], "function_call": {"name": "get_weather"}},
    {
        "functions": [FUNCTION],
        "messages": [
            {"role": "user", "content": "The weather?"},
            {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": "{}"}},
            {"role": "function", "name": "get_weather", "content": "sunny"},
        ],
    },
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": False}}},
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"regex": "^[a-z]{2,5}(x|y)*$"}},
    {"structured_outputs": {"choice": ["a", "b"]}, "min_tokens": 1, "ignore_eos": False, "stop_token_ids": [1]},
    {"structured_outputs": {"grammar": LARK}, "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1},
    {"guided_json": SCHEMA, "chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"},
    {"prediction": {"type": "content", "content": [{"type": "text", "text": "a"}]}, "metadata": {"a": "b"}, "store": True,
     "modalities": ["text"], "web_search_options": {"search_context_size": "low"}, "verbosity": "low"},
    {"prompt_logprobs": 2, "return_token_ids": True, "truncate_prompt_tokens": 5, "logprobs": True, "max_tokens": 4},
    {"continue_final_message": True, "add_generation_prompt": False, "messages": [
        {"role": "user", "content": "Say"}, {"role": "assistant", "content": "I say", "refusal": None}]},
]  # fmt: skip

HOSTED: list[Body] = [
    {"type": "web_search", "filters": {"allowed_domains": ["example.com"]}, "search_context_size": "low",
     "user_location": {"type": "approximate", "city": "Paris"}},
    {"type": "web_search_preview", "search_context_size": "low"},
    {"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 3,
     "filters": {"type": "eq", "key": "a", "value": "b"}, "ranking_options": {"ranker": "auto", "score_threshold": 0.5}},
    {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file_1"]}},
    {"type": "computer"},
    {"type": "computer_use_preview", "environment": "linux", "display_width": 800, "display_height": 600},
    {"type": "image_generation", "quality": "low", "size": "1024x1024", "partial_images": 1},
    {"type": "mcp", "server_label": "docs", "server_url": "https://example.com/mcp", "allowed_tools": ["find"],
     "require_approval": "never", "headers": {"a": "b"}},
    {"type": "mcp", "server_label": "docs", "connector_id": "connector_gmail", "allowed_tools": {"tool_names": ["find"]},
     "require_approval": {"never": {"tool_names": ["find"]}, "always": {"tool_names": ["drop"]}}},
    {"type": "local_shell"},
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "apply_patch"},
    {"type": "namespace", "name": "crm", "description": "Customers", "tools": [{"type": "function", **FUNCTION}]},
    {"type": "tool_search", "execution": "client", "description": "Find", "parameters": {"type": "object"}},
    {"type": "programmatic_tool_calling"},
]  # fmt: skip
_DONE = {"status": "completed"}
ITEMS: list[Body] = [
    {"role": "user", "content": "Hello"},
    {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": PNG, "detail": "low"},
        {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}]},
    {"type": "message", "id": "msg_1", "role": "assistant", **_DONE, "content": [
        {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}, {"type": "refusal", "refusal": "No."}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "a"}],
     "content": [{"type": "reasoning_text", "text": "b"}], "encrypted_content": "c"},
    {"type": "web_search_call", "id": "ws_1", **_DONE, "action": {"type": "search", "query": "a", "queries": ["a"]}},
    {"type": "web_search_call", "id": "ws_2", **_DONE, "action": {"type": "open_page", "url": "https://example.com"}},
    {"type": "file_search_call", "id": "fs_1", **_DONE, "queries": ["a"], "results": [
        {"file_id": "f", "text": "t", "filename": "n", "score": 0.5, "attributes": {"a": "b"}}]},
    {"type": "code_interpreter_call", "id": "ci_1", **_DONE, "container_id": "c", "code": "1",
     "outputs": [{"type": "logs", "logs": "1"}]},
    {"type": "image_generation_call", "id": "ig_1", **_DONE, "result": "aGk="},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs",
     "tools": [{"name": "find", "input_schema": {"type": "object"}, "description": "Find", "annotations": None}]},
    {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "docs", "name": "find", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True, "reason": "ok"},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "docs", "name": "find", "arguments": "{}", "output": "x"},
    {"type": "computer_call", "id": "cu_1", "call_id": "call_2", **_DONE, "action": {"type": "screenshot"},
     "pending_safety_checks": []},
    {"type": "computer_call_output", "call_id": "call_2", "output": {"type": "computer_screenshot", "image_url": PNG}},
    {"type": "local_shell_call", "id": "lsh_1", "call_id": "call_3", **_DONE,
     "action": {"type": "exec", "command": ["ls"], "env": {"A": "b"}}},
    {"type": "local_shell_call_output", "id": "call_3", "output": "a.txt"},
    {"type": "shell_call", "call_id": "call_4", "action": {"commands": ["ls"], "timeout_ms": 5}},
    {"type": "shell_call_output", "call_id": "call_4", "output": [
        {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    {"type": "apply_patch_call", "call_id": "call_5", **_DONE,
     "operation": {"type": "update_file", "path": "a", "diff": "@@\n-a\n+b\n"}},
    {"type": "apply_patch_call_output", "call_id": "call_5", **_DONE, "output": "done"},
    {"type": "tool_search_call", "call_id": "call_6", "arguments": {"q": "a"}, "execution": "client"},
    {"type": "tool_search_output", "call_id": "call_6", "tools": [{"type": "function", **FUNCTION}]},
    {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", **FUNCTION}]},
    {"type": "compaction", "encrypted_content": "gAAAAaGk="},
    {"type": "configuration_update", "reasoning": {"effort": "low"}},
    {"type": "program", "id": "cm_1", "call_id": "call_7", "code": "1", "fingerprint": "f"},
    {"type": "program_output", "id": "cmo_1", "call_id": "call_7", "result": "1", **_DONE},
]  # fmt: skip
_CALLS: list[Body] = [
    {"role": "user", "content": "The weather in Paris?"},
    {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city":"Paris"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "sunny"}]},
    {"type": "custom_tool_call", "call_id": "call_8", "name": "run", "input": "a"},
    {"type": "custom_tool_call_output", "call_id": "call_8", "output": "b"},
]
_RESPONSES: list[Body] = [
    {},
    {"instructions": "Be brief.", "metadata": {"a": "b"}, "user": "u", "truncation": "auto", "store": False,
     "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2},
    {"stream": True, "stream_options": {"include_obfuscation": False}, "reasoning": {"effort": "low", "summary": "auto"}},
    {"input": _CALLS, "tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "run"}]},
    {"input": ITEMS},
    {"input": [*ITEMS, {"type": "compaction_trigger"}], "reasoning": {"context": "all_turns", "effort": "low"}},
    {"tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "say", "format": {
        "type": "grammar", "syntax": "lark", "definition": LARK}}], "tool_choice": {"type": "custom", "name": "say"}},
    {"tools": [{"type": "function", **FUNCTION}], "tool_choice": {"type": "function", "name": "get_weather"}},
    {"tools": HOSTED[:8], "input": "Search the web, then run Python code."},
    {"tools": HOSTED[8:], "input": "Use docs.find."},
    {"tools": [{"type": "function", **FUNCTION}, *HOSTED[7:8]], "tool_choice": {
        "type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "function", "name": "get_weather"}, {"type": "mcp", "server_label": "docs"}]}},
    {"tools": HOSTED[7:8], "tool_choice": {"type": "mcp", "server_label": "docs", "name": "find"}},
    {"tools": HOSTED[:1], "tool_choice": {"type": "web_search_preview"}, "max_tool_calls": 2},
    {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}, "verbosity": "low"}},
    {"prompt": {"id": "pmpt_1", "version": "2", "variables": {
        "a": "b", "c": {"type": "input_text", "text": "d"}, "e": {"type": "input_image", "image_url": PNG}}}},
    {"background": True},
]  # fmt: skip
_CLAUDE_TOOL = {"name": "get_weather", "description": "The weather", "input_schema": SCHEMA}
_MESSAGES: list[Body] = [
    {},
    {"stream": True, "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "5m"}}]},
    {"tools": [_CLAUDE_TOOL], "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}},
    {"tools": [{"type": "bash_20250124", "name": "bash"}, {"type": "web_search_20250305", "name": "web_search"},
               {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}]},
    {"messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "The weather?"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}, "title": "t"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "a", "signature": signed("a")},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False, "content": [
                {"type": "text", "text": "sunny"}]}]}],
     "tools": [_CLAUDE_TOOL]},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000, "temperature": 1, "top_p": 0.95,
     "stop_sequences": ["x"], "metadata": {"user_id": "u"}, "service_tier": "auto"},
    {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"}, "top_k": 3},
    {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 2, "allowed_domains": ["a.b"]},
               {"type": "code_execution_20250825", "name": "code_execution"},
               {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
               {**_CLAUDE_TOOL, "defer_loading": True}],
     "tool_choice": {"type": "any"}, "container": {"skills": []},
     "messages": [
        {"role": "user", "content": "Search"},
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_fetch", "input": {"url": "https://a.b"}},
            {"type": "web_fetch_tool_result", "tool_use_id": "srvtoolu_1", "content": {
                "type": "web_fetch_tool_result_error", "error_code": "url_not_allowed"}},
            {"type": "text", "text": "So", "citations": []}]},
        {"role": "user", "content": "And?"}]},
]  # fmt: skip


BOUNDARY = "limit"
_OF_BATCHES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/moderations")
UPLOADED = "UPLOADED"  # stands for the id of the last file that was uploaded


def valid_upload(random: Random) -> bytes:
    """A form for /v1/files with the lines of a batch, some of them almost valid. Its boundary is `BOUNDARY`."""
    path, body = random.choice([(path, body) for path, body in valid_bodies() if path in _OF_BATCHES])
    lines = [{"custom_id": f"{number}", "method": "POST", "url": path, "body": body} for number in range(2)]
    written = [json.dumps(mutated(line, random) if random.random() < 0.3 else line) for line in lines]
    fields = {"purpose": random.choice(("batch", "batch", "batch", "user_data", "x")), "expires_after[anchor]": "created_at"}
    fields |= {"expires_after[seconds]": random.choice(("3600", "5", "x"))}
    parts = [f'name="{name}"\r\n\r\n{value}' for name, value in fields.items()]
    parts.append('name="file"; filename="a.jsonl"\r\n\r\n' + "\n".join(written))
    form = "".join([f"--{BOUNDARY}\r\nContent-Disposition: form-data; {part}\r\n" for part in parts]) + f"--{BOUNDARY}--\r\n"
    data = bytearray(form.encode("utf-8", "replace"))
    for _ in range(random.choice((0, 0, 1, 3))):
        start = random.randrange(len(data))
        data[start : start + random.choice((0, 1, 40))] = random.choice((b"", b"\r\n", b"--" + BOUNDARY.encode(), b"\0\xff"))
    return bytes(data)


def valid_bodies() -> list[tuple[str, Body]]:
    """(path, body) of every kind."""
    hello = [{"role": "user", "content": "Hello, give me json"}]
    texts: list[Body] = [
        {}, {"prompt": ["a", "b"], "n": 2, "best_of": 2, "echo": True, "logprobs": 2}, {"prompt": [1, 2]}, {"suffix": "x"},
        {"prompt": [[1], [2, 3]], "stream": True, "stream_options": {"include_usage": True}}, {"guided_regex": "[a-z]+"},
    ]  # fmt: skip
    generate: list[Body] = [
        {"sampling_params": {"max_new_tokens": 4, "stop": ["x"], "json_schema": json.dumps(SCHEMA)}, "rid": "a"},
        {"text": ["a", "b"], "rid": ["a", "b"], "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0},
        {"input_ids": [1, 2], "stream": True, "sampling_params": {"n": 2, "regex": "[ab]+", "stop_token_ids": [1]}},
        {"sampling_params": {"ebnf": 'root ::= "a" | "b"', "temperature": 0.5, "top_p": 0.5}},
    ]  # fmt: skip
    tokens: list[Body] = [
        {"sampling_params": {"max_tokens": 4, "stop": ["x"], "logprobs": 2, "prompt_logprobs": 1}, "output_mode": "text"},
        {"sampling_params": {"n": 2, "stop_token_ids": [1], "structured_outputs": {"regex": "[ab]+"}}, "stream": True,
         "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "return_token_ids": True},
    ]  # fmt: skip
    short, brief = {"max_tokens": 8}, {"input": "Hello json", "max_output_tokens": 16}
    bodies: list[tuple[str, Body]] = [
        *(("/v1/chat/completions", {"model": MODEL, "messages": hello, **short, **body}) for body in _CHAT),
        *(("/v1/responses", {"model": MODEL, **brief, **body}) for body in _RESPONSES),
        *(("/v1/responses/input_tokens", {"model": MODEL, "input": "a", **body}) for body in _RESPONSES[3:5]),
        *(("/v1/responses/compact", {"model": MODEL, "input": "a", **body}) for body in _RESPONSES[3:5]),
        *(("/v1/messages", {"model": MODEL, "messages": hello, **short, **body}) for body in _MESSAGES),
        (
            "/v1/messages/batches",
            {"requests": [{"custom_id": "a", "params": {"model": MODEL, "max_tokens": 2, "messages": hello}}]},
        ),
        *(("/v1/messages/count_tokens", {"model": MODEL, "messages": hello, **body}) for body in _MESSAGES[3:5]),
        *(("/v1/completions", {"model": MODEL, "prompt": "Hello", **short, **body}) for body in texts),
        ("/v1/conversations", {"items": ITEMS[:5], "metadata": {"a": "b"}}),
        ("/v1/conversations", {"items": _CALLS}),
        ("/v1/embeddings", {"model": MODEL, "input": ["a", "b"], "encoding_format": "float", "dimensions": 8}),
        ("/v1/embeddings", {"model": MODEL, "input": [[1, 2], [3]], "encoding_format": "base64"}),
        ("/v1/moderations", {"input": ["a", "b"], "model": "m"}),
        ("/v1/moderations", {"input": _CHAT_PARTS[:2]}),
        ("/v1/ranking", {"model": MODEL, "query": {"text": "a"}, "passages": [{"text": "b"}], "truncate": "END"}),
        *(
            (
                "/v1/batches",
                {"input_file_id": UPLOADED, "endpoint": path, "completion_window": "24h", "metadata": {"a": "b"}},
            )
            for path in _OF_BATCHES
        ),
        ("/v1/rerank", {"model": MODEL, "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
        ("/rerank", {"query": "a", "texts": ["b", "c"], "raw_scores": True, "return_text": True}),
        ("/pooling", {"model": MODEL, "input": ["a", "b"], "dimensions": 4}),
        ("/pooling", {"model": MODEL, "input": [1, 2], "task": "token_embed", "encoding_format": "float"}),
        ("/pooling", {"model": MODEL, "messages": hello, "add_generation_prompt": True}),
        ("/classify", {"model": MODEL, "input": ["a", "b"]}),
        ("/v1/embeddings", {"model": MODEL, "messages": hello}),
        ("/v1/score", {"model": MODEL, "text_1": "a", "text_2": ["b", "c"]}),
        ("/tokenize", {"model": MODEL, "messages": hello, "tools": [{"type": "function", "function": FUNCTION}]}),
        ("/tokenize", {"prompt": "a", "return_token_strs": True}),
        ("/detokenize", {"tokens": [1, 2]}),
        *(("/generate", {"text": "Hello", **body} if "input_ids" not in body else body) for body in generate),
        *(("/inference/v1/generate", {"token_ids": [1, 2], "model": MODEL, "request_id": "a", **body}) for body in tokens),
        ("/abort_request", {"rid": "a", "abort_all": False}),
        ("/llmirage/faults", {"kind": "status", "status": 503, "model": "zzz", "times": 1}),
        ("/llmirage/script", {"rules": [{"when": {"user": "zzz"}, "reply": "b"}]}),
    ]
    return bodies


# --- changes ------------------------------------------------------------------------------------------------------------

_OTHERS: list[Any] = [
    None, True, False, 0, -1, 5, 1.5, 10**400, 1e-320, -(2**63), "", "f", "x" * 300, "\u0000", "\U0001f600", "auto", [],
    ["f"], [None], [[]], {}, {"type": "f"}, {"id": 5}, {"type": ["a"]}, [{}], [{"type": "function"}],
]  # fmt: skip


def mutated(body: Body, random: Random) -> Body:
    """A copy with one to three changes: a value of another type, a field gone, moved, doubled, nested or renamed."""
    changed: Body = {"": copy.deepcopy(body)}
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(changed[""], changed, ""))
        container, key = random.choice(places)
        value = container[key]
        match random.randrange(10):
            case 0 | 1 | 2 | 3:
                container[key] = copy.deepcopy(random.choice(_OTHERS))
            case 4 if container is not changed:
                del container[key]
            case 5:
                other, place = random.choice(places)
                with suppress(RecursionError):  # it was nested twice
                    container[key] = copy.deepcopy(other[place])
            case 6:
                container[key] = [copy.deepcopy(value) for _ in range(random.choice((2, 3, 130)))]
            case 7:
                for _ in range(random.choice((1, 3, 200))):
                    value = random.choice(({"anyOf": [value]}, {"not": value}, {"properties": {"a": value}}, [value]))
                container[key] = value
            case 8 if isinstance(container, dict) and container is not changed:
                container[random.choice(("type", "id", "name", "f", "call_id", "$ref", key))] = container.pop(key)
            case _:
                if isinstance(value, dict):
                    value[random.choice(("type", "name", "id", "$ref", "enum", "f"))] = copy.deepcopy(random.choice(_OTHERS))
                elif isinstance(value, list):
                    value.append(copy.deepcopy(random.choice(_OTHERS)))
                elif isinstance(value, str):
                    container[key] = value + random.choice(("(", "[a-", "{9999}", "\\1", "\ud800", "é", "=" * 5000))
    result = changed[""]
    return result if isinstance(result, dict) else {"f": result}


def _places(value: Any, container: Any, key: Any) -> Iterator[tuple[Any, Any]]:
    """Every value in it, as where it stands."""
    yield container, key
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from _places(each, value, name)
