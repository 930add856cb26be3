"""What is wrong with the files and folders that a user names, before anything is worked out in vain."""

from __future__ import annotations

import os
from pathlib import Path


def is_no_file(place: str) -> str | None:
    """Why a file cannot be read, in words for the user; None: it can."""
    return None if Path(place).is_file() else f"must be a file that is there, not {place!r}"


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
    """Why a file cannot be written, in words for the user; None: it can. A dash is standard output."""
    if place in ("", "-"):
        return None if place else "must be a file, not ''"
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
