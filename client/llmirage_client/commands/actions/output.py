"""Where a command's files go, and a finished page in the browser."""

from __future__ import annotations

import gzip
import os
import sys
import webbrowser
from pathlib import Path

import click

from llmirage_client.report.atomic_files import write_whole
from llmirage_shared.settings import ConfigError


def write_output(data: bytes, output: str | None) -> None:
    """Write a file in one move, so that no reader ever sees half of it; None and "-": to standard output.

    Raises ConfigError.
    """
    if output in (None, "-"):
        sys.stdout.buffer.write(data)
        return
    path = Path(str(output))
    if path.suffix == ".gz":
        data = gzip.compress(data, compresslevel=9, mtime=0)
    try:
        write_whole(path, lambda file: file.write(data))
    except OSError as error:
        raise ConfigError([f"Invalid value for --output: cannot write {path}: {error.strerror}"]) from None


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
