"""Where a command's files go."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmirage_client.report.whole_files import write_whole
from llmirage_shared.settings import ConfigError


def write_output(data: bytes, output: str | None) -> None:
    """Writes a file in one move, so that no reader ever sees half of it; None and "-": to standard output.

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


def check_unused(settings: Mapping[str, Any]) -> None:
    """Raises ConfigError where --artifact-dir has files, which --overwrite does not allow to replace."""
    place = settings["artifact_dir"]
    if place is None or settings["overwrite"]:
        return
    folder = Path(place)
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError([f"--artifact-dir {place}: the folder is not empty; name another one, or add --overwrite"])


def new_folder(name: str) -> Path:
    """As `unused_folder`, and has artifacts/latest link to it. Raises OSError."""
    folder = unused_folder(name)
    latest = folder.with_name("latest")
    with contextlib.suppress(OSError):  # a file system without links
        if latest.is_symlink() or not latest.exists():
            beside = folder.with_name(f".latest.{os.getpid()}")
            beside.symlink_to(folder.name)
            beside.replace(latest)
    return folder


def unused_folder(name: str) -> Path:
    """Makes artifacts/NAME-DATE-TIME, which no run had before. Raises OSError."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        folder = Path("artifacts") / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder
