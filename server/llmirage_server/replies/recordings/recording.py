"""One recorded exchange, and the YAML file that holds it.

A file is made to be read in a diff: JSON bodies are YAML, the events of a stream are literal blocks. A replay sends what was
recorded, byte for byte: a form that could not give the bytes back is not used.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from llmirage_shared.yaml_lines import read_plain

FORMAT = "llmirage-recording/1"
HEADER = "# An exchange recorded by llmirage. Keys are not in it; what was one is REDACTED. See docs/recordings.md.\n"
# How bodies are written by those who write JSON; the first is the one that is not named in a file.
_STYLES: Mapping[str, Mapping[str, Any]] = {
    "compact": {"ensure_ascii": False, "separators": (",", ":")},
    "compact ascii": {"separators": (",", ":")},
    "spaced": {"ensure_ascii": False},
    "spaced ascii": {},
    "indented": {"ensure_ascii": False, "indent": 2},
    "indented ascii": {"indent": 2},
}
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_OF_THE_SERVER = ("connection", "content-length", "keep-alive", "trailer", "transfer-encoding", "upgrade")
_LONGEST_YAML = 500_000  # bytes of JSON that is written as YAML


class RecordingError(ValueError):
    """A file that is no recording; the message says what is wrong."""


@dataclass(slots=True, frozen=True)
class Chunk:
    """Bytes of a response. at_ms: when their last byte came, from the arrival of the whole request."""

    at_ms: float
    data: bytes


@dataclass(slots=True)
class Recording:
    """A request and its response.

    path: with its query. body: the JSON value of the request. headers: of the response, names in lower case.
    chunks: one for each event of a stream, or one for the whole body. ended: why the response is incomplete; None if it is
    complete. name: of its file, without the ending.
    """

    method: str
    path: str
    body: Any
    status: int
    headers: Mapping[str, str]
    chunks: list[Chunk]
    stream: bool = False
    ended: str | None = None
    name: str = field(default="", compare=False)

    @property
    def data(self) -> bytes:
        """The response's body."""
        return b"".join([chunk.data for chunk in self.chunks])

    def text(self) -> str:
        response: dict[str, Any] = {"status": self.status, "headers": dict(self.headers)}
        if self.ended is not None:
            response["ended"] = self.ended
        if self.stream:
            response["events"] = [{"at_ms": chunk.at_ms, **_event_form(chunk.data)} for chunk in self.chunks]
        else:
            response |= {"at_ms": self.chunks[0].at_ms if self.chunks else 0.0, **_body_form(self.data)}
        request = {"method": self.method, "path": self.path, "body": self.body}
        document = {"format": FORMAT, "request": request, "response": response}
        return HEADER + readable_yaml(document)

    @classmethod
    def read(cls, text: str, name: str) -> Recording:
        """Read the recording of a text. Raises RecordingError."""
        try:
            document = read_plain(text)
        except (yaml.YAMLError, ValueError) as error:
            raise RecordingError(f"is not YAML: {' '.join(str(error).split())}") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise RecordingError(f"is no recording: it has no line `format: {FORMAT}`")
        try:
            return cls._of(document, name)
        except RecordingError:
            raise
        except (TypeError, ValueError) as error:  # a date, bytes or a set, which YAML has, or half of a character
            raise RecordingError(f"has a value that JSON cannot carry: {error}") from None

    @classmethod
    def _of(cls, document: Mapping[str, Any], name: str) -> Recording:
        """Return the recording of the file's data. Raises RecordingError, and json.dumps's errors for other values."""
        request, response = _mapping(document, "request"), _mapping(document, "response")
        status = _typed(response, "status", int, "a number")
        if not 200 <= status <= 599:
            raise RecordingError(f"status: must be from 200 to 599, not {status}")
        headers = {str(key).lower(): str(value) for key, value in _mapping(response, "headers").items()}
        for key, value in headers.items():
            _check_header(key, value)
        write_json(request.get("body")).decode()
        stream = "events" in response
        parts = _typed(response, "events", list, "a list") if stream else [response]
        ended = response.get("ended")
        return cls(
            _typed(request, "method", str, "a text"),
            _typed(request, "path", str, "a text"),
            request.get("body"),
            status,
            headers,
            [_chunk(part) for part in parts],
            stream,
            None if ended is None else str(ended),
            name,
        )


def _check_header(name: str, value: str) -> None:
    """Raise RecordingError for a header that cannot be sent, or that tells the response's end, as the server does."""
    if not _HEADER_NAME.fullmatch(name) or name in _OF_THE_SERVER:
        raise RecordingError(f"headers: {name!r} cannot be one of a response that is replayed")
    if not _HEADER_VALUE.fullmatch(value):
        raise RecordingError(f"headers: the value of {name} has a character that cannot be sent")


