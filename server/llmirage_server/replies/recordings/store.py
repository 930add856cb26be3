"""Recordings in a folder: written one file at a time, and found for a request by its content.

Of a request's body, the fields in CONTENT_FIELDS count. In them these do not count: ids, fields that are null, marks for
caching, the names of calls (only which result belongs to which call), and, in system prompts and in text inside XML-like
tags, dates, times and UUIDs. A text alone and a list with one text part are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmirage_server.replies import patterns
from llmirage_server.replies.recordings.recording import Recording, RecordingError
from llmirage_server.replies.recordings.redaction import Redactor

ENDPOINTS = {  # what a path ends with, and the name of its API in file names
    "/chat/completions": "chat",
    "/completions": "completions",
    "/responses": "responses",
    "/messages": "messages",
    "/embeddings": "embeddings",
}
CONTENT_FIELDS = (
    *("model", "messages", "system", "prompt", "suffix", "input", "instructions", "previous_response_id", "conversation"),
    *("tools", "functions", "tool_choice", "function_call", "response_format", "text", "output_config"),
    *("n", "stream", "stream_options", "dimensions", "encoding_format"),
)
_DROPPED = frozenset(("id", "cache_control", "status", "annotations", "logprobs", "encrypted_content", "signature"))
_CALL_IDS = frozenset(("call_id", "tool_call_id", "tool_use_id"))
_TEXT_PARTS = frozenset(("text", "input_text", "output_text"))
_SYSTEM_ROLES = frozenset(("system", "developer"))
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,? )?"
_VOLATILE = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|\d{4}-\d\d-\d\d(?:[t ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: ?z| ?[+-]\d\d:?\d\d)?)?"
    rf"|\b{_DAY}{_MONTH} \d\d?(?:st|nd|rd|th)?,? \d{{4}}\b|\b{_DAY}\d\d?(?:st|nd|rd|th)?\.? {_MONTH},? \d{{4}}\b"
    r"|\b\d\d?:\d\d(?::\d\d(?:\.\d+)?)?(?: ?[ap]m)?\b",
    re.IGNORECASE,
)
_TAG = re.compile(r"<(/?)([A-Za-z][\w-]*+)([^<>]*+)>")


def endpoint_of(path: str) -> str | None:
    """Return the API that a path (with or without a query) belongs to, None for paths that are not recorded."""
    plain = path.partition("?")[0].rstrip("/")
    return next((name for end, name in ENDPOINTS.items() if plain.endswith(end)), None)


class Matcher:
    """Says when two requests are the same."""

    def __init__(self, fields: Sequence[str] = CONTENT_FIELDS, ignored: Sequence[str] = ()) -> None:
        """fields: of the body; all that count. ignored: regular expressions; what matches one does not count in any text.

        Raises ValueError for a text that is no regular expression.
        """
        self._fields = fields
        self._ignored = []
        for text in ignored:
            try:
                self._ignored.append(patterns.compiled(text))
            except ValueError as error:
                raise ValueError(f"{text!r} {error}") from None

    def content(self, body: Any) -> Any:
        """Return the part of a body that counts: equal for requests that are the same."""
        if not isinstance(body, Mapping):
            return body
        calls: dict[str, int] = {}
        content: dict[str, Any] = {}
        for name in self._fields:
            value = body.get(name)
            if value is not None and not (name == "stream" and value is False):
                content[name] = self._value(value, calls, name in ("system", "instructions"))
        return content

    def key(self, path: str, body: Any) -> str:
        """Return the same text for requests that are the same: 12 hexadecimal digits."""
        written = json.dumps([endpoint_of(path), self.content(body)], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(written.encode("utf-8", "replace")).hexdigest()[:12]

    def _value(self, value: Any, calls: dict[str, int], system: bool) -> Any:
        if isinstance(value, str):
            return self._text(value, system)
        if isinstance(value, list):
            if len(value) == 1 and (text := _only_text(value[0])) is not None:
                return self._text(text, system)
            return [self._value(item, calls, system) for item in value]
        if not isinstance(value, dict):
            return value
        system = system or value.get("role") in _SYSTEM_ROLES
        called = value.get("type") in ("function", "custom", "tool_use", "server_tool_use")  # in a chat message, or a block
        content = {}
        for name, item in value.items():
            if item is None:
                continue
            if name in _CALL_IDS or (name == "id" and called):
                content["call"] = calls.setdefault(str(item), len(calls))
            elif name not in _DROPPED:
                content[name] = self._value(item, calls, system)
        return content

    def _text(self, text: str, system: bool) -> str:
        for pattern in self._ignored:
            text = pattern.sub("", text)
        if system:
            return _VOLATILE.sub("~", text)
        return _with_tagged(text, lambda tagged: _VOLATILE.sub("~", tagged))


def _with_tagged(text: str, changed: Callable[[str], str]) -> str:
    """Return the text with each outermost XML-like element changed, in time linear in the text, whatever its tags."""
    tags = list(_TAG.finditer(text)) if "</" in text else []
    last_end = {tag[2]: tag.start() for tag in tags if tag[1] and not tag[3]}
    parts, done = [], 0
    for tag in tags:
        slash, name, _ = tag.groups()
        if slash or tag.start() < done or last_end.get(name, -1) < tag.end():
            continue
        end = f"</{name}>"
        parts.append(text[done : tag.start()])
        done = text.index(end, tag.end()) + len(end)
        parts.append(changed(text[tag.start() : done]))
    return "".join([*parts, text[done:]]) if parts else text


def _only_text(part: Any) -> str | None:
    if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    return None


def first_difference(a: Any, b: Any, place: str = "") -> str | None:
    """Return the place where two contents first differ: "messages[1].content"; None if they are equal."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in [*a, *(name for name in b if name not in a)]:
            here = f"{place}.{name}" if place else str(name)
            if name not in a or name not in b:
                return here
            if found := first_difference(a[name], b[name], here):
                return found
        return None
    if isinstance(a, list) and isinstance(b, list):
        for index, (one, other) in enumerate(zip(a, b, strict=False)):
            if found := first_difference(one, other, f"{place}[{index}]"):
                return found
        return None if len(a) == len(b) else f"{place}[{min(len(a), len(b))}]"
    return None if type(a) is type(b) and a == b else place or "the body"


