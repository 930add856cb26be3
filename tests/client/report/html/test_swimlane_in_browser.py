"""The swim-lane chart in a real browser: what it draws, and what becomes of zoom, filters, keys and pointer."""

from collections.abc import Iterator

import pytest
from browser import Browser, Tab, needs_browser
from made_runs import family, many, record, run

from llmirage_client.measure.record import Record, RequestError
from llmirage_client.report.html.run_page import run_page

pytestmark = needs_browser

HELPERS = """
    window.lanes = document.querySelector('.lanes'); window.canvas = lanes.querySelector('canvas');
    window.tip = function () {
        var tip = document.getElementById('tip');
        return getComputedStyle(tip).display === 'none' ? '' : tip.textContent;
    };
    window.set = function (name, value) {
        var input = document.getElementById('lanes-' + name);
        input.value = value;
        input.dispatchEvent(new Event('input')); input.dispatchEvent(new Event('change'));
    };
    window.point = function (kind, x, y, more) {
        var box = canvas.getBoundingClientRect();
        canvas.dispatchEvent(new PointerEvent(kind, Object.assign({bubbles: true, pointerType: 'mouse', pointerId: 1,
            clientX: box.left + x, clientY: box.top + y}, more)));
    };
    window.press = function (key) { lanes.dispatchEvent(new KeyboardEvent('keydown', {key: key, bubbles: true})); };
    // Of one row of pixels: each colour of the palette as [name, from, to], left to right.
    window.runs = function (y) {
        var pen = canvas.getContext('2d'), found = [], style = getComputedStyle(document.documentElement);
        var names = {}, data = pen.getImageData(0, y, canvas.width, 1).data;
        ['c1', 'c5', 'bad', 'h1', 'h4', 'h5', 'text'].forEach(function (n) { names[style.getPropertyValue('--' + n)] = n; });
        for (var x = 0; x < canvas.width; x++) {
            var rgb = Array.from(data.slice(4 * x, 4 * x + 3)), hex = rgb.map(i => i.toString(16).padStart(2, 0)).join('');
            var name = names['#' + hex], last = found[found.length - 1];
            if (!name) { continue; }
            if (last && last[0] === name && last[2] === x - 1) { last[2] = x; } else { found.push([name, x, x]); }
        }
        return found;
    };
    canvas.setPointerCapture = function () {};
"""


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Tab]:
    with browser.tab() as tab:
        yield tab


def show(tab: Tab, records: list[Record]) -> None:
    tab.show(run_page([("run", run(records))]))
    tab.run(HELPERS)
    tab.wait_for("runs(37).length + runs(59).length")


def two() -> list[Record]:
    """Ten seconds: 1 s until the first token and 1 s of tokens; 8 s later a failure of 1 s. Beside it, another one."""
    failed = RequestError(503, "overloaded", "try later")
    return [
        record("left", 0, 0.0, ttft_s=1.0, tpot_s=0.1, tokens=11, prompt=1000, cached=500),
        record("left", 1, 9.0, ttft_s=1.0, error=failed),
        record("right", 0, 4.0, ttft_s=1.0, tpot_s=0.1, tokens=11, prompt=1000, cached=100),
    ]


def test_a_request_is_one_colour_until_its_first_token_and_another_from_there(tab: Tab) -> None:
    show(tab, two())
    (one, a, b), (two_, c, d), (three, e, f) = tab.run("return runs(37)")
    assert (one, two_, three) == ("c5", "c1", "bad")
    assert abs((b - a) - (d - c)) <= 2
    assert abs((f - e) - (b - a)) <= 2
    assert e - a == pytest.approx(9 * (b - a + 1), abs=6)


def test_the_cached_share_is_a_colour_too_and_the_legend_follows(tab: Tab) -> None:
    show(tab, two())
    shown = (
        "return Array.from(document.querySelectorAll('.legend li')).filter(i => !i.hidden).map(i => i.textContent.trim())"
    )
    before = tab.run(shown)
    assert "waiting for the first token" in before
    assert "0 to 100 % of the prompt cached" not in before
    tab.run("set('color', 'cache')")
    tab.wait_for("runs(37).length && runs(37)[0][0] === 'h5'")
    assert [name for name, _, _ in tab.run("return runs(59)")] == ["h1"]
    assert "0 to 100 % of the prompt cached" in tab.run(shown)


