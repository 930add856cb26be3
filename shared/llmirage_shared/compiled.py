"""The compiled build (`make compile`): whether it is in use, and whether it matches its sources.

Python prefers an extension module to the source beside it, however old it is. So the build writes the size, the time and the
hash of each source to a manifest, and commands compare them at their start: 30 calls of stat, or one where nothing is
compiled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of a checkout; nothing is compiled elsewhere
MANIFEST = Path(__file__).with_name("compiled.manifest")

Stamp = tuple[str, int, int, str]
"""A source: its path from the root, bytes, time of the last change in ns, SHA-256."""


def stamps(paths: Iterable[str]) -> list[Stamp]:
    """Return the stamps of sources, by their paths from the root."""
    found = []
    for name in paths:
        path = ROOT / name
        status = path.stat()
        found.append((name, status.st_size, status.st_mtime_ns, _sha256(path)))
    return found


def write_manifest(sources: Sequence[Stamp]) -> None:
    """Write the manifest of a build."""
    lines = [EXTENSION_SUFFIXES[0], *(f"{hashed} {size} {time_ns} {name}" for name, size, time_ns, hashed in sources)]
    MANIFEST.write_text("\n".join(lines) + "\n", encoding="utf-8")


def is_compiled() -> bool:
    """Return whether this interpreter runs compiled modules."""
    return bool(_manifest())


def compiled_sources() -> list[Stamp]:
    """Return the stamps of the sources compiled here for this interpreter; empty if none were.

    Those of an installed wheel have none: their sources do not change.
    """
    lines = _manifest()[1:]
    parts = [line.split(" ", 3) for line in lines]
    return [(name, int(size), int(time_ns), hashed) for hashed, size, time_ns, name in parts]


def outdated() -> list[str]:
    """Return the sources that changed or vanished since they were compiled."""
    return [stamp[0] for stamp in compiled_sources() if not _is_same(stamp)]


def complaint() -> str | None:
    """Return the error message for changed sources, None without any."""
    changed = outdated()
    if not changed:
        return None
    names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    return f"compiled modules are out of date: {names} changed since. Run `make compile` again, or `make uncompile`."


def note() -> str:
    """Return the suffix of `--version`."""
    return " (compiled)" if is_compiled() else ""


def _manifest() -> list[str]:
    """Return the manifest's lines, if it is of this interpreter, which does not load the builds of another one."""
    try:
        lines = MANIFEST.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return lines if lines[:1] == EXTENSION_SUFFIXES[:1] else []


def _is_same(stamp: Stamp) -> bool:
    name, size, time_ns, hashed = stamp
    try:
        status = os.stat(f"{ROOT}/{name}")  # a string: 30 Path objects would cost more than 30 calls
    except OSError:
        return False
    if status.st_size != size:
        return False
    return status.st_mtime_ns == time_ns or _sha256(ROOT / name) == hashed


def _sha256(path: Path) -> str:
    from hashlib import sha256  # here: only a build and a fresh checkout need it

    return sha256(path.read_bytes()).hexdigest()