def likeness(a: Any, b: Any) -> int:
    """Return the likeness of two contents: the number of equal leaves at equal places."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return sum(likeness(a[name], b[name]) for name in a if name in b)
    if isinstance(a, list) and isinstance(b, list):
        return sum(likeness(one, other) for one, other in zip(a, b, strict=False))
    return int(a == b)


def last_text(body: Any) -> str:
    """Return the question of a request, for the name of its file: the last text of a user, or of no role."""
    if not isinstance(body, Mapping):
        return ""
    for name in ("messages", "input", "prompt"):
        value = body.get(name)
        if value:
            return next(_said(value), "")
    return ""


def _said(value: Any) -> Iterator[str]:
    """Texts of users, the last first."""
    if isinstance(value, str):
        if text := _with_tagged(value, lambda _: "").strip():
            yield text
    elif isinstance(value, list):
        for item in reversed(value):
            yield from _said(item)
    elif isinstance(value, Mapping) and value.get("role", "user") == "user":
        yield from _said(value.get("content", value.get("text")))


_LONGEST_SLUG = 40
_ENDINGS = (".yaml", ".yml")
_NUMBERED = re.compile(r"(.*-[0-9a-f]{8})-(\d+)")  # the second and further recordings of one request
_NO_KEYS = Redactor()


class RecordingWriter:
    """Writes recordings to a folder under names that say what was asked.

    The same request gets the same name in every run, so that a new recording replaces the old ones, and a diff shows what
    has changed. In one run the second recording of a request has -2 at the end of its name.
    """

    def __init__(self, folder: Path, matcher: Matcher | None = None) -> None:
        """Make the folder. matcher: tells if requests are the same. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._matcher = matcher or Matcher()
        self._written: dict[str, int] = {}

    def write(self, recording: Recording) -> Path:
        """Write one file, whole or not at all, and set the recording's name. Raises OSError."""
        name = self._name(recording)
        self._written[name] = self._written.get(name, 0) + 1
        if self._written[name] == 1:
            self._remove_repeats(name)
        recording.name = name if self._written[name] == 1 else f"{name}-{self._written[name]}"
        path = self.folder / f"{recording.name}.yaml"
        unfinished = self.folder / f".{recording.name}.{os.getpid()}.tmp"
        try:
            unfinished.write_bytes(recording.text().encode())
            unfinished.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise
        return path

    def _remove_repeats(self, name: str) -> None:
        """Remove those of an earlier run: they would be replayed after the new recording."""
        for path in self.folder.glob(f"{name}-*.yaml"):
            if _NUMBERED.fullmatch(path.stem):
                path.unlink()

    def _name(self, recording: Recording) -> str:
        words = re.findall(r"[a-z0-9]+", last_text(recording.body).lower())
        slug = "-".join(words)[:_LONGEST_SLUG].rstrip("-")
        key = self._matcher.key(recording.path, recording.body)[:8]
        return "-".join([word for word in (endpoint_of(recording.path) or "other", slug, key) if word])