def _mapping(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    return dict(_typed(document, key, dict, "a mapping"))


def _typed(document: Mapping[str, Any], key: str, kind: type[Any], what: str) -> Any:
    value = document.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise RecordingError(f"{key}: must be {what}" if key in document else f"{key} is missing")
    return value


def _chunk(form: Any) -> Chunk:
    if not isinstance(form, dict):
        raise RecordingError("events: each must be a mapping with at_ms and sse")
    at_ms = form.get("at_ms", 0)
    if not isinstance(at_ms, int | float) or isinstance(at_ms, bool) or not 0 <= at_ms < 1e12:
        raise RecordingError(f"at_ms: must be a number of milliseconds, not {at_ms!r}")
    return Chunk(float(at_ms), _bytes(form))


# --- bytes as YAML ------------------------------------------------------------------------------------------------------


def _event_form(data: bytes) -> dict[str, Any]:
    """Return an event that ends with an empty line, as almost all do, without that line."""
    if data.endswith(b"\n\n") and (text := _plain(data[:-1])) is not None:
        return {"sse": text}
    return _text_form(data)


def _body_form(data: bytes) -> dict[str, Any]:
    """Return the form of a body in a file; one of a megabyte, as of many embeddings, would take seconds as YAML."""
    if len(data) > _LONGEST_YAML or (found := json_style(data)) is None:
        return _text_form(data)
    value, style, newline = found
    form: dict[str, Any] = {} if style == "compact" else {"style": style}
    if newline:
        form["newline"] = True
    return {**form, "json": value}


def _text_form(data: bytes) -> dict[str, Any]:
    text = _plain(data)
    return {"base64": base64.b64encode(data).decode()} if text is None else {"text": text}


def _plain(data: bytes) -> str | None:
    """Return the text; None for bytes that are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _bytes(form: Mapping[str, Any]) -> bytes:
    given = [key for key in ("sse", "text", "base64", "json") if key in form]
    if len(given) != 1:
        raise RecordingError("a body must have one of sse, text, base64 and json")
    [key] = given
    value = form[key]
    if key == "json":
        style = form.get("style", "compact")
        if style not in list(_STYLES):
            raise RecordingError(f"style: must be one of {', '.join(_STYLES)}; not {style!r}")
        return write_json(value, style, bool(form.get("newline")))
    if not isinstance(value, str):
        raise RecordingError(f"{key}: must be a text")
    if key == "base64":
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error:
            raise RecordingError("base64: is not base64") from None
    return value.encode() + (b"\n" if key == "sse" else b"")


def json_style(data: bytes) -> tuple[Any, str, bool] | None:
    """Return the JSON value of a body, the style it is written in, and whether a line break ends it.

    None if the body is not JSON, or written in no style known here: then writing the value would not give the body again.
    """
    newline = data.endswith(b"\n")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    for style in _STYLES:
        try:
            if write_json(value, style, newline) == data:
                return value, style, newline
        except (UnicodeEncodeError, ValueError):
            return None
    return None


def write_json(value: Any, style: str = "compact", newline: bool = False) -> bytes:
    """Return a JSON value as bytes."""
    return json.dumps(value, **_STYLES[style]).encode() + (b"\n" if newline else b"")


_DATA_LINE = re.compile(rb"((?:(?!data:)[^\r\n]*[\r\n]+)*data: ?)([^\r\n]*)([\r\n]*)")


def event_parts(event: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return an event with one line of data: what stands before its data, the data, what follows. None for any other."""
    match = _DATA_LINE.fullmatch(event)
    return None if match is None else (match[1], match[2], match[3])


def event_value(event: bytes) -> dict[str, Any]:
    """Return the JSON object of an event; empty if its data is none."""
    parts = event_parts(event)
    try:
        value = json.loads(parts[1]) if parts is not None else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def said(event: Mapping[str, Any]) -> str:
    """Return the text that an event adds to a reply: of the answer, of thoughts, of calls."""
    delta = event.get("delta")
    if isinstance(delta, str):
        return delta  # Responses
    if isinstance(delta, Mapping):
        return _joined(delta, "text", "partial_json", "thinking")  # Messages
    texts = []
    for choice in event.get("choices") or ():  # chat and completions
        if isinstance(choice, Mapping):
            texts.append(_joined(choice, "text"))
            if isinstance(delta := choice.get("delta"), Mapping):
                texts.append(_joined(delta, "reasoning_content", "content", "refusal"))
                calls = [call.get("function") or call.get("custom") for call in delta.get("tool_calls") or ()]
                texts += [_joined(call, "name", "arguments", "input") for call in calls if isinstance(call, Mapping)]
    return "".join(texts)


def _joined(value: Mapping[str, Any], *names: str) -> str:
    return "".join([text for name in names if isinstance(text := value.get(name), str)])


# --- YAML that is made to be read ---------------------------------------------------------------------------------------

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
# What a literal block cannot hold, or not for sure: other line breaks, control characters, spaces at the ends of lines.
_NO_BLOCK = re.compile(
    r"[^\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|[ ]+(\n|$)|^[ \n]"
)


def readable_yaml(document: Any) -> str:
    """JSON data as YAML: reading it gives the same data."""
    return yaml.dump(document, Dumper=_ReadableDumper, allow_unicode=True, sort_keys=False, width=10**9)


class _ReadableDumper(_DUMPER):  # type: ignore[misc, valid-type]
    """Texts of several lines are literal blocks; lists of numbers stand on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_str(dumper: Any, text: str) -> Any:
    style = None
    if "\n" in text or len(text) > 80:
        style = '"' if _NO_BLOCK.search(text) else "|" if "\n" in text else None
    elif _NO_BLOCK.search(text):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _represent_list(dumper: Any, values: list[Any]) -> Any:
    numbers = bool(values) and all(isinstance(value, int | float) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=numbers or not values)


def _represent_float(dumper: Any, value: float) -> Any:
    """As `repr` writes it, so that reading gives the same number. YAML 1.1 wants a point in it."""
    text = repr(value)
    if text in ("inf", "-inf", "nan"):
        text = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}[text]
    elif "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_ReadableDumper.add_representer(str, _represent_str)
_ReadableDumper.add_representer(list, _represent_list)
_ReadableDumper.add_representer(float, _represent_float)