def test_the_pointer_gets_the_figures_of_a_request_and_of_a_lane(tab: Tab) -> None:
    show(tab, two())
    told = tab.run("var r = runs(37)[1]; point('pointermove', r[1] + 3, 37); return tip()")
    assert told.split("\n")[0] == "left, turn 0"
    assert told.split("\n")[2:] == [
        "TTFT 1,000 ms, TPOT 100 ms, latency 2,000 ms",
        "1,000 tokens in, 50 % cached",
        "11 tokens out",
        "left/0",
    ]
    told = tab.run("var r = runs(37)[2]; point('pointermove', r[1] + 3, 37); return tip()")
    assert "failed: overloaded: try later" in told
    assert tab.run("point('pointermove', 12, 37); return tip()").split("\n")[:2] == ["left", "2 requests"]
    assert tab.run("point('pointermove', runs(37)[1][2] + 60, 37); return tip()") == ""


def test_dragging_over_a_span_zooms_into_it_and_all_shows_the_whole_again(tab: Tab) -> None:
    show(tab, two())
    before = tab.run("return runs(37)")
    tab.run(
        "var r = runs(37)[0]; point('pointerdown', r[1], 37, {button: 0}); point('pointermove', r[1] + 60, 37);"
        "point('pointermove', r[2] + 1, 37); point('pointerup', r[2] + 1, 37);"
    )
    tab.wait_for("runs(37).length === 2")
    name, a, b = tab.run("return runs(37)[0]")
    assert (name, a) == ("c5", before[0][1])
    assert b - a > 9 * (before[0][2] - before[0][1])
    tab.run("document.getElementById('lanes-whole').click()")
    tab.wait_for("runs(37).length === 3")
    assert tab.run("return runs(37)") == before


def test_buttons_wheel_and_keys_zoom(tab: Tab) -> None:
    show(tab, two())
    wide = "lanes.querySelector('.room').offsetWidth"
    first = tab.run(f"return {wide}")
    tab.run("document.getElementById('lanes-in').click()")
    twice = tab.run(f"return {wide}")
    assert twice > 1.7 * first
    tab.run("lanes.dispatchEvent(new WheelEvent('wheel', {deltaY: -200, ctrlKey: true, cancelable: true, clientX: 600}))")
    assert tab.run(f"return {wide}") > 1.8 * twice
    moved = "return !lanes.dispatchEvent(new WheelEvent('wheel', {deltaY: 100, cancelable: true}))"
    assert not tab.run(moved), "a plain wheel scrolls"
    tab.run("press('0')")
    assert tab.run(f"return {wide}") == first
    tab.run("press('+')")
    assert tab.run(f"return {wide}") == twice
    tab.run("press('-')")
    assert tab.run(f"return {wide}") == first


def test_the_place_under_the_pointer_stays_while_zooming(tab: Tab) -> None:
    show(tab, two())
    edge = tab.run("return runs(59)[1][1]")
    tab.run(
        f"lanes.dispatchEvent(new WheelEvent('wheel', {{deltaY: -300, ctrlKey: true, cancelable: true,"
        f" clientX: canvas.getBoundingClientRect().left + {edge}}}))"
    )
    tab.wait_for("runs(59).length && runs(59)[0][2] - runs(59)[0][1] > 200")
    assert tab.run("return runs(59)[1][1]") == pytest.approx(edge, abs=3)


def test_search_outcome_and_turn_leave_what_fits(tab: Tab) -> None:
    show(tab, [*two(), *family()])
    said = "return document.getElementById('lanes-said').textContent"
    tab.run("set('search', 'RIGHT')")
    assert tab.run(said) == "1 of 10 requests, 1 of 6 conversations"
    tab.run("set('search', 'try later')")
    assert tab.run(said) == "1 of 10 requests, 1 of 6 conversations"
    tab.run("set('search', 'scout-b/1')")
    assert tab.run(said) == "1 of 10 requests, 1 of 6 conversations"
    tab.run("set('search', ''); set('status', '1')")
    assert tab.run(said) == "1 of 10 requests, 1 of 6 conversations"
    tab.run("set('status', ''); set('turn', '1-2')")
    assert tab.run(said) == "4 of 10 requests, 3 of 6 conversations"
    tab.run("set('turn', 'x')")
    assert tab.run("return document.getElementById('lanes-turn').getAttribute('aria-invalid')") == "true"
    tab.run("set('turn', '')")
    assert tab.run(said) == ""


