"""Where a command's files go."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

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
