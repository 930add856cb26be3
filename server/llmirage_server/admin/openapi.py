"""The OpenAPI 3.1 document of the table of operations, and a page of it for people, without scripts from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic.json_schema import models_json_schema

from llmirage_shared import pages
from llmirage_shared.wire import schema
from llmirage_shared.wire.schema import chat, embeddings, messages, responses
from llmirage_shared.wire.schema.base import WireModel
from llmirage_shared.yaml_lines import LOADER

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
    answer: str | None = None  # the name of its schema in openapi_answers.yaml
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


def _read(name: str) -> Any:
    return yaml.load(Path(__file__).with_name(name).read_text("utf-8"), LOADER)


_FILE: Mapping[str, Any] = _read("openapi_operations.yaml")
OPERATIONS: tuple[ApiOperation, ...] = tuple(_operation(**entry) for entry in _FILE["operations"])
EXAMPLES: Mapping[str, dict[str, Any]] = _FILE["examples"]  # a body for each path that takes a model, without the model


# Bodies in which undocumented fields are refused.
_CLOSED: tuple[type[WireModel], ...] = (
    chat.ChatCompletionRequest, chat.CompletionRequest, responses.ResponseRequest, responses.InputFields,
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
    answers = _read("openapi_answers.yaml")["schemas"]
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
    """Return a schema of openapi_answers.yaml in full, with titles where pydantic writes them: not for references."""
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


_STYLE = """
details { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; margin: 8px 0; padding: 6px 12px; }
summary { cursor: pointer; overflow-wrap: anywhere; }
summary b { display: inline-block; min-width: 4.5em; color: var(--c1); }
pre { overflow-x: auto; font-size: 13px; } td { overflow-wrap: anywhere; }
"""
# What a link leads to is opened.
_SCRIPT = """
function open() {
  var target = document.getElementById(location.hash.slice(1));
  if (target) { target.open = true; target.scrollIntoView(); }
}
addEventListener("hashchange", open);
open();
"""


def reference_page(document: Mapping[str, Any]) -> bytes:
    """Return the page, UTF-8. document: OpenAPI 3.1, as this server writes it."""
    info, schemas = document["info"], document["components"]["schemas"]
    parts = [
        '<div class="page"><nav><strong>llmirage</strong><a href="/">Live</a><a href="#schemas">Schemas</a>',
        f'<a href="/openapi.json">openapi.json</a><span class="gap"></span>{pages.THEME_BUTTON}</nav>\n<main>',
        f'<h1>API of llmirage {escape(info["version"])}</h1><p class="muted">{escape(info["description"])}</p>\n',
    ]
    for path, methods in document["paths"].items():
        parts += [_shown_operation(method, path, operation) for method, operation in methods.items()]
    parts.append('<h2 id="schemas">Schemas</h2>\n')
    parts += [
        f'<details id="{escape(name)}"><summary>{escape(name)}</summary>{_fields(schema)}</details>\n'
        for name, schema in sorted(schemas.items())
    ]
    return pages.document("llmirage: API", "".join([*parts, "</main></div>\n"]), _STYLE, _SCRIPT).encode()


def _shown_operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    inner = []
    if parameters := operation["parameters"]:
        rows = [(one["name"], _type(one["schema"]), one["in"], "") for one in parameters]
        inner.append(_table(("parameter", "type", "in", ""), rows))
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        inner.append(f"<p>Body, {escape(media)}: {_type(content['schema'])}</p>")
        if "example" in content:
            inner.append(f"<pre>{escape(json.dumps(content['example'], indent=2))}</pre>")
    rows = []
    for status, answer in operation["responses"].items():
        kinds = [f"{escape(media)}: {_type(content['schema'])}" for media, content in answer.get("content", {}).items()]
        rows.append((status, "<br>".join(kinds), escape(answer["description"]), ""))
    inner.append(_table(("status", "body", "meaning", ""), rows))
    head = f"<b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation['summary'])}"
    return f"<details><summary>{head}</summary>{''.join(inner)}</details>\n"


def _fields(schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    if not properties:
        return f"<p>{_type(schema)}</p>"
    required = schema.get("required", ())
    rows = [
        (escape(name), _type(field), "required" if name in required else "", escape(field.get("description", "")))
        for name, field in properties.items()
    ]
    return _table(("field", "type", "", ""), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, str, str, str]]) -> str:
    """Cells are HTML."""
    names = "".join(f'<th scope="col" class="left">{name}</th>' for name in head)
    body = "".join("<tr>" + "".join(f'<td class="left">{cell}</td>' for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _type(schema: Any) -> str:
    """Return a schema in a few words, HTML."""
    return " | ".join(dict.fromkeys(_types(schema)))


def _types(schema: Any) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        yield "any"
    elif "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        yield f'<a href="#{name}">{name}</a>'
    elif several := schema.get("anyOf") or schema.get("oneOf"):
        for one in several:
            yield from _types(one)
    elif "const" in schema:
        yield escape(json.dumps(schema["const"]))
    elif "enum" in schema:
        yield from (escape(json.dumps(value)) for value in schema["enum"])
    elif schema.get("type") == "array":
        yield f"list of ({_type(schema.get('items'))})"
    else:
        kind = schema.get("type", "any")
        yield escape(kind if isinstance(kind, str) else " | ".join(kind))
