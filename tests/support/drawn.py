"""A page read back: the figures of its charts, its elements and what it says."""

import html
import json
import re
from html.parser import HTMLParser
from typing import Any


class Chart:
    """One chart: its title, what is said of it, its axis, panels and hover rows, and its table."""

    def __init__(self, found: re.Match[str]) -> None:
        self.title, self.label, data, table = (html.unescape(text) for text in found.groups())
        known = json.loads(data)
        self.x: dict[str, Any] = known["x"]
        self.panels: list[dict[str, Any]] = known["panels"]
        self.at: list[float | None] = known["at"]
        self.rows: list[list[str]] = known["rows"]
        self.table = re.sub(r"<[^>]+>", " ", table)

    @property
    def series(self) -> dict[str, dict[str, Any]]:
        """The series of the first panel, by name."""
        return {one["name"]: one for one in self.panels[0]["series"]}


def charts_of(page: str) -> list[Chart]:
    """Every chart of a page."""
    pattern = (
        r'<h3>([^<]*)</h3><div class="chart" role="img" aria-label="([^"]*)" data-chart="([^"]*)"></div>'
        r'<div class="values">(<table.*?</table>)'
    )
    return [Chart(found) for found in re.finditer(pattern, page, re.DOTALL)]


class Document(HTMLParser):
    """A page as a browser's tokenizer sees it: its elements, and that they close in order."""

    _VOID = frozenset(("meta", "br", "img", "link", "input", "hr"))

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self._VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("script", "style"):
            self.said.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.said))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)
