"""The page as a real browser shows it. Skipped where there is none."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from browser import NAMES, Browser, find_browser
from made_runs import family, many, run
from themes import THEMES

from llmirage_client.report.html.run_page import run_page

PATH = find_browser()
pytestmark = pytest.mark.skipif(PATH is None, reason=f"no browser on the path (any of: {', '.join(NAMES)})")

# Texts of one chart that overlap as the browser lays them out, and texts smaller than 10 px.
READABILITY = """
    var touching = [], small = [], charts = document.querySelectorAll('svg.chart');
    charts.forEach(function (chart) {
        var frame = chart.getBoundingClientRect(), boxes = [];
        chart.querySelectorAll('text').forEach(function (text) {
            var box = text.getBoundingClientRect(), px = box.height;
            if (parseFloat(getComputedStyle(text).fontSize) * frame.width / chart.viewBox.baseVal.width < 9.9) {
                small.push(text.textContent);
            }
            boxes.forEach(function (other) {
                var wide = Math.min(box.right, other[0].right) - Math.max(box.left, other[0].left);
                // The box of a line of text is higher than its letters by about a third.
                var high = Math.min(box.bottom, other[0].bottom) - Math.max(box.top, other[0].top);
                if (wide > 0.5 && high > 0.2 * px) { touching.push([text.textContent, other[1]]); }
            });
            boxes.push([box, text.textContent]);
            if (box.left < frame.left - 1 || box.right > frame.right + 1) { touching.push([text.textContent, 'the edge']); }
        });
    });
    return {touching: touching, small: small, charts: charts.length,
            page: document.documentElement.scrollWidth, screen: document.documentElement.clientWidth};
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    assert PATH is not None
    return Browser(PATH, tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def page() -> str:
    return run_page([("run", run(many(25, 6) + family()))])


def themed(page: str, theme: str) -> str:
    return page.replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">')


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_its_picture_has_the_colours_of_the_theme(browser: Browser, page: str, theme: str, tmp_path: Path) -> None:
    head_and_lanes = page.replace("</style>", "section:not(:has(#conversations)) { display: none; }</style>")
    picture = browser.picture(themed(head_and_lanes, theme), 1280, 900)
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
def test_every_label_is_readable(browser: Browser, page: str, width: int) -> None:
    found = browser.ask(page, READABILITY, width)
    assert found["charts"] >= 14
    assert found["touching"] == []
    assert found["small"] == []
    assert found["page"] <= found["screen"] == width


def test_links_scroll_beside_the_theme_button_on_a_phone(browser: Browser, page: str) -> None:
    question = """
        var nav = document.querySelector('nav'), links = nav.querySelector('.links');
        var button = document.getElementById('theme').getBoundingClientRect();
        return {right: button.right, left: button.left, end: links.getBoundingClientRect().right,
                more: links.scrollWidth > links.clientWidth, whole: nav.scrollWidth <= nav.clientWidth};
    """
    found = browser.ask(page, question, 390)
    assert found["end"] <= found["left"] < found["right"] <= 390
    assert found["more"]
    assert found["whole"]


def test_several_runs_are_readable_too(browser: Browser) -> None:
    runs = [(f"concurrency-{n}", run(many(20, 4, seed=n), options={"concurrency": n})) for n in (1, 2, 4, 8, 16)]
    found = browser.ask(run_page(runs), READABILITY)
    assert found["charts"] >= 10
    assert found["touching"] == []
    assert found["small"] == []


@pytest.fixture(scope="module")
def used(browser: Browser, page: str) -> dict[str, Any]:
    """What becomes of a reader's pointer and clicks, all in one sitting."""
    caught = page.replace("<head>", "<head><script>var errors = []; onerror = function (m) { errors.push(m); };</script>")
    answer = browser.ask(
        caught,
        """
        function at(element, share) {
            var box = element.getBoundingClientRect();
            element.dispatchEvent(new PointerEvent('pointermove',
                {bubbles: true, clientX: box.left + box.width * share, clientY: box.top + 5}));
            var tip = document.getElementById('tip');
            return getComputedStyle(tip).display === 'none' ? null : tip.textContent;
        }
        var histogram = document.querySelector('g.hover rect'), answer = {};
        answer.left = at(histogram, 0.02);
        answer.right = at(histogram, 0.98);
        answer.nothing = at(document.body, 0.5);
        answer.titles = document.querySelectorAll('svg.chart title').length;
        var theme = document.getElementById('theme');
        answer.themes = [];
        for (var i = 0; i < 4; i++) {
            answer.themes.push(theme.textContent + ' ' + document.documentElement.dataset.theme);
            theme.click();
        }
        answer.hidden = theme.hidden;
        answer.errors = errors;
        return answer;
        """,
    )
    assert isinstance(answer, dict)
    return answer


def test_the_pointer_gets_figures(used: dict[str, Any]) -> None:
    assert "at or below" in used["left"]
    assert "100.0 % at or below" in used["right"]
    assert used["nothing"] is None
    assert used["titles"] == 0  # a browser's own tooltips would come on top


def test_the_buttons_do_what_they_say(used: dict[str, Any]) -> None:
    assert used["themes"] == ["Theme: auto undefined", "Theme: light light", "Theme: dark dark", "Theme: auto undefined"]
    assert not used["hidden"]


def test_its_script_meets_no_error(used: dict[str, Any]) -> None:
    assert used["errors"] == []


def test_a_foreign_script_does_not_run(browser: Browser, page: str) -> None:
    with pytest.raises(AssertionError, match="did not run"):
        browser.ask(page, "return 1;", keep_policy=True)
