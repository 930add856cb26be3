"""What sections are made of: charts beside each other, tables, notes. Every function returns HTML."""

from __future__ import annotations

from collections.abc import Sequence

from llmirage_client.report.html.svg import escape


def charts(*figures: str, size: str = "small") -> str:
    """Figures beside each other, as many as the screen takes. size: that of the charts: small, half or wide."""
    kept = [f for f in figures if f]
    return f'<div class="charts {size}">{"".join(kept)}</div>\n' if kept else ""


def figure(svg: str, caption: str = "") -> str:
    """A chart on its card. caption: what a reader should know to read it."""
    said = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{svg}{said}</figure>\n"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1, wrap: Sequence[int] = ()) -> str:
    """The first `left` columns stand at the left, the rest at the right; those in `wrap` may break their lines."""
    css = [("left " if i < left else "") + ("left wrap" if i in wrap else "") for i in range(len(columns))]
    css = [f' class="{name.strip()}"' if name else "" for name in css]
    head = "".join(f'<th scope="col"{c}>{escape(name)}</th>' for c, name in zip(css, columns, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{c}>{escape(cell)}</td>" for c, cell in zip(css, row, strict=True)) + "</tr>\n" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


def notes(texts: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="notes">{items}</ul>\n' if items else ""


def paragraph(text: str) -> str:
    return f'<p class="muted">{escape(text)}</p>\n' if text else ""


def toggle(label: str, of: str, css: str) -> str:
    """A button that puts a style class on the element with the id `of` and takes it off again; hidden without scripts."""
    return f'<button type="button" hidden aria-pressed="false" data-of="{of}" data-toggles="{css}">{escape(label)}</button>'
