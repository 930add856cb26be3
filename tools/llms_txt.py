"""Write llms.txt (llmstxt.org) into the built site, how each page begins beside its link, and the Markdown of the pages.

Usage: python tools/llms_txt.py build/site     (make docs-site)
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_MARKS = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|\*\*?|`")


def beginning(page: str) -> str:
    """Return the first sentences of the first paragraph, of 60 characters or more together, without marks of Markdown."""
    for paragraph in re.split(r"\n\s*\n", page):
        if paragraph.strip() and not paragraph.lstrip().startswith(("#", "<!--", "```", "|", "!", "- ")):
            text = " ".join(_MARKS.sub(r"\1", paragraph).split())
            return re.match(r".{0,60}.*?([.?](?=\s[A-Z])|$)", text)[0].rstrip(":")  # type: ignore[index]
    return ""


def pages(entries: list[Any], groups: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield groups, title and path of each page of a navigation."""
    for entry in entries:
        for title, place in entry.items():
            if isinstance(place, str):
                yield groups, title, place
            else:
                yield from pages(place, (*groups, title))


def text(settings: dict[str, Any], docs: Path) -> str:
    """Return llms.txt: each page with how it begins, under the headings of the navigation."""
    lines = [f"# {settings['site_name']}", "", f"> {settings['site_description']}"]
    heading = ""
    for groups, title, place in pages(settings["nav"]):
        name = groups[0] if groups else ""
        if name != heading:
            heading = name
            lines += ["", f"## {name}", ""]
        elif not groups:
            lines.append("")
        said = beginning((docs / place).read_text(encoding="utf-8"))
        lines.append(f"- [{title}]({place})" + (f": {said}" if said else ""))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    site = Path(sys.argv[1])
    project = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    source = ROOT / project["docs_dir"]
    (site / "llms.txt").write_text(text(project, source), encoding="utf-8")
    for _, _, page in pages(project["nav"]):
        shutil.copy(source / page, site / page)
