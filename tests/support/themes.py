"""The colours of the report's style sheets, by theme and name."""

import re
from pathlib import Path

import llmirage_client.report.html as html
import llmirage_shared

_BASE = Path(llmirage_shared.__file__).parent / "data" / "base.css"
STYLE = _BASE.read_text() + (Path(html.__file__).parent / "page.css").read_text()


def theme(selector: str) -> dict[str, str]:
    block = re.search(re.escape(selector) + r"\s*\{(.*?)\}", STYLE, re.DOTALL)
    assert block is not None
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", block[1]))


THEMES = {"light": theme(":root"), "dark": theme(':root[data-theme="dark"]')}
