"""Forms of an answer that are asked for in words: a JSON Schema written into the prompt, or the names of keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from llmirage_server.replies.reply import ANY_OBJECT, ReplyRequest
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.replies.structured.validity import validator_for

_MARK = '"properties"'
_DECODER = json.JSONDecoder()
_DEMAND = re.compile(
    r"(match|compatible|conform|follow|adher|accord|valid|using|output|respon[ds]|return)[^{}]{0,80}"
    r"(json.?schema|schema|json code ?block)",
    re.IGNORECASE,
)
_FENCE = re.compile(r"(in|within|inside|use|using)\b[^.\n]{0,20}(```json|(json )?(code ?block|fence))", re.IGNORECASE)
_QUOTED_KEY = re.compile(r"[\"'`“]([A-Za-z_]\w{0,40})[\"'`”]")
_LISTED_KEYS = re.compile(r"\b(?:keys?|fields?|properties|attributes)\b:?\s+((?:\w+(?:,? and |, ?))*\w+)", re.IGNORECASE)
_TYPED_KEY = re.compile(r"`(\w+)` \(must be formatted as a valid Python ([^()]+)\)")
_STRINGS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_PYTHON_TYPES: Mapping[str, Any] = {
    "int": {"type": "integer"}, "float": {"type": "number"}, "bool": {"type": "boolean"}, "str": {"type": "string"},
    "list[str]": _STRINGS, "list[int]": {**_STRINGS, "items": {"type": "integer"}},
    "list[float]": {**_STRINGS, "items": {"type": "number"}}, "dict[str, Any]": {"type": "object"},
}  # fmt: skip
_PLURAL = re.compile(r"(?:[a-rt-z]s|[^aeiou]ies)$(?<!us)(?<!is)(?<!news)(?<!lens)(?<!series)", re.IGNORECASE)
_WHOLE = {"age", "year", "count", "number", "quantity", "size", "rank", "days", "hours"}
_FRACTION = {"price", "cost", "amount", "score", "confidence", "temperature", "rating", "total"}


def with_prompted_form(request: ReplyRequest) -> ReplyRequest:
    """Return the request with the form of the answer that its prompt asks for in words, where its fields leave it open."""
    if request.instructions is None or request.grammar is not None or request.json_schema not in (None, ANY_OBJECT):
        return request
    if request.json_schema is not None:
        return replace(request, json_schema=object_form(request.instructions), form_field="messages")
    form = prompted_form(request.instructions)
    return request if form is None else replace(request, json_schema=form[0], fenced=form[1], form_field="messages")


def prompted_form(texts: Sequence[str]) -> tuple[Any, bool] | None:
    """Return the last JSON Schema in the texts, if they demand an answer that fits it, and if it stands in a code block."""
    found = [schema for text in texts for schema, _, _ in _schemas(text)]
    if not found or not any(_DEMAND.search(text) for text in texts) or not _can_be_followed(found[-1]):
        return None
    return found[-1], any(_FENCE.search(text) for text in texts)


def _can_be_followed(schema: Any) -> bool:
    try:
        validator_for(schema)
    except SchemaError:
        return False
    return True


def object_form(texts: Sequence[str]) -> Any:
    """Return the schema of an object for a request that gives none: the prompt's own, else one with its keys."""
    found = [schema for text in texts for schema, _, _ in _schemas(text)]
    if found and _can_be_followed(found[-1]):
        return found[-1]
    for text in reversed(texts):
        names = _QUOTED_KEY.findall(_TYPED_KEY.sub(r"`\1`", text))
        if not names and (listed := _LISTED_KEYS.search(text)) is not None:
            names = [name for name in re.split(r",? and |, ?", listed.group(1)) if name]
        if names := [name for name in dict.fromkeys(names) if name.lower() != "json"]:
            return _object(names, typed_keys(text))
    return _object(["answer", "explanation"])


def typed_keys(text: str) -> dict[str, Any]:
    """Schemas of the keys whose types the text tells, as DSPy does: "`score` (must be formatted as a valid Python int)"."""
    found: dict[str, Any] = {}
    for name, kind in _TYPED_KEY.findall(text):
        if kind.startswith("Literal["):
            found[name] = {"enum": re.findall(r"['\"]([^'\"]+)['\"]", kind)}
        elif kind in _PYTHON_TYPES:
            found[name] = _PYTHON_TYPES[kind]
    return found


def _object(names: list[str], known: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    properties = {name: known.get(name) or key_schema(name) for name in names}
    return {"type": "object", "properties": properties, "required": names}


def key_schema(name: str) -> dict[str, Any]:
    """Return the schema that a key of this name is likely to have: tags are a list, an age is a number."""
    kind = _type(name)
    if kind == "string" and _PLURAL.search(name):
        return {"type": "array", "items": {"type": "string"}, "minItems": 1}
    return {"type": kind}


def _type(name: str) -> str:
    words = set(name.lower().split("_"))
    if words & {"is", "has"}:
        return "boolean"
    return "integer" if words & _WHOLE else "number" if words & _FRACTION else "string"


def without_schemas(text: str) -> str:
    """Return the text with blank lines, as long, in the place of JSON Schemas: what they say is no value."""
    for _, start, end in _schemas(text):
        text = text[:start] + "\n" * (end - start) + text[end:]
    return text


def _schemas(text: str) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yield the JSON objects in a text that describe objects, with where each starts and ends."""
    for value, start, end in json_objects(text) if _MARK in text else ():
        if value is None:
            continue
        if isinstance(value.get("properties"), dict) or ("$defs" in value and value.keys() & {"$ref", "anyOf", "allOf"}):
            yield value, start, end


def json_objects(text: str) -> Iterator[tuple[dict[str, Any] | None, int, int]]:
    """Yield for each brace the JSON object that begins there, None for no object, and where it starts and ends.

    Braces within an object are passed over.
    """
    at = text.find("{")
    while at >= 0:
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            value, end = None, at + 1
        yield value, at, end
        at = text.find("{", end)
