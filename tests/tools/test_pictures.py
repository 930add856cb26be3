"""The pictures of README.md and docs/: small, used, and without anything from other hosts; how a terminal becomes one."""

import re
import sys
from xml.etree import ElementTree

import pytest
from pages import DOCS, ROOT

PICTURES = sorted((DOCS / "pictures").iterdir())
FETCHED = re.compile(r"url\((?!#)|@import|@font-face|(?:href|src)=")


def test_pictures_are_small_and_each_is_shown_somewhere() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *DOCS.rglob("*.md")])
    assert len(PICTURES) >= 4
    assert [path.name for path in PICTURES if path.stat().st_size > 150_000] == []
    assert [path.name for path in PICTURES if f"pictures/{path.name})" not in text] == []


def test_the_picture_of_the_demo_fetches_nothing() -> None:
    assert not FETCHED.search((DOCS / "pictures/demo.svg").read_text(encoding="utf-8"))


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
def test_a_terminal_becomes_svg_in_the_readers_fonts() -> None:
    import pictures  # which needs pseudo-terminals

    svg = pictures.terminal_picture("\x1b[1m$ llmirage serve\x1b[0m\nTTFT <41.7 ms>", "llmirage demo")
    said = "".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")
    assert "$ llmirage serve" in said
    assert "TTFT <41.7 ms>" in said
    assert not FETCHED.search(svg)
    assert "monospace" in svg