def test_lanes_come_in_the_order_asked_for(tab: Tab) -> None:
    show(tab, [record("quick"), record("slow", 0, 1.0, ttft_s=3.0), record("mild", 0, 2.0, ttft_s=1.0)])
    top = "point('pointermove', 12, {}); return tip().split('\\n')[0]"
    assert [tab.run(top.format(y)) for y in (37, 59, 81)] == ["quick", "slow", "mild"]
    tab.run("set('order', 'first')")
    assert [tab.run(top.format(y)) for y in (37, 59, 81)] == ["slow", "mild", "quick"]


def test_time_is_that_of_the_run_of_the_day_or_of_each_conversation(tab: Tab) -> None:
    show(tab, two())
    apart = tab.run("return runs(59)[0][1] - runs(37)[0][1]")
    assert apart > 100
    tab.run("set('time', 'tree')")
    tab.wait_for("runs(59).length && runs(59)[0][1] === runs(37)[0][1]")
    tab.run("set('time', 'day')")
    tab.wait_for("runs(59).length && runs(59)[0][1] - runs(37)[0][1] === " + str(apart))
    day = tab.run("return new Date(1700000000000).toLocaleTimeString('en-GB')")
    assert day in tab.run("point('pointermove', runs(37)[0][1] + 2, 37); return tip()")


def test_keys_go_from_request_to_request(tab: Tab) -> None:
    show(tab, two())
    said = "return document.getElementById('lanes-said').textContent"
    tab.run("press('ArrowDown')")
    assert tab.run(said).startswith("left, turn 0; ")
    tab.run("press('ArrowRight')")
    assert tab.run(said).startswith("left, turn 1; ")
    tab.wait_for("tip().indexOf('left, turn 1') === 0")
    tab.run("press('ArrowDown')")
    assert tab.run(said).startswith("right, turn 0; ")
    tab.run("press('ArrowUp'); press('ArrowLeft')")
    assert tab.run(said).startswith("left, turn 0; ")
    tab.run("press('Escape')")
    tab.wait_for("tip() === ''")


def test_a_key_scrolls_to_what_is_out_of_sight(tab: Tab) -> None:
    show(tab, [record(f"talk-{n:03}", 0, n * 0.1) for n in range(200)])
    for _ in range(60):
        tab.run("press('ArrowDown')")
    assert tab.run("return lanes.scrollTop") > 300
    tab.wait_for("tip().indexOf('talk-059') === 0")


def test_it_scrolls_smoothly_through_ten_thousand_requests(tab: Tab) -> None:
    show(tab, many(2500, 4))
    tab.run("""
        var times = [], last = 0;
        window.median = 0;
        document.getElementById('conversations').scrollIntoView();
        requestAnimationFrame(function frame(now) {
            if (last) { times.push(now - last); }
            last = now;
            lanes.scrollTop += 25;
            if (times.length < 60) { requestAnimationFrame(frame); return; }
            window.median = times.sort(function (a, b) { return a - b; })[30];
        });
    """)
    assert tab.wait_for("median") < 50
    assert tab.run("return lanes.scrollTop") > 1000


def test_every_control_is_reached_by_keyboard_on_a_phone_and_the_page_does_not_widen(browser: Browser) -> None:
    with browser.tab(390, 844) as phone:
        show(phone, [*two(), *family()])
        assert phone.run("return document.documentElement.scrollWidth") == 390
        small = phone.run("""
            return Array.from(document.querySelectorAll('#swimlane input, #swimlane select, #swimlane button, .lanes'))
                .filter(function (e) {
                    var box = e.getBoundingClientRect();
                    return e.tabIndex < 0 || box.height < 30 || box.left < 0 || box.right > 390;
                }).map(function (e) { return e.id || e.className; });
        """)
        assert small == []
