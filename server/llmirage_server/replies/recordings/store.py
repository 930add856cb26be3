"""Recordings in a folder: written one file at a time, and found for a request."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from llmirage_server.replies.recordings.matching import Matcher, endpoint_of, first_difference, last_text, likeness
from llmirage_server.replies.recordings.recording import Recording, RecordingError
from llmirage_server.replies.recordings.redaction import Redactor

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
