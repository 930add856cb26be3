"""The conversations of a run as lanes: requests as bars, forks, spawns and joins as lines between them."""

from __future__ import annotations

from llmirage_client.measure.catalogue import PER_CONVERSATION
from llmirage_client.report.html.heat import LEVELS
from llmirage_client.report.html.lanes import aligned, lanes_json
from llmirage_client.report.html.page import Section, table
from llmirage_client.report.html.run_view import RunView
from llmirage_client.report.html.svg import escape
from llmirage_client.report.html.trees import Selection, select, trees_of
from llmirage_client.report.numbers import count, number, plural

_LEAD = "A lane is a conversation, a bar a request: the wait for its first token, then its tokens. Point at it for more."
_HELP = (
    "Zoom: drag over a span, Ctrl and wheel, or + and \N{MINUS SIGN}; 0 shows the whole. Arrow keys go from request to "
    "request, left and right in a lane, up and down between lanes."
)
_BOX = '<rect x="2" y="2" width="18" height="10" rx="2" class="{}"/>'
_LINE = '<path d="M1 7h20" class="{}"/>'
_LINKS = {"fork": "fork", "spawn": "spawn", "root": "child"}  # by branch mode, of conversations with a parent


def swimlane(view: RunView) -> Section:
    """Empty when there is nothing to draw."""
    trees = trees_of(view) if view.records else []
    if not trees:
        return Section("Conversations", [])
    selection = select(view, trees)
    drawn = (
        f'<div id="swimlane" hidden data-lanes="{escape(lanes_json(view, selection))}">\n{_tools(view, selection)}'
        '<div class="beside"><figure><div class="lanes" tabindex="0" role="group" aria-label="Swim-lane of conversations" '
        'aria-describedby="lanes-help"><div class="room"><canvas></canvas></div></div>'
        f'<figcaption id="lanes-help">{escape(" ".join(filter(None, (_HELP, _left_out(selection)))))}</figcaption></figure>'
        f'{_legend(view)}</div><p class="said" id="lanes-said" role="status"></p></div>\n'
        '<noscript><p class="muted">The swim-lane chart needs scripts.</p></noscript>\n'
    )
    return Section("Conversations", [drawn, _figures(view)], _LEAD, script="swimlane.js")


def _tools(view: RunView, selection: Selection) -> str:
    times = [("run", "since the start"), ("tree", "since its own start")]
    if view.result.url:
        times.insert(1, ("day", "time of day"))
    usual = "tree" if aligned(selection.trees) else "run"
    orders = [("start", "by start"), ("first", "slowest TTFT first"), ("took", "longest first"), ("size", "largest first")]
    states = [("", "any outcome"), ("0", "succeeded"), ("1", "failed"), ("2", "cancelled")]
    return (
        '<div class="tools">'
        '<label>Search <input type="search" id="lanes-search" placeholder="name, ID, error"></label>'
        f"<label>Outcome {_select('lanes-status', states)}</label>"
        '<label>Turn <input id="lanes-turn" size="5" inputmode="numeric" placeholder="0-3"></label>'
        f"<label>Order {_select('lanes-order', orders)}</label>"
        f"<label>Time {_select('lanes-time', times, usual)}</label>"
        f"<label>Colour {_select('lanes-color', [('', 'by phase'), ('cache', 'by cached share')])}</label>"
        '<span class="zoom"><button type="button" id="lanes-out" aria-label="Zoom out">\N{MINUS SIGN}</button>'
        '<button type="button" id="lanes-in" aria-label="Zoom in">+</button>'
        '<button type="button" id="lanes-whole">All</button></span></div>\n'
    )


def _select(name: str, choices: list[tuple[str, str]], chosen: str = "") -> str:
    options = "".join(
        f'<option value="{value}"{" selected" if value == chosen and chosen else ""}>{escape(text)}</option>'
        for value, text in choices
    )
    return f'<select id="{name}">{options}</select>'


def _legend(view: RunView) -> str:
    """Of what there is in this run; swimlane.js hides what the colours are not by."""
    columns, records = view.columns, view.records
    ramp = "".join(f'<rect x="{n * 6}" y="2" width="6" height="10" class="h{n + 1}"/>' for n in range(LEVELS))
    items = [
        _entry(_BOX.format("prefill"), "waiting for the first token", "phase"),
        _entry(_BOX.format("decode"), "receiving tokens", "phase"),
        _entry(ramp, "0 to 100 % of the prompt cached", "cache", 6 * LEVELS),
        _entry(_BOX.format("unknown"), "cached share unknown", "cache"),
    ]
    if (~columns.ok & ~columns.cancelled).any():
        items.append(_entry(_BOX.format("failed"), "failed"))
    if columns.cancelled.any():
        items.append(_entry(_BOX.format("cancelled"), "cancelled"))
    items.append(_entry(_LINE.format("idle"), "pause: a tool runs, or a user thinks"))
    modes = {record.branch_mode for record in records if record.parent_correlation_id is not None}
    names = {"fork": "fork", "spawn": "spawn", "root": "child, fork or spawn"}
    items += [_entry(_LINE.format(f"k {css}"), names[mode]) for mode, css in _LINKS.items() if mode in modes]
    if any(record.joined for record in records):
        items.append(_entry(_LINE.format("k join"), "join: a turn that waited for a child"))
        items.append(_entry(_LINE.format("waits"), "waiting for children"))
    return f'<ul class="legend">{"".join(items)}</ul>'


def _entry(swatch: str, text: str, of: str = "", wide: int = 22) -> str:
    """of: which colouring it belongs to; "" for any."""
    svg = f'<svg viewBox="0 0 {wide} 14" width="{wide}" height="14" aria-hidden="true">{swatch}</svg>'
    return f'<li data-of="{of}">{svg} {text}</li>'


def _left_out(selection: Selection) -> str:
    said = []
    if hidden := selection.of - len(selection.trees):
        said.append(
            f"Shown: {count(len(selection.trees))} of {plural(selection.of, 'conversation tree')}, {count(hidden)} are not. "
            "Chosen in turn: with failures, most conversations, the slowest first token, the longest, the most usual."
        )
    if selection.cut:
        said.append(f"{plural(selection.cut, 'conversation')} of the first tree are not drawn: there is no room.")
    return " ".join(said)


def _figures(view: RunView) -> str:
    """What is measured of whole conversations."""
    found = view.metrics.per_conversation
    rows = [
        [PER_CONVERSATION[tag].heading, *(number(getattr(s, p)) for p in ("avg", "p50", "p90", "p99", "min", "max"))]
        for tag, s in found.items()
    ]
    return table(["Of a conversation", "mean", "p50", "p90", "p99", "min", "max"], rows) if rows else ""
