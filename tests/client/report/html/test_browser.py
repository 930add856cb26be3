"""The page as a real browser shows it. Skipped where there is none."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, needs_browser
from made_runs import family, many, run
from themes import THEMES

from llmirage_client.report.html.charts import (
    Axis,
    Bars,
    Mark,
    ParetoPoint,
    Sample,
    Series,
    bars,
    heat_strip,
    histogram,
    line,
    pareto,
)
from llmirage_client.report.html.page import PageHead, Section, charts, figure
from llmirage_client.report.html.page import page as page_of
from llmirage_client.report.html.run_page import run_page

pytestmark = needs_browser

# Notes every text that is drawn on a canvas, and where, until the canvas is cleared.
PROBE = """
    var texts = new Map(), drawing = CanvasRenderingContext2D.prototype, plain = drawing.fillText, wipe = drawing.clearRect;
    drawing.fillText = function (text, x, y) {
        var wide = this.measureText(text).width, size = parseFloat(/([0-9.]+)px/.exec(this.font)[1]);
        var left = x - ({center: wide / 2, right: wide, end: wide}[this.textAlign] || 0);
        var top = y - size * ({top: 0, middle: 0.5}[this.textBaseline] ?? 0.8);
        if (this.getTransform().b === 0) {  // not the title of an upright axis, which has a column of its own
            if (!texts.has(this.canvas)) { texts.set(this.canvas, []); }
            var right = left + wide, bottom = top + 0.8 * size;
            texts.get(this.canvas).push({text, left, right, top, bottom, size});
        }
        plain.apply(this, arguments);
    };
    drawing.clearRect = function () { texts.delete(this.canvas); wipe.apply(this, arguments); };
"""
READABILITY = """
    var touching = [], small = [], blank = [], charts = document.querySelectorAll('.chart');
    charts.forEach(function (chart) {
        var label = chart.getAttribute('aria-label');
        chart.querySelectorAll('canvas').forEach(function (canvas) {
            var seen = (texts.get(canvas) || []).filter(function (t) { return t.text; });
            if (!seen.length) { blank.push(label); }
            seen.forEach(function (t, i) {
                if (t.size < 12) { small.push(t.text); }
                if (t.left < -1 || t.right > canvas.width + 1 || t.top < -1) { touching.push([t.text, 'the edge', label]); }
                seen.slice(i + 1).forEach(function (o) {
                    var wide = Math.min(t.right, o.right) - Math.max(t.left, o.left);
                    var high = Math.min(t.bottom, o.bottom) - Math.max(t.top, o.top);
                    if (wide > 0.5 && high > 0.5) { touching.push([t.text, o.text, label]); }
                });
            });
        });
        if (!chart.querySelector('canvas') || chart.nextElementSibling.offsetHeight > 1) { blank.push(label); }
    });
    return {touching: touching, small: small, blank: blank, charts: charts.length,
            page: document.documentElement.scrollWidth, screen: document.documentElement.clientWidth};
