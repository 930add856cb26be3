"""`llmirage record convert`: files of other tools become recordings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from json import dumps, loads
from pathlib import Path
from typing import Any

import click
import yaml

from llmirage_server.config import ConfigError
from llmirage_server.replies.recordings.foreign import (
    Exchanged,
    ForeignFileError,
    exchanges_of_cassette,
    exchanges_of_lines,
    recording_of,
)
from llmirage_server.replies.recordings.store import RecordingWriter
from llmirage_shared.yaml_lines import check_aliases

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def convert(files: Sequence[str], out: str, format: str, json: bool) -> None:
    """Write the script of these files. Raises ConfigError with their problems; then nothing is written."""
    problems: list[str] = []
    found: list[Exchanged] = []
    lines: list[tuple[str, Any]] = []
    for name in files:
        try:
            kind, document = _read(Path(name), format)
            if kind == "vcr":
                found += exchanges_of_cassette(document)
            else:
                lines += document
        except (ForeignFileError, OSError) as error:
            problems.append(f"{name}: {getattr(error, 'strerror', None) or error}")
    try:
        found += exchanges_of_lines(lines)
    except ForeignFileError as error:
        problems.append(str(error))
    if problems:
        raise ConfigError(problems)
    if not found:
        raise ConfigError(["no exchange with chat, completions, responses, messages or embeddings is in these files"])
    _write(found, out, json)


def _write(found: Iterable[Exchanged], out: str, json: bool) -> None:
    try:
        writer = RecordingWriter(Path(out))
        written = [writer.write(recording_of(exchange)) for exchange in found]
    except OSError as error:
        raise ConfigError([f"{out}: {error.strerror or error}"]) from None
    if json:
        click.echo(dumps({"folder": out, "recordings": [path.name for path in written]}))
        return
    click.echo(f"{len(written)} {'recordings are' if len(written) > 1 else 'recording is'} in {out}")


def _read(path: Path, format: str) -> tuple[str, Any]:
    """Return the format of a file and its content: of `pairs` the lines, each with its place."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if format == "pairs" or (format == "auto" and path.suffix == ".jsonl"):
        return "pairs", list(_lines(path, text))
    try:
        check_aliases(text)
        document = yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise ForeignFileError(f"is not YAML: {' '.join(str(error).split())}") from None
    if isinstance(document, dict) and isinstance(document.get("interactions"), list):
        return "vcr", document
    if isinstance(document, dict) and isinstance(document.get("fixtures"), list):
        raise ForeignFileError("has aimock's fixtures, which become a script: llmirage script convert")
    raise ForeignFileError("is no cassette (YAML with interactions); pairs of requests and responses are a .jsonl file")


def _lines(path: Path, text: str) -> Iterable[tuple[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield f"{path}:{number}", loads(line)
            except ValueError as error:
                raise ForeignFileError(f"line {number} is not JSON: {error}") from None
