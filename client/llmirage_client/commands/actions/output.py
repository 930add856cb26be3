"""Where a command's files go, and a finished page in the browser."""

from __future__ import annotations

import os
import sys
import webbrowser
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from llmirage_client.report.atomic_files import write_whole
from llmirage_shared.settings import ConfigError


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
