"""Bodies that the OpenAI API refuses and serving engines accept: checked in dialect openai unless the server is `lenient`.

A body with a field that only engines have is for an engine, and none of this is refused. The messages are OpenAI's own as
clients' bug reports quote them; for audio output none was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

ENGINE_FIELDS = frozenset((
    "add_generation_prompt", "bad_words", "chat_template_kwargs", "continue_final_message", "ebnf", "grammar",
    "guided_choice", "guided_grammar", "guided_json", "guided_json_object", "guided_regex", "ignore_eos",
    "include_reasoning", "include_stop_str_in_output", "json_schema", "kv_transfer_params", "min_p", "min_tokens", "nvext",
    "prompt_logprobs", "regex", "repetition_penalty", "return_token_ids",
    "return_tokens_as_token_ids", "rid", "skip_special_tokens", "stop_token_ids", "structured_outputs", "top_k",
    "truncate_prompt_tokens", "vllm_xargs",
))  # fmt: skip
_CHAT_PARTS = ("text", "image_url", "input_audio", "refusal", "audio", "file")
_PARTS = (
    "input_text", "input_image", "output_text", "refusal", "input_file", "computer_screenshot", "summary_text",
    "encrypted_content",
)  # fmt: skip
_GIVEN = ("input_text", "input_image", "input_file")
_SAID = ("output_text", "refusal")
_FEWEST_TOKENS = 16
_NAME_CHARACTERS = 64  # FunctionObject and ResponseFormatJsonSchema of the OpenAPI document
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_BASE64 = re.compile(r"[A-Za-z0-9+/\r\n]*={0,2}\s*")
_BASE64_PIECE = re.compile(r"[A-Za-z0-9+/\r\n]*")
_PIECE_CHARACTERS = 1 << 18
_EXAMPLE = "data:image/png;base64,aW1nIGJ5dGVzIGhlcmU="
_EXPECTED = f"Expected a base64-encoded data URL with an image MIME type (e.g. '{_EXAMPLE}'), but got "
_REQUIRED = {"file_search": "vector_store_ids", "code_interpreter": "container"}  # of tools, by type

Values = Mapping[str, Any]


def check_chat_parts(content: Sequence[Values], where: str) -> None:
    """Raise ApiError for parts of a chat message that OpenAI refuses."""
    for name, part in _parts(content, where):
        if part["type"] not in _CHAT_PARTS:
            raise errors.not_a_choice(f"{name}.type", part["type"], _CHAT_PARTS)
        if part["type"] == "image_url":
            _check_image(part["image_url"]["url"], f"{name}.image_url.url", "Invalid image URL: ")


def check_name(named: Values, where: str) -> None:
    """Raise ApiError for a tool, or a form of the answer, with a name that is too long for OpenAI."""
    name = named.get("name") or ""
    if len(name) > _NAME_CHARACTERS:
        raise errors.too_long(f"{where}.name", "a string", _NAME_CHARACTERS, len(name))


def refuse_short_reply(body: Values) -> None:
    """Raise ApiError for a limit below the minimum of the Responses API, in a body not yet validated."""
    most = body.get("max_output_tokens")
    if type(most) is int and most < _FEWEST_TOKENS and ENGINE_FIELDS.isdisjoint(body):
        raise errors.below_minimum("max_output_tokens", "integer", _FEWEST_TOKENS, most)


def refuse_response(body: Values) -> None:
    """Raise ApiError for fields that OpenAI refuses in a validated body of the Responses API."""
    if not ENGINE_FIELDS.isdisjoint(body):
        return
    refuse_items(body, "input")
    for index, tool in enumerate(body.get("tools") or ()):
        required = _REQUIRED.get(tool["type"])
        if required is not None and tool.get(required) is None:
            raise errors.missing(f"tools[{index}].{required}")
        check_name(tool, f"tools[{index}]")
    check_name((body.get("text") or {}).get("format") or {}, "text.format")


def refuse_items(body: Values, name: str) -> None:
    """Raise ApiError for items under `name` with content that OpenAI refuses there."""
    given = body.get(name)
    for index, item in enumerate(given if isinstance(given, list) else ()):
        if item.get("type") in _OUTPUTS:
            _check_parts(item["output"], f"{name}[{index}].output", _GIVEN)
        elif item.get("type") in (None, "message"):
            _check_parts(item["content"], f"{name}[{index}].content", _SAID if item["role"] == "assistant" else _GIVEN)


def _check_parts(content: Any, where: str, allowed: Sequence[str]) -> None:
    for name, part in _parts(content, where):
        kind = part["type"]
        if kind not in _PARTS:
            raise errors.not_a_choice(f"{name}.type", kind, _PARTS)
        if kind not in allowed:
            raise errors.not_a_choice(name, kind, allowed)
        if kind == "input_image" and part.get("image_url") is not None:
            _check_image(part["image_url"], f"{name}.image_url", "Invalid ")


def _parts(content: Any, where: str) -> Iterator[tuple[str, Values]]:
    if isinstance(content, list):
        for place, part in enumerate(content):
            yield f"{where}[{place}]", part


def _is_base64(data: str) -> bool:
    """Return whether the data is base64, testing it piece by piece: no other thread runs in the meantime."""
    last = max(0, len(data) // _PIECE_CHARACTERS - 1) * _PIECE_CHARACTERS  # the padding is in it
    pieces = [_BASE64_PIECE.fullmatch(data, at, at + _PIECE_CHARACTERS) for at in range(0, last, _PIECE_CHARACTERS)]
    return None not in pieces and _BASE64.fullmatch(data, last) is not None


def _check_image(url: str, name: str, invalid: str) -> None:
    """Raise ApiError for an invalid data URL of an image; other URLs are not checked: nothing is fetched."""
    if url.startswith(("https://", "http://")):
        return
    head, _, data = url.partition(",")
    kind = head[5:].partition(";")[0]
    if not head.startswith("data:"):
        found = "a value without the 'data:' prefix"
    elif not head.endswith(";base64"):
        found = "a value without the ';base64' separator"
    elif not kind.startswith("image/"):
        found = f"unsupported MIME type '{errors.shorten(kind)}'"
    elif not data:
        found = "empty base64-encoded bytes"
    elif not _is_base64(data):
        found = "an invalid base64-encoded value"
    else:
        return
    raise ApiError(f"{invalid}'{name}'. {_EXPECTED}{found}.", param=name, code="invalid_value")


def strict_problem(schema: Any, context: tuple[str, ...] = ()) -> str | None:
    """Return the error of a JSON Schema under `strict: true`, None if it is valid, in the OpenAI API's words.

    Objects must be closed, and all properties required.
    """
    if not isinstance(schema, Mapping):
        return None
    where = f"In context={context!r}"
    if not context and schema.get("type") != "object" and "$ref" not in schema:
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{schema.get('type')}\"'."
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, Mapping):
        if schema.get("additionalProperties") is not False:
            return f"{where}, 'additionalProperties' is required to be supplied and to be false."
        names = list(properties or ())
        required = schema.get("required")
        known = set(required) if isinstance(required, list) else set()
        missing = [name for name in names if name not in known]
        if names and (not isinstance(required, list) or missing):
            return (
                f"{where}, 'required' is required to be supplied and to be an array including every key in properties. "
                f"Missing '{missing[0]}'."
            )
    for key, inner in _subschemas(schema):
        if problem := strict_problem(inner, (*context, *key)):
            return problem
    return None


def _subschemas(schema: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for key in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(key), Mapping):
            found += [((key, name), inner) for name, inner in schema[key].items()]
    if isinstance(schema.get("items"), Mapping):
        found.append((("items",), schema["items"]))
    found += [(("anyOf", str(index)), inner) for index, inner in enumerate(schema.get("anyOf") or ())]
    return found