"""


def readable(browser: Browser, page: str, width: int = 1280) -> dict[str, Any]:
    with browser.tab(width) as tab:
        tab.show(page, before=PROBE)
        found = tab.run(READABILITY)
    assert isinstance(found, dict)
    assert (found["touching"], found["small"], found["blank"]) == ([], [], [])
    return found


@pytest.fixture(scope="module")
def page() -> str:
    return run_page([("run", run(many(25, 6) + family()))])


def themed(page: str, theme: str) -> str:
    return page.replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">')


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_its_picture_has_the_colours_of_the_theme(browser: Browser, page: str, theme: str, tmp_path: Path) -> None:
    head_and_lanes = page.replace("</style>", "section:not(:has(#conversations)) { display: none; }</style>")
    with browser.tab(1280, 900) as tab:
        tab.show(themed(head_and_lanes, theme))
        picture = tab.picture()
    (tmp_path / f"{theme}.png").write_bytes(picture)
    assert struct.unpack(">II", picture[16:24]) == (1280, 900)
    seen, colors = browser.colors(picture), THEMES[theme]
    assert max(seen, key=lambda c: seen[c]) in (colors["card"], colors["ground"])
    assert seen[colors["ground"]] > 50_000
    assert seen[colors["card"]] > 200_000
    # The lanes are opaque.
    for name in ("c1", "c5", "text", "muted"):
        assert seen.get(colors[name], 0) > 100, name
    other = THEMES["dark" if theme == "light" else "light"]
    assert seen.get(other["ground"], 0) == 0


@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_is_drawn_with_labels_one_can_read(browser: Browser, page: str, width: int) -> None:
    found = readable(browser, page, width)
    assert found["charts"] >= 14
    assert found["page"] <= found["screen"] == width


def test_links_scroll_beside_the_theme_button_on_a_phone(browser: Browser, page: str) -> None:
    question = """
        var nav = document.querySelector('nav'), links = nav.querySelector('.links');
        var button = document.getElementById('theme').getBoundingClientRect();
        return {right: button.right, left: button.left, end: links.getBoundingClientRect().right,
                more: links.scrollWidth > links.clientWidth, whole: nav.scrollWidth <= nav.clientWidth};
    """
    with browser.tab(390) as tab:
        tab.show(page)
        found = tab.run(question)
    assert found["end"] <= found["left"] < found["right"] <= 390
    assert found["more"]
    assert found["whole"]


def test_several_runs_are_readable_too(browser: Browser) -> None:
    runs = [(f"concurrency-{n}", run(many(20, 4, seed=n), options={"concurrency": n})) for n in (1, 2, 4, 8, 16)]
    assert readable(browser, run_page(runs))["charts"] >= 10


@pytest.mark.parametrize("size", ["small", "wide"])
def test_every_kind_of_chart_is_readable_with_odd_values(browser: Browser, size: str) -> None:
    rng = np.random.default_rng(0)
    x, y = Axis("Time", "s"), Axis("Value", "ms", log=None)
    points = [ParetoPoint(float(a), float(b), f"{a:.0f} x some GPU", f"{a:.0f}") for a, b in rng.lognormal(3, 2, (30, 2))]
    names = [f"a rather long name of an operation {n}" for n in range(70)]
    drawn = [
        line([Series("a", [0.0], [5.0])], title="one point", x=x, y=y),
        line([Series(f"series {n}", range(50), rng.lognormal(0, 4, 50)) for n in range(7)], title="log", x=x, y=y),
        line([Series("a", [0, 1e-5], [0, 0])], title="zero", x=x, y=y, marks=[Mark(0.0, "a mark " * 20), Mark(1e9, "far")]),
        bars(names, [Bars(str(n), rng.random(70)) for n in range(3)], title="bars", y=Axis("y")),
        bars(["1"], [Bars("s", [-3.0])], title="negative", y=Axis("y")),
        histogram([Sample("s", [5.0] * 9, {"p50": 5, "p90": 5, "p99": 5})], title="equal", x=y),
        histogram([Sample("s", [0, 1, 10, 1e6], {"p50": 0.0})], title="zeros", x=y),
        pareto(points, title="pareto", x=y, y=y),
        heat_strip(names, range(1000), rng.random((70, 999)), title="heat", x=x, value=y),
    ]
    blocks = [charts(*map(figure, drawn), size=size)]
    assert readable(browser, page_of(PageHead("Kinds"), [Section("Kinds", blocks)]))["charts"] == len(drawn)


@pytest.fixture(scope="module")
def used(browser: Browser, page: str) -> dict[str, Any]:
    """What becomes of a reader's pointer and clicks, all in one sitting."""
    with browser.tab() as tab:
        tab.show(page, before="var errors = []; onerror = function (m) { errors.push(m); };")
        answer = tab.run("""
        function at(element, share) {
            var box = element.getBoundingClientRect();
            element.dispatchEvent(new PointerEvent('pointermove',
                {bubbles: true, clientX: box.left + box.width * share, clientY: box.top + 5}));
            var tip = document.getElementById('tip');
            return getComputedStyle(tip).display === 'none' ? null : tip.textContent;
        }
        var histogram = document.querySelector('.u-over'), answer = {};
        answer.left = at(histogram, 0.02);
        answer.right = at(histogram, 0.98);
        histogram.dispatchEvent(new PointerEvent('pointerleave'));
        answer.nothing = getComputedStyle(document.getElementById('tip')).display;
        var flight = document.querySelector('.chart[aria-label="Requests in flight"]');
        answer.series = [...flight.querySelectorAll('.u-series')].map(s => s.textContent);
        flight.plots[0].batch(() => flight.plots[0].setScale('x', {min: 1, max: 2}));
        answer.zoomed = at(flight.querySelector('.u-over'), 0.5);
        var theme = document.getElementById('theme');
        answer.themes = [];
        for (var i = 0; i < 4; i++) {
            answer.themes.push(theme.textContent + ' ' + document.documentElement.dataset.theme);
            theme.click();
        }
        answer.hidden = theme.hidden;
        answer.errors = errors;
        return answer;
        """)
    assert isinstance(answer, dict)
    return answer


def test_the_pointer_gets_figures(used: dict[str, Any]) -> None:
    assert "at or below" in used["left"]
    assert "100.0 % at or below" in used["right"]
    assert used["nothing"] == "none"
    assert used["series"] == ["in flight", "waiting for a first token", "receiving tokens"]


def test_a_span_can_be_zoomed_into(used: dict[str, Any]) -> None:
    assert used["zoomed"].splitlines()[0] in {f"{at} s" for at in ("1.40", "1.50", "1.60")}


def test_the_buttons_do_what_they_say(used: dict[str, Any]) -> None:
    assert used["themes"] == ["Theme: auto undefined", "Theme: light light", "Theme: dark dark", "Theme: auto undefined"]
    assert not used["hidden"]


def test_its_script_meets_no_error(used: dict[str, Any]) -> None:
    assert used["errors"] == []


def test_a_foreign_script_does_not_run(browser: Browser, page: str) -> None:
    with browser.tab() as tab:
        tab.show(page.replace("</body>", "<script>window.foreign = 1;</script></body>"))
        assert tab.run("return [window.foreign === undefined, document.scripts.length > 1]") == [True, True]
