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
