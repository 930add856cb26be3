"""HTML pages as one file: shared colours and theme button, and a content security policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from importlib.resources import files

THEME_BUTTON = '<button id="theme" type="button" hidden>Theme</button>'


def document(title: str, body: str, style: str, script: str, connect: str = "'none'") -> str:
    """Return the page.

    body: HTML with THEME_BUTTON in it.
    style, script: additions of this page.
    connect: addresses the script may call.

    Text in `title` is escaped here, text in `body` by the caller.
    """
    script = _data("theme.js") + script
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{allowed}'; connect-src {connect}"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_data('base.css')}{style}</style>\n</head>\n"
        f"<body>\n{body}<script>{script}</script>\n</body>\n</html>\n"
    )


@cache
def _data(name: str) -> str:
    return files("llmirage_shared").joinpath("data", name).read_text(encoding="utf-8")
