"""The OpenAPI 3.1 document of the table of operations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic.json_schema import models_json_schema

from llmirage_shared.wire import schema
from llmirage_shared.wire.schema import chat, completions, embeddings, messages, responses
from llmirage_shared.wire.schema.base import WireModel

Style = Literal["json", "text", "list", "one_or_list", "bytes", "lines"]


@dataclass(frozen=True, kw_only=True)
class ApiOperation:
    """One method of one path. answer None: the body is empty or plain text."""

    method: str
    path: str
    id: str
    summary: str
    body: type[WireModel] | None = None  # in the file by its name in wire/schema
    body_required: bool = True
    form: bool = False  # the body is multipart/form-data
    answer: str | None = None  # the name of its schema in answers.yaml
    style: Style = "json"
    streams: bool = False
    query: Mapping[str, Any] = field(default_factory=dict)  # JSON Schema by name
    errors: tuple[int, ...] = ()
    messages_api: bool = False  # errors have Anthropic's shape


def _operation(body: str | None = None, **entry: Any) -> ApiOperation:
    if body is not None:
        module, _, name = body.partition(".")
        entry["body"] = getattr(getattr(schema, module), name)
    return ApiOperation(**entry)


_FILE: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("operations.yaml").read_text("utf-8"))
OPERATIONS: tuple[ApiOperation, ...] = tuple(_operation(**entry) for entry in _FILE["operations"])
EXAMPLES: Mapping[str, dict[str, Any]] = _FILE["examples"]  # a body for each path that takes a model, without the model


# Bodies in which undocumented fields are refused.
_CLOSED: tuple[type[WireModel], ...] = (
    chat.ChatCompletionRequest, completions.CompletionRequest, responses.ResponseRequest, responses.InputFields,
    responses.ConversationCreate, responses.ItemsCreate, embeddings.EmbeddingRequest, embeddings.ModerationRequest,
    messages.MessagesRequest, messages.CountRequest,
)  # fmt: skip
_PLACE = "#/components/schemas/"
_WORDS = {
    400: "The request is invalid; the error names the field",
    404: "Not found",
    413: "The request is too large",
    503: "The server sleeps, shuts down, or has no instance",
}


def openapi_document(model: str, documented_only: bool = True) -> dict[str, Any]:
    """Return the document as a JSON object. model: the name in its examples. documented_only: other fields are refused."""
    bodies = list(dict.fromkeys(operation.body for operation in OPERATIONS if operation.body is not None))
    names, definitions = models_json_schema([(body, "validation") for body in bodies], ref_template=_PLACE + "{model}")
    refs = {body: names[body, "validation"] for body in bodies}
    answers = yaml.safe_load(Path(__file__).with_name("answers.yaml").read_text("utf-8"))["schemas"]
    schemas = _corrected(definitions["$defs"]) | {name: _answer(name, schema) for name, schema in answers.items()}
    if documented_only:
        for body in _CLOSED:
            described = schemas[body.__name__]
            others: dict[str, Any] = {name: {} for name in sorted(body.extensions) if name not in described["properties"]}
            described["properties"] |= others
            described["additionalProperties"] = {"type": "null"}
        for inner in (chat.StreamOptions, responses.ResponseStreamOptions, responses.Reasoning, responses.TextOptions):
            schemas[inner.__name__]["additionalProperties"] = False
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation, refs, model)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "llmirage",
            "version": version("llmirage"),
            "description": "A simulated LLM cluster behind the OpenAI API.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def _answer(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of answers.yaml in full, with titles where pydantic writes them: not for references."""
    if "anyOf" in schema:
        return {"title": name, **schema}
    properties = {
        key: value if "$ref" in value.get("anyOf", [value])[0] else {**value, "title": key.replace("_", " ").title()}
        for key, value in schema["properties"].items()
    }
    required = [key for key, value in properties.items() if "default" not in value]
    whole = {"title": name, "type": "object", "additionalProperties": True, **schema, "properties": properties}
    return whole | ({"required": required} if required else {})


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": _PLACE + name}


def _described(operation: ApiOperation, refs: dict[type[WireModel], Any], model: str) -> dict[str, Any]:
    in_path = re.findall(r"{(\w+)}", operation.path)
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in in_path]
        + [{"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()],
        "responses": {"200": _success(operation)},
    }
    if operation.body is not None:
        content: dict[str, Any] = {"schema": refs[operation.body]}
        if operation.path in EXAMPLES:
            content["example"] = {"model": model, **EXAMPLES[operation.path]}
        kind = "multipart/form-data" if operation.form else "application/json"
        described["requestBody"] = {"required": operation.body_required, "content": {kind: content}}
    shape = _reference("MessagesErrorAnswer" if operation.messages_api else "ErrorAnswer")
    statuses = sorted({*operation.errors, *((413,) if operation.body is not None else ())})
    for status in statuses:
        described["responses"][str(status)] = {
            "description": _WORDS[status],
            "content": {"application/json": {"schema": shape}},
        }
    described["responses"]["default"] = {"description": "An error", "content": {"application/json": {"schema": shape}}}
    if operation.style == "text":
        described["responses"]["400"] = {
            "description": "Requests are in progress",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    return described


def _success(operation: ApiOperation) -> dict[str, Any]:
    if operation.style == "lines":
        return {"description": "JSON lines", "content": {"application/x-jsonl": {"schema": {"type": "string"}}}}
    if operation.style == "bytes":
        return {"description": "The bytes", "content": {"application/octet-stream": {"schema": {}}}}
    if operation.answer is None:
        return {"description": "Done", "content": {"text/plain": {"schema": {"type": "string"}}}}
    schema = _reference(operation.answer)
    several = {"type": "array", "items": schema}
    schema = {"json": schema, "list": several, "one_or_list": {"anyOf": [schema, several]}}[operation.style]
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"description": "Server-sent events, each with JSON as its data"}}
    return {
        "description": "The response; with `stream`, its events" if operation.streams else "The response",
        "content": content,
    }


_LIMITS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def _corrected(schema: Any) -> Any:
    """Return the schema in JSON Schema's own words.

    Alternatives that a function of ours tells apart may contain each other, so `oneOf` becomes `anyOf`. And pydantic writes
    the limits of numbers behind a validator (16.0 is an integer, too) under its own names.
    """
    if isinstance(schema, list):
        return [_corrected(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    names = _LIMITS if schema.get("type") in ("integer", "number") else {}
    if "oneOf" in schema and "discriminator" not in schema:
        names = {"oneOf": "anyOf"}
    return {names.get(key, key): _corrected(value) for key, value in schema.items()}
