"""Pages and progress in notebooks."""

from __future__ import annotations

import html
import io
import sys
import uuid
from collections.abc import Callable
from typing import Any, TextIO

from llmirage_shared.settings import ConfigError

Progress = bool | Callable[[str], None] | None
_HEIGHT_PX = 640


def framed(page: str) -> str:
    """Return the page in a frame of its own: neither its styles nor the notebook's reach the other."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" title="llmirage" '
        f'style="width:100%;height:{_HEIGHT_PX}px;border:1px solid #8884;border-radius:6px"></iframe>'
    )


def progress_stream(progress: Progress) -> TextIO:
    """Where a function's progress goes. None: into the notebook, if there is one; True: there, else to standard error."""
    if callable(progress):
        return _Lines(progress)
    if progress not in (None, True, False):
        raise ConfigError([f"progress must be true, false or a function, not {progress!r}"])
    if progress is not False and (display := _notebook_display()) is not None:
        return _Lines(display)
    return sys.stderr if progress else _Lines(lambda line: None)


class _Lines(io.StringIO):
    """A stream that passes on each line that is drawn. columns: it has room for long ones."""

    columns = 400

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell_line = tell

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if line := text.replace("\r", "").replace("\x1b[K", "").strip():
            self._tell_line(line)
        return len(text)


def _notebook_display() -> Callable[[str], None] | None:
    """Return a function that replaces the line shown in the running cell; None outside of notebooks."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    publisher = shell.display_pub
    place = {"display_id": f"llmirage-{uuid.uuid4()}"}
    shown: list[str] = []

    def show(line: str) -> None:
        data = {"text/plain": line, "text/html": f'<code style="white-space:pre">{html.escape(line)}</code>'}
        publisher.publish(data=data, transient=place, update=bool(shown))
        shown[:] = [line]

    return show
