"""Where a command's files go."""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

import click


def write_output(data: bytes, output: str | None) -> None:
    """Writes a file in one move, so that no reader ever sees half of it; None and "-": to standard output."""
    if output in (None, "-"):
        sys.stdout.buffer.write(data)
        return
    path = Path(str(output))
    if path.suffix == ".gz":
        data = gzip.compress(data, compresslevel=9, mtime=0)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise click.BadParameter(f"cannot write {path}: {error.strerror}", param_hint="--output") from None


def cannot_be_folder(place: str) -> str | None:
    """Why files cannot be written into a folder, which need not be there yet, in words for the user; None: they can."""
    path = Path(place)
    try:
        there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    except OSError as error:
        return f"{place}: {error.strerror}"
    if not there.is_dir():
        return f"{place}: not a folder" if there == path else f"{place}: {there} is not a folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{place}: nothing may be written into {there}"
    return None


def cannot_be_file(place: str) -> str | None:
    """Why a file cannot be written, in words for the user; None: it can."""
    path = Path(place)
    try:
        if path.is_dir():
            return f"{place}: is a folder"
        if path.exists():
            return None if os.access(path, os.W_OK) else f"{place}: may not be written"
        if not path.absolute().parent.is_dir():
            return f"{place}: there is no folder {path.parent}"
    except OSError as error:
        return f"{place}: {error.strerror}"
    return (
        None if os.access(path.absolute().parent, os.W_OK | os.X_OK) else f"{place}: nothing may be written into its folder"
    )
