"""What the OpenAI OpenAPI document says of answers: JSON bodies and each event of a stream."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

DOCUMENT = Path(__file__).parent.parent / "data" / "openapi" / "openai.json.gz"
DONE = "[DONE]"
_NULLABLE = [{"type": "null"}]


class OpenApiLaw:
    """Finds what is wrong with an answer. Paths that the document does not have are not looked at."""

    def __init__(self) -> None:
        self._document: dict[str, Any] = json.loads(gzip.decompress(DOCUMENT.read_bytes()))
        self._schemas = self._document["components"]["schemas"]
        self._own_exceptions()
        self._paths = [(_pattern(path), methods) for path, methods in self._document["paths"].items()]
        self._events = {
            kind: {"$ref": reference["$ref"]}
            for reference in self._schemas["ResponseStreamEvent"]["anyOf"]
            for kind in self._schemas[_name(reference)]["properties"]["type"]["enum"]
        }
        self._validators: dict[str, Draft202012Validator] = {}

    def _own_exceptions(self) -> None:
        """Where the document is narrower than the service it describes."""
        # Chunks of text completions have no schema; they may have neither finish_reason nor usage. And a scored prompt's
        # first token has no log probability.
        completion = self._schemas["CreateCompletionResponse"]["properties"]
        completion["usage"] = {"anyOf": [completion["usage"], *_NULLABLE]}
        choice = completion["choices"]["items"]["properties"]
        choice["finish_reason"] = {"anyOf": [choice["finish_reason"], *_NULLABLE]}
        for schema in choice["logprobs"].get("anyOf", [choice["logprobs"]]):
            if "properties" in schema:
                schema["properties"]["token_logprobs"]["items"] = {"type": ["number", "null"]}
                schema["properties"]["top_logprobs"]["items"] = {"type": ["object", "null"]}
        # Vectors are float32 in base64 where the request asks for it, as the SDKs do.
        vector = self._schemas["Embedding"]["properties"]
        vector["embedding"] = {"anyOf": [vector["embedding"], {"type": "string"}]}
        # Calls of custom tools are streamed, too.
        call = self._schemas["ChatCompletionMessageToolCallChunk"]["properties"]
        call["type"] = {"enum": [*call["type"]["enum"], "custom"]}
        # A response that is not finished has no usage yet.
        usage = self._schemas["Response"]["allOf"][-1]["properties"]
        usage["usage"] = {"anyOf": [usage["usage"], *_NULLABLE]}
        # What a file or a batch does not have (yet) is null, and so are the ends of an empty list.
        for name in ("OpenAIFile", "Batch", "ListFilesResponse", "ListBatchesResponse"):
            properties = self._schemas[name]["properties"]
            for key in properties.keys() - {"id", "object", "status", "created_at", "data"}:
                properties[key] = {"anyOf": [properties[key], *_NULLABLE]}
        # The messages of a stored completion are those of its prompt, whoever said them.
        message = self._schemas["ChatCompletionMessageList"]["properties"]["data"]["items"]["allOf"]
        message[0] = {**self._schemas["ChatCompletionResponseMessage"]}
        message[0]["properties"] = {**message[0]["properties"], "role": {"type": "string"}, "content": {}}

    def problems(self, method: str, path: str, status: int, content_type: str, body: bytes, whole: bool = True) -> list[str]:
        """One line for each thing that is wrong. whole: the answer was read to its end."""
        where = f"{method} {path} -> {status}"
        schemas = self._answers(method, path)
        if schemas is None:
            return []
        if content_type.startswith("text/event-stream"):
            return [f"{where}: {problem}" for problem in self._stream_problems(path, schemas, body.decode(), whole)]
        if not whole:
            return []
        if not content_type.startswith("application/json"):
            return [f"{where}: content-type {content_type!r}"]
        schema = {"$ref": "#/components/schemas/ErrorResponse"} if status >= 400 else schemas.get("application/json")
        return [f"{where}: {problem}" for problem in self.misfits(schema, json.loads(body))]

    def misfits(self, schema: Any, value: Any) -> list[str]:
        """Why a value does not fit a schema of the document; no schema fits everything."""
        if schema is None:
            return []
        key = json.dumps(schema)
        if key not in self._validators:
            self._validators[key] = Draft202012Validator({**schema, "components": self._document["components"]})
        error = best_match(self._validators[key].iter_errors(value))
        return [] if error is None else [f"{error.json_path}: {error.message[:400]} in {json.dumps(value)[:400]}"]

    def _answers(self, method: str, path: str) -> dict[str, Any] | None:
        plain = path.partition("?")[0].removeprefix("/v1")
        for pattern, methods in self._paths:
            if pattern.fullmatch(plain):
                found: dict[str, Any] = methods.get(method.lower(), {})
                return found
        return None

    def _stream_problems(self, path: str, schemas: dict[str, Any], text: str, whole: bool) -> Iterator[str]:
        events = list(sse_events(text))
        named = "/responses" in path
        if whole and not named and (not events or events[-1][1] != DONE):
            yield f"the stream does not end with {DONE}"
        for number, (kind, data) in enumerate(events):
            if data == DONE:
                if number != len(events) - 1:
                    yield f"something comes after {DONE}"
                continue
            value = json.loads(data)
            if named:
                yield from self._event_problems(kind, value, events, number)
            elif "error" not in value:
                schema = schemas.get("text/event-stream", schemas.get("application/json"))
                yield from self.misfits(schema, value)

    def _event_problems(self, kind: str, value: dict[str, Any], events: list[tuple[str, str]], number: int) -> Iterator[str]:
        if kind != value.get("type"):
            yield f"event {kind!r} carries type {value.get('type')!r}"
        elif kind not in self._events:
            yield f"unknown event {kind!r}"
        else:
            yield from (f"{kind} {problem}" for problem in self.misfits(self._events[kind], value))
        if number and value.get("sequence_number") != json.loads(events[number - 1][1])["sequence_number"] + 1:
            yield f"sequence_number {value.get('sequence_number')} of {kind} does not follow the one before"


def sse_events(text: str) -> Iterator[tuple[str, str]]:
    """The complete events of a stream: (event, data). Comments are left out."""
    for block in re.split(r"\r?\n\r?\n", text)[:-1]:
        fields = dict(line.partition(":")[::2] for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            yield fields.get("event", "").strip(), fields["data"].strip()


def _pattern(path: str) -> re.Pattern[str]:
    """A model's name may have slashes."""
    return re.compile(re.sub(r"\\\{(\w+)\\\}", lambda match: ".+" if match[1] == "model" else "[^/]+", re.escape(path)))


def _name(reference: dict[str, Any]) -> str:
    return str(reference["$ref"]).rpartition("/")[2]
