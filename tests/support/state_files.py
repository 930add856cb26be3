"""State files as a server leaves them."""

import shutil
from pathlib import Path


def left_by_a_kill(path: Path) -> Path:
    """The file as a kill -9 of the server leaves it now: a copy, with SQLite's log. The server goes on with its own."""
    copy = path.with_name(f"killed-{path.name}")
    for ending in ("", "-wal"):
        shutil.copyfile(f"{path}{ending}", f"{copy}{ending}")
    return copy
