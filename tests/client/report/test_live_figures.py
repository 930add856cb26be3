"""The figures of a run while it goes on: right, in few lines, and gone at the end."""

import io
import re
import statistics
from collections.abc import Sequence

import pytest
from terminals import Clock, drawn, screen, terminal

from llmirage_client.measure.record import Exchange, Record, RequestError
from llmirage_client.operations.simulate import SimulateSettings, simulate
from llmirage_client.report.progress import LiveFigures, Progress, sparkline
from llmirage_client.simulate.progress import SimulationProgress
from llmirage_client.simulate.token_rows import TokenRow


class Tty(io.StringIO):
    """A terminal without a limit to what nobody has read."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _a_terminal_that_can_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")


def record(ttft_s: float, tokens: int, *, error: RequestError | None = None) -> Record:
    times = [ttft_s + n * 0.01 for n in range(tokens)]
    exchange = Exchange(start_s=0.0, token_s=times, usage={"completion_tokens": tokens}, error=error)
    return Record(1, "c", 0, "r", "x", "x", None, 0, 0.0, exchange, "profiling", 1, tokens)


def test_rates_are_those_of_the_last_seconds_and_latencies_of_all_requests() -> None:
    figures = LiveFigures()
    for second in range(20):
        for _ in range(10 if second >= 15 else 2):
            figures.see(Exchange(0.0, token_s=[0.1 + n * 0.01 for n in range(11)]), 11)
        first = figures.lines(second + 1.0, sparks=True)
    assert first[0].startswith("10.0 requests/s, 110 output tok/s  ")
    assert first[0].endswith("▃" * 15 + "█" * 5) or first[0].endswith("▂" * 15 + "█" * 5)
    values = [float(value) for value in re.findall(r"p\d\d ([\d.]+)", first[1])]
    assert values == pytest.approx([100, 100, 10, 10], rel=0.02)


def test_a_cluster_that_runs_faster_has_its_own_seconds() -> None:
    figures = LiveFigures(10.0, slot_s=10.0)
    for _ in range(20):
        figures.see(Exchange(0.0, token_s=[0.01, 0.02]), 2)
    rates, latencies = figures.lines(10.0, sparks=True)
    assert rates == "2.0 requests/s, 4 output tok/s"
    assert float(latencies.split()[2].rstrip(",")) == pytest.approx(100, rel=0.02)


def test_a_long_pause_costs_nothing_and_empties_the_sparkline() -> None:
    figures = LiveFigures()
    figures.see(Exchange(0.0, token_s=[0.1]), 1)
    [rates, _] = figures.lines(1e9, sparks=True)
    assert rates == "0.0 requests/s, 0 output tok/s  " + "▁" * 20


def test_nothing_is_said_before_there_is_anything() -> None:
    assert LiveFigures().lines(0.5, sparks=True) == []


def test_a_sparkline() -> None:
    assert sparkline([0, 1, 2, 7]) == "▁▂▃█"
    assert sparkline([0, 0]) == "▁▁"


@pytest.mark.parametrize("columns", [40, 80])
def test_the_terminal_shows_three_lines_and_then_one(columns: int) -> None:
    clock = Clock()
    with terminal(columns) as (stream, leader):
        progress = Progress(40, stream, clock)
        progress.watch(1.0)
        progress.start()
        for done in range(1, 31):
            clock.now += 0.1
            progress.see(record(0.05, 11))
            progress.update(done, 0, 4)
        during = drawn(leader)
        progress.stop()
        after = drawn(leader)
    shown = screen(during, columns)
    assert len(shown) == 3
    assert "30/40 requests, 4 in flight" in shown[0]
    assert shown[1].startswith("10.0 requests/s, 110 output tok/s")
    assert shown[2].startswith("TTFT p50 50")
    assert all(len(line) < columns for line in shown)
    at_end = screen(during + after, columns)
    assert len([line for line in at_end if line]) == 1
    assert "30/40 requests" in at_end[0]


def test_what_the_user_is_told_in_between_stays() -> None:
    clock = Clock()
    with terminal(80) as (stream, leader):
        progress = Progress(40, stream, clock)
        progress.watch(1.0)
        progress.start()
        clock.now += 1.5
        progress.see(record(0.05, 11))
        progress.update(1, 0, 4)
        stream.write("\nStopping.\n")
        progress.interrupt()
        clock.now += 1.5
        progress.update(2, 0, 0)
        progress.stop()
        text = drawn(leader)
    shown = screen(text, 80)
    assert "Stopping." in shown
    assert [line for line in shown if line][-1].startswith("[#")
    assert len([line for line in shown if line]) == 5  # three before, and one after


def test_failed_requests_have_no_latencies() -> None:
    with terminal(80) as (stream, _):
        clock = Clock()
        progress = Progress(2, stream, clock)
        progress.watch(1.0)
        progress.start()
        progress.see(record(0.05, 11, error=RequestError(500, "http_error", "no")))
        assert progress._lines_below(0.5) == []


def test_elsewhere_there_are_lines_as_before() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(2, stream, clock)
    progress.watch(1.0)
    progress.start()
    progress.see(record(0.05, 11))
    clock.now += 6.0
    progress.update(1, 0, 1)
    progress.stop()
    assert "\x1b" not in stream.getvalue()
    assert "TTFT" not in stream.getvalue()


def test_a_simulation_shows_what_its_requests_say() -> None:
    """Against the figures that it has at its end."""
    clock = Clock()

    class Slow(SimulationProgress):
        def update(self, done: int, reached_s: float, rows: Sequence[TokenRow] = ()) -> None:
            clock.now += 1.0
            super().update(done, reached_s, rows)

    load = SimulateSettings(isl=500, osl=50, requests=400, request_rate=(8.0,), random_seed=1)
    stream = Tty()
    made = Slow(stream=stream, clock=clock)
    simulation = simulate(None, load, progress=lambda *_: made)
    seen = stream.getvalue().replace("\n", "\r\n")  # as a terminal has it
    assert screen(seen, 80) == [""]
    rates = re.findall(r"([\d.]+) requests/s, ([\d,]+) output tok/s  ([▁-█]+)", seen)
    assert statistics.mean([float(rate) for rate, _, _ in rates]) == pytest.approx(8.0, rel=0.25)
    for name in ("ttft", "tpot"):
        last = re.findall(rf"{name.upper()} p50 ([\d.]+)", seen)[-1]
        assert float(last) == pytest.approx(simulation.summary[f"{name}_ms"]["p50"], rel=0.1)