class RecordingLibrary:
    """Recordings by what they answer.

    A request that was recorded several times gets these in the order of their names, and from then on the last. Incomplete
    recordings answer only where there is no complete one.
    """

    def __init__(self, recordings: Iterable[Recording], matcher: Matcher) -> None:
        self.matcher = matcher
        self._found: dict[str, list[Recording]] = {}
        self._asked: dict[str, int] = {}
        self._number = 0
        for recording in recordings:
            self.add(recording)

    def __len__(self) -> int:
        return self._number

    def add(self, recording: Recording) -> None:
        self._number += 1
        body = _NO_KEYS.value(recording.body)  # as in requests: the file may be older than a form of keys, or edited
        self._found.setdefault(self.matcher.key(recording.path, body), []).append(recording)

    def find(self, path: str, body: Any) -> Recording | None:
        """Return the recording that answers this request, None if there is none."""
        key = self.matcher.key(path, body)
        there = self._found.get(key)
        if not there:
            return None
        usable = [recording for recording in there if recording.ended is None] or there
        asked = self._asked.get(key, 0)
        self._asked[key] = asked + 1
        return usable[min(asked, len(usable) - 1)]

    def nearest(self, path: str, body: Any) -> tuple[Recording, str] | None:
        """Return the recording of the same API that has most in common with a request, and where it differs first."""
        endpoint = endpoint_of(path)
        content = self.matcher.content(body)
        candidates = [there[0] for there in self._found.values() if endpoint_of(there[0].path) == endpoint]
        if not candidates:
            return None
        found = max(candidates, key=lambda recording: likeness(content, self.matcher.content(recording.body)))
        return found, first_difference(content, self.matcher.content(found.body)) or "the body"


def read_folder(folder: Path) -> tuple[list[Recording], list[str]]:
    """Return the recordings of a folder and of those in it, by name, and what is wrong with other YAML files there."""
    recordings, problems = [], []
    for path in sorted(folder.rglob("*"), key=_order):
        if path.suffix not in _ENDINGS or path.name.startswith(".") or not path.is_file():
            continue
        try:
            recordings.append(Recording.read(path.read_text(encoding="utf-8"), path.stem))
        except RecordingError as error:
            problems.append(f"{path}: {error}")
        except UnicodeDecodeError:
            problems.append(f"{path}: is not UTF-8")
        except OSError as error:
            problems.append(f"{path}: {error.strerror or error}")
    return recordings, problems


def _order(path: Path) -> tuple[Sequence[str], str, int]:
    """By name; of one request's recordings -2 before -10."""
    stem, number = path.stem, 1
    if (match := _NUMBERED.fullmatch(stem)) is not None:
        stem, number = match.group(1), int(match.group(2))
    return path.parent.parts, stem, number
