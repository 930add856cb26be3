"""The page at `/` as HTML: one file without anything from elsewhere."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from llmirage_shared import pages


@cache
def live_page() -> bytes:
    """The page, UTF-8. It calls this server and nothing else."""
    body = _read("page.html").replace("@THEME@", pages.THEME_BUTTON)
    return pages.document("llmirage", body, _read("page.css"), _read("page.js"), connect="'self'").encode()


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
