"""What a chart drew, read back from its SVG: its texts with their boxes, its shapes, the rows behind the pointer."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import combinations

from llmirage_client.report.html.svg import Box, text_box

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Text:
    content: str
    css: str
    anchor: str
    box: Box


class Drawn:
    """One SVG element as text, well-formed or ElementTree says why not."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        _, _, self.width, self.height = (float(v) for v in self.root.attrib["viewBox"].split())
        self.texts = [self._text(e) for e in self.root.iter(f"{SVG}text")]

    def _text(self, element: ElementTree.Element) -> Text:
        content = "".join(part for part in (element.text, *(child.tail for child in element)) if part)
        css = element.attrib.get("class", "")
        size, bold = (14.0, True) if css == "t" else (12.0, False)
        x, y = float(element.attrib["x"]), float(element.attrib["y"])
        anchor = element.attrib.get("text-anchor", "start")
        return Text(content, css, anchor, text_box(content, x, y, size, anchor, bold))

    @property
    def contents(self) -> list[str]:
        return [t.content for t in self.texts]

    def touching(self) -> list[tuple[str, str]]:
        """Pairs of texts that overlap."""
        return [(a.content, b.content) for a, b in combinations(self.texts, 2) if a.box.overlaps(b.box)]

    def outside(self) -> list[str]:
        """Texts that do not lie within the picture."""
        frame = Box(0, 0, self.width, self.height)
        return [
            t.content
            for t in self.texts
            if t.box.left < frame.left or t.box.top < frame.top or t.box.right > frame.right or t.box.bottom > frame.bottom
        ]

    def of_class(self, name: str) -> list[ElementTree.Element]:
        return [e for e in self.root.iter() if name in e.attrib.get("class", "").split()]

    def tips(self) -> list[str]:
        return [e.text or "" for e in self.root.iter(f"{SVG}title")]

    def rows(self) -> list[list[str]]:
        """What the pointer shows, from left to right."""
        return [row for area in self.of_class("hover") for row in json.loads(area.attrib["data-rows"])[1]]


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


def svgs(page: str) -> list[Drawn]:
    """Every chart of a page."""
    return [Drawn(svg) for svg in re.findall(r'<svg xmlns="[^"]*" class="chart.*?</svg>', page, re.DOTALL)]
