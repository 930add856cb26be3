"""Judge the built documentation site: exit 1 with a line for each dead link, thing from elsewhere, search that misses.

Usage: python tools/check_site.py build/site     (make docs-site)

zensical's --strict finds dead links and anchors between Markdown pages. It does not look at links to files, pictures, links
written as HTML, and entries of the navigation; all of these are in the built pages.
"""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
_FETCHED_RELATIONS = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch"}


SEARCHES = {
    "inject timeout": "faults.html",
    "inject error": "faults.html",
    "install": "deploy.html",
    "vitest": "node.html",
    "cassette": "from/vcr.html",
    "accuracy": "accuracy.html",
}
"""Searches, and the page of which one section must have all their words, in its heading or text."""


class _Page(HTMLParser):
    """links: of the page. fetched: those that a browser loads without being asked. ids: what anchors can name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: set[str] = set()
        self.ids = {"", "__skip"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {name for key in ("id", "name") if (name := found.get(key))}
        link = found.get(_FETCHED.get(tag, "href"))
        if not link:
            return
        self.links.append(link)
        if tag in _FETCHED or (tag == "link" and _FETCHED_RELATIONS & set((found.get("rel") or "").split())):
            self.fetched.add(link)


def problems_of(site: Path) -> list[str]:
    """A sentence for each. Raises FileNotFoundError if there is no site."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        raise FileNotFoundError(f"{site}: no page there")
    problems = []
    reached = {site.resolve() / "index.html"}
    for path, page in pages.items():
        name = path.relative_to(site)
        if path.name == "404.html":  # its links begin at the root of the host
            continue
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.fetched and parts.scheme != "data":
                    problems.append(f"{name}: {link} is fetched from elsewhere")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if target != path:
                reached.add(target)
            if not target.exists() or not target.is_relative_to(site.resolve()):
                problems.append(f"{name}: {link} leads nowhere")
            elif target in pages and unquote(parts.fragment) not in pages[target].ids:
                problems.append(f"{name}: {link} has no such anchor")
    lost = [path for path in pages if path.resolve() not in reached and path.name != "404.html"]
    return problems + [f"{path.relative_to(site)}: no page leads here" for path in lost]


def missed_searches(site: Path) -> list[str]:
    """Return a sentence for each search of SEARCHES whose words no section of its page has all of."""
    sections = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]

    def has(section: dict[str, str], word: str) -> bool:
        return re.search(rf"\b{word}", f"{section['title']} {section['text']}", re.IGNORECASE) is not None

    return [
        f"the search for {query!r} finds nothing in {page}"
        for query, page in SEARCHES.items()
        if not any(
            section["location"].partition("#")[0] == page and all(has(section, word) for word in query.split())
            for section in sections
        )
    ]


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    found = [*problems_of(place), *missed_searches(place)]
    sys.exit("\n".join(found) if found else 0)
