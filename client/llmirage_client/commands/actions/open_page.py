"""A finished page in the reader's browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import click


def open_page(page: Path) -> None:
    """Where there is no display, or no browser, the path is said instead."""
    if not _display() or not webbrowser.open(page.resolve().as_uri()):
        click.echo(f"No browser could be started: open {page} by hand.", err=True)


def _display() -> bool:
    """Whether a browser can have a window: one of a terminal would take over the command's."""
    return sys.platform in ("win32", "darwin") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
