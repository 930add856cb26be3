"""Reduce the OpenAI OpenAPI document to the schemas that the tests hold the server's answers against.

    python tools/reduce_openapi.py openai-openapi.json tests/data/openapi/openai.json.gz

The document is published at https://github.com/openai/openai-openapi under the MIT licence.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATHS = (
    "/chat/completions", "/chat/completions/{completion_id}", "/chat/completions/{completion_id}/messages", "/completions",
    "/conversations", "/conversations/{conversation_id}", "/conversations/{conversation_id}/items",
    "/conversations/{conversation_id}/items/{item_id}", "/embeddings", "/batches", "/batches/{batch_id}",
    "/batches/{batch_id}/cancel", "/files", "/files/{file_id}", "/models", "/models/{model}", "/moderations", "/responses",
    "/responses/{response_id}", "/responses/{response_id}/cancel", "/responses/{response_id}/input_items",
    "/responses/input_tokens", "/responses/compact",
)  # fmt: skip
EXTRA = ("ErrorResponse",)
# Keywords that constrain nothing.
_WORDS = ("description", "title", "example", "examples", "default", "deprecated", "externalDocs")


def reduced(document: dict[str, Any]) -> dict[str, Any]:
    """Answers by path, method and content type, and every schema they refer to."""
    answers: dict[str, dict[str, dict[str, Any]]] = {}
    for path in PATHS:
        for method, operation in document["paths"][path].items():
            for status, response in operation.get("responses", {}).items():
                for kind, content in response.get("content", {}).items():
                    if status.startswith("2"):
                        answers.setdefault(path, {}).setdefault(method, {})[kind] = content["schema"]
    schemas, names = document["components"]["schemas"], [*EXTRA, *_references(answers)]
    kept: dict[str, Any] = {}
    while names:
        name = names.pop()
        if name not in kept:
            kept[name] = _bare(schemas[name])
            names += _references(kept[name])
    return {
        "source": "https://github.com/openai/openai-openapi",
        "version": document["info"]["version"],
        "license": "MIT",
        "paths": answers,
        "components": {"schemas": dict(sorted(kept.items()))},
    }


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].rpartition("/")[2]
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _bare(value: Any, names: bool = False) -> Any:
    """Without words. names: the keys are names of properties, not keywords."""
    if isinstance(value, list):
        return [_bare(item) for item in value]
    if not isinstance(value, dict):
        return value
    bare = {
        key: _bare(item, names=key == "properties" and not names)
        for key, item in value.items()
        if names or not (key in _WORDS or key.startswith("x-"))
    }
    if not names and bare.pop("nullable", False) is True:  # OpenAPI 3.0's word, which JSON Schema does not know
        return {"anyOf": [bare, {"type": "null"}]}
    return bare


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    small = json.dumps(reduced(json.loads(source.read_text())), separators=(",", ":"))
    target.write_bytes(gzip.compress(small.encode(), 9, mtime=0))
    print(f"{target}: {len(small):,} bytes of JSON, {target.stat().st_size:,} compressed")


if __name__ == "__main__":
    main()
