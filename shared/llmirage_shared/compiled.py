"""Whether hot modules run compiled (`make compile`), and whether what was compiled is still what the sources say.

Python takes an extension module before the source beside it, however old it is. So the build writes down the size, the
time and the hash of each source, and whoever starts something looks whether they are still the same: 30 looks at the file
system, and no more than one where nothing is compiled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of a checkout: nothing is compiled elsewhere
MANIFEST = Path(__file__).with_name("compiled.manifest")

Stamp = tuple[str, int, int, str]
"""Path from the root, bytes, time of the last change in ns, SHA-256."""


def stamps(paths: Iterable[str]) -> list[Stamp]:
    """Of sources, by their paths from the root."""
    found = []
    for name in paths:
        path = ROOT / name
        status = path.stat()
        found.append((name, status.st_size, status.st_mtime_ns, _sha256(path)))
    return found


def write_manifest(sources: Sequence[Stamp]) -> None:
    lines = [EXTENSION_SUFFIXES[0], *(f"{hashed} {size} {time_ns} {name}" for name, size, time_ns, hashed in sources)]
    MANIFEST.write_text("\n".join(lines) + "\n", encoding="utf-8")


def compiled_sources() -> list[Stamp]:
    """The sources of what is compiled for this interpreter, as they were; none if nothing is."""
    try:
        suffix, *lines = MANIFEST.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    if suffix != EXTENSION_SUFFIXES[0]:  # of another interpreter, which this one does not even see
        return []
    parts = [line.split(" ", 3) for line in lines]
    return [(name, int(size), int(time_ns), hashed) for hashed, size, time_ns, name in parts]


def outdated() -> list[str]:
    """The sources that have changed since they were compiled, or are gone."""
    return [stamp[0] for stamp in compiled_sources() if not _is_same(stamp)]


def complaint() -> str | None:
    """What to say where nothing must go on, because sources have changed; None if all is well."""
    changed = outdated()
    if not changed:
        return None
    names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    return f"compiled modules are out of date: {names} changed since. Run `make compile` again, or `make uncompile`."


def note() -> str:
    """What a version says of it."""
    return " (compiled)" if compiled_sources() else ""


def _is_same(stamp: Stamp) -> bool:
    name, size, time_ns, hashed = stamp
    try:
        status = os.stat(f"{ROOT}/{name}")  # by a string: 30 paths would cost more than 30 looks
    except OSError:
        return False
    if status.st_size != size:
        return False
    return status.st_mtime_ns == time_ns or _sha256(ROOT / name) == hashed


def _sha256(path: Path) -> str:
    from hashlib import sha256  # only where something is built, or was checked out anew

    return sha256(path.read_bytes()).hexdigest()
