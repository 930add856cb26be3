"""Files that are replaced in one step: a process that is killed while it writes one leaves no part of it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


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
