"""Parts of a page (charts beside each other, tables, notes) and the whole page as HTML.

A page is one file, with no address of anything outside it and a policy that lets nothing else run.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal

from llmirage_shared import pages

_NOT_XML = re.compile("[^\\t\\n\\x20-\\x7e\\xa0-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def escape(text: object) -> str:
    """Return text for an element or an attribute in either kind of quotes; what XML cannot hold becomes a space."""
    return html.escape(_NOT_XML.sub(" ", str(text)))


def charts(*figures: str, size: str = "small") -> str:
    """Return figures beside each other: three a row on a desktop, two of size "half", one of size "wide"."""
    kept = [f for f in figures if f]
    return f'<div class="charts {size}">{"".join(kept)}</div>\n' if kept else ""


def figure(chart: str, caption: str = "") -> str:
    """Return a chart on its card. caption: what a reader should know to read it."""
    said = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{chart}{said}</figure>\n"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1, wrap: Sequence[int] = ()) -> str:
    """Return a table.

    The first `left` columns stand at the left, the rest at the right; those in `wrap` may break their lines.
    """
    css = [("left " if i < left else "") + ("left wrap" if i in wrap else "") for i in range(len(columns))]
    css = [f' class="{name.strip()}"' if name else "" for name in css]
    head = "".join(f'<th scope="col"{c}>{escape(name)}</th>' for c, name in zip(css, columns, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{c}>{escape(cell)}</td>" for c, cell in zip(css, row, strict=True)) + "</tr>\n" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


def notes(texts: Sequence[str]) -> str:
    """Return a list of notes, empty for none."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="notes">{items}</ul>\n' if items else ""


def paragraph(text: str) -> str:
    """Return a muted paragraph, empty for no text."""
    return f'<p class="muted">{escape(text)}</p>\n' if text else ""


State = Literal["good", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Card:
    """A key figure. value: as shown; unit and hint: small, beside and below it."""

    label: str
    value: str
    unit: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Banner:
    """The headline of a page and the sentences that explain it."""

    state: State
    headline: str
    reasons: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PageHead:
    """The top of the page. facts: what it is about, by name."""

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    verdicts: Sequence[Banner] = ()
    cards: Sequence[Card] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """blocks: HTML of those above. lead: one or two sentences under the heading. short: its name in the navigation.

    script: the file of what the section needs besides the page's own.
    """

    title: str
    blocks: Sequence[str]
    lead: str = ""
    short: str = ""
    script: str = ""


def page(head: PageHead, sections: Sequence[Section], footer: str = "") -> str:
    """Return the whole HTML document.

    Every text of `head`, titles, leads and footer is escaped here; blocks are HTML already.
    """
    kept = [s for s in sections if any(s.blocks)]
    links = "".join(f'<a href="#{_anchor(s)}">{escape(s.short or s.title)}</a>' for s in kept)
    parts = [
        '<div class="page">\n',
        f'<nav><strong>llmirage</strong><span class="links">{links}</span>{pages.THEME_BUTTON}</nav>\n<main>\n',
        _head(head),
    ]
    for section in kept:
        parts.append(f'<section>\n<h2 id="{_anchor(section)}">{escape(section.title)}</h2>\n')
        if section.lead:
            parts.append(f'<p class="muted">{escape(section.lead)}</p>\n')
        parts += [*section.blocks, "\n</section>\n"]
    parts.append("</main>\n")
    if footer:
        parts.append(f"<footer>{escape(footer)}</footer>\n")
    parts.append("</div>\n")
    own = [section.script for section in kept if section.script]
    drawn = own or any('class="chart"' in block for section in kept for block in section.blocks)
    styles, scripts = ["page.css"], []
    if drawn:
        styles, scripts = ["uplot.min.css", "page.css"], ["uplot.min.js", "charts.js", *own]
    return pages.document(head.title, "".join(parts), "".join(map(_resource, styles)), "".join(map(_resource, scripts)))


def _head(head: PageHead) -> str:
    parts = [f"<header>\n<h1>{escape(head.title)}</h1>\n"]
    if head.facts:
        rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in head.facts.items())
        parts.append(f'<dl class="facts">{rows}</dl>\n')
    for verdict in head.verdicts:
        reasons = "".join(f"<p>{escape(r)}</p>" for r in verdict.reasons)
        parts.append(
            f'<div class="verdict {verdict.state}"><p><strong>{escape(verdict.headline)}</strong></p>{reasons}</div>\n'
        )
    if head.cards:
        parts.append('<div class="cards">' + "".join(map(_card, head.cards)) + "</div>\n")
    return "".join([*parts, "</header>\n"])


def _card(card: Card) -> str:
    unit = f" <small>{escape(card.unit)}</small>" if card.unit else ""
    hint = f'<div class="hint">{escape(card.hint)}</div>' if card.hint else ""
    label, value = f'<div class="label">{escape(card.label)}</div>', f'<div class="value">{escape(card.value)}{unit}</div>'
    return f'<div class="card">{label}{value}{hint}</div>'


def _anchor(section: Section) -> str:
    return re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")


@cache
def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
