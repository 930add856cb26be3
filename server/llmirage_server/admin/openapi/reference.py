"""GET /docs: the OpenAPI document as a page that people read, without scripts from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from llmirage_shared import pages

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
        parts += [_operation(method, path, operation) for method, operation in methods.items()]
    parts.append('<h2 id="schemas">Schemas</h2>\n')
    parts += [
        f'<details id="{escape(name)}"><summary>{escape(name)}</summary>{_fields(schema)}</details>\n'
        for name, schema in sorted(schemas.items())
    ]
    return pages.document("llmirage: API", "".join([*parts, "</main></div>\n"]), _STYLE, _SCRIPT).encode()


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
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
