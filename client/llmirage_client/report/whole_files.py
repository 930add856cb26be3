"""Files that appear whole or not at all: each is written beside its place and moved there."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def json_bytes(content: Any, indent: int | None = None) -> bytes:
    """Compact, or with an indent for people; that takes the slower encoder."""
    separators = None if indent else (",", ":")
    try:
        return json.dumps(content, indent=indent, separators=separators, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape but UTF-8 cannot hold
        return json.dumps(content, indent=indent, separators=separators, default=str).encode()


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    write_whole(path, lambda file: file.write(json_bytes(content, indent) + b"\n"))


def write_text(path: Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Raises OSError; what was at the path before is then still there."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.chmod(name, 0o666 & ~_umask())  # mkstemp makes it private; an artifact is an ordinary file
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
