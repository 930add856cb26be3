"""Where output goes, without credentials: files replaced in one step, folders of runs, pages in the browser."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import sys
import time
import webbrowser
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import click

from llmirage_shared.settings import ConfigError


def json_bytes(content: Any, indent: int | None = None) -> bytes:
    """Return compact, or with an indent for people; that takes the slower encoder."""
    separators = None if indent else (",", ":")
    try:
        return json.dumps(content, indent=indent, separators=separators, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape but UTF-8 cannot hold
        return json.dumps(content, indent=indent, separators=separators, default=str).encode()


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    """Write indented JSON in one step. Raises OSError."""
    write_whole(path, lambda file: file.write(json_bytes(content, indent) + b"\n"))


def write_text(path: Path, text: str) -> None:
    """Write text in one step. Raises OSError."""
    write_whole(path, lambda file: file.write(text.encode()))


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace the file at the path in one step. Raises OSError; the earlier file is then unchanged."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with _nameless(path.parent) or beside.open("wb") as file:
            write(file)
            if isinstance(file.name, int):
                _name(file, beside)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _nameless(folder: Path) -> BinaryIO | None:
    """Return a file without a name, which the system removes with the process. None: this system or file system has none."""
    if not hasattr(os, "O_TMPFILE") or not Path("/proc/self/fd").exists():
        return None
    with contextlib.suppress(OSError):
        return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o666), "wb")
    return None


def _name(file: BinaryIO, path: Path) -> None:
    file.flush()
    path.unlink(missing_ok=True)
    # A dir_fd, which an absolute path does not need, makes Python call linkat(), which alone can follow this link.
    os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=file.fileno(), follow_symlinks=True)


def new_folder(name: str) -> Path:
    """Make a folder as `unused_folder` does, and link artifacts/latest to it. Raises OSError."""
    folder = unused_folder(name)
    latest = folder.with_name("latest")
    with contextlib.suppress(OSError):  # a file system without links
        if latest.is_symlink() or not latest.exists():
            beside = folder.with_name(f".latest.{os.getpid()}")
            beside.symlink_to(folder.name)
            beside.replace(latest)
    return folder


def unused_folder(name: str) -> Path:
    """Make artifacts/NAME-DATE-TIME, which no run had before. Raises OSError."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        folder = Path("artifacts") / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def write_output(parts: Iterable[bytes], output: str | None) -> None:
    """Write a file in one move, so that no reader ever sees half of it; None and "-": to standard output, part by part.

    Raises ConfigError.
    """
    if output in (None, "-"):
        sys.stdout.buffer.writelines(parts)
        return
    path = Path(str(output))
    if path.suffix == ".gz":
        parts = _compressed(parts)
    try:
        write_whole(path, lambda file: file.writelines(parts))
    except OSError as error:
        raise ConfigError([f"Invalid value for --output: cannot write {path}: {error.strerror}"]) from None


def _compressed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a gzip file without a time stamp, so that the same command writes the same file."""
    packer = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    yield from map(packer.compress, parts)
    yield packer.flush()


def check_json(json: bool, output: str | None) -> None:
    """Raise ConfigError where --json and the output of the command would both go to standard output."""
    if json and output in (None, "-"):
        raise ConfigError(["--json needs --output FILE: standard output cannot have both"])


def check_unused(artifact_dir: str | None, overwrite: bool) -> None:
    """Raise ConfigError where the folder has files that may not be replaced."""
    if artifact_dir is None or overwrite:
        return
    folder = Path(artifact_dir)
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError([f"--artifact-dir {artifact_dir}: the folder is not empty; name another one, or add --overwrite"])


def open_page(page: Path) -> None:
    """Where there is no display, or no browser, the path is said instead."""
    if not _display() or not webbrowser.open(page.resolve().as_uri()):
        click.echo(f"No browser could be started: open {page} by hand.", err=True)


def _display() -> bool:
    """Return whether a browser can have a window: one of a terminal would take over the command's."""
    return sys.platform in ("win32", "darwin") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


HIDDEN = "<hidden>"

_SECRET_NAME = re.compile(r"authorization|api[-_]?key|token$|secret|password|cookie", re.IGNORECASE)
_SECRET_HEADER = re.compile(r"([\w-]*(?:authorization|api[-_]?key|token|secret|cookie))\s*:.*", re.IGNORECASE | re.DOTALL)
_URL_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def hide_in_text(text: str) -> str:
    """Hide the value of a secret header line, and user and password of a URL."""
    if match := _SECRET_HEADER.fullmatch(text):
        return f"{match[1]}: {HIDDEN}"
    return _URL_USER.sub(HIDDEN, text)


def hide_in_command(arguments: Sequence[str]) -> str:
    """Return a command line as a shell would read it, without the values of its secrets."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next:
            shown.append(HIDDEN)
            hide_next = False
        elif argument.startswith("--") and _SECRET_NAME.search(name):
            shown.append(f"{name}={HIDDEN}" if equals else argument)
            hide_next = not equals
        elif name == "--header" and equals:
            shown.append(f"{name}={hide_in_text(argument[len(name) + 1 :])}")
        elif argument.startswith("-H") and len(argument) > 2:
            shown.append("-H" + hide_in_text(argument[2:]))
        else:
            shown.append(hide_in_text(argument))
    return shlex.join(shown)


def hide_in_options(value: Any, name: str = "") -> Any:
    """Return a copy of JSON-like settings without the values of secrets, however deep they lie."""
    if isinstance(value, str):
        return HIDDEN if value and _SECRET_NAME.search(name) else hide_in_text(value)
    if isinstance(value, Mapping):
        return {k: hide_in_options(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        # A pair (name, value) is how headers are often kept.
        if len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], str) and _SECRET_NAME.search(value[0]):
            return [value[0], HIDDEN]
        return [hide_in_options(v, name) for v in value]
    return value
