"""llms.txt: every page of the navigation, once, with what it is about."""

import re
import tomllib

import llms_txt
import pytest
from pages import DOCS, ROOT


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("# Title\n\nOne [sentence](x.md) of\n`two` lines. Another.\n", "One sentence of two lines. Another."),
        (f"# Title\n\nShort. {'long ' * 12}enough. The rest.\n", f"Short. {'long ' * 12}enough."),
        ("# Title\n\n| a |\n|---|\n\n- a list\n\nUse 1.5 of it:\n", "Use 1.5 of it"),
        ("# Title\n\n<!-- x -->\n", ""),
    ],
)
def test_how_a_page_begins(page: str, said: str) -> None:
    assert llms_txt.beginning(page) == said


def test_every_page_is_listed_once_under_its_heading_with_a_sentence() -> None:
    settings = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    text = llms_txt.text(settings, DOCS)
    listed = re.findall(r"^- \[.+\]\((\S+\.md)\): .{10,}$", text, re.MULTILINE)
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["First five minutes", "How to", "Reference", "Generated reference", "Explanation"]
    assert text.startswith("# llmirage\n\n> ")
