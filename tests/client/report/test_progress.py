"""The progress line: redrawn on a terminal, now and then elsewhere, never in the way."""

import io
import os
import threading

import pytest
from terminals import Clock, drawn, terminal

from llmirage_client.report.progress import PLAIN_LINE_S, REDRAW_S, Progress
from llmirage_client.simulate.progress import SimulationProgress


@pytest.fixture(autouse=True)
def _a_terminal_that_can_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")


def test_elsewhere_it_writes_a_line_at_the_start_now_and_then_and_at_the_end() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(200, stream, clock)
    progress.start()
    for done in range(1, 121):
        clock.now += 0.1
        progress.update(done, errors=done // 60, in_flight=8)
    progress.stop()
    assert stream.getvalue().splitlines() == [
        "0/200 requests, 0 in flight, 0:00",
        "50/200 requests, 8 in flight, 10.0/s, 0:05",
        "100/200 requests, 1 failed, 8 in flight, 10.0/s, 0:10",
        "120/200 requests, 2 failed, 8 in flight, 10.0/s, 0:12",
    ]


def test_what_is_told_before_the_start_stays_above() -> None:
    stream = io.StringIO()
    progress = Progress(2, stream, Clock())
    progress.tell("The schedule lasts 2.0 days.")
    progress.start()
    assert stream.getvalue().splitlines() == ["The schedule lasts 2.0 days.", "0/2 requests, 0 in flight, 0:00"]


def test_an_unknown_total_is_left_out() -> None:
    stream = io.StringIO()
    progress = Progress(None, stream, Clock())
    progress.start()
    progress.update(7, 0, 1)
    progress.stop()
    assert stream.getvalue().splitlines()[-1] == "7 requests, 1 in flight, 0:00"


def test_a_terminal_gets_a_bar_on_one_line_that_is_left_at_the_end() -> None:
    clock = Clock()
    with terminal(100) as (stream, leader):
        progress = Progress(4, stream, clock)
        progress.start()
        clock.now += 2.0
        progress.update(3, 1, 1)
        progress.stop()
        text = drawn(leader)
    assert "[##################------] 3/4 requests, 1 failed, 1 in flight, 1.5/s, 0:02" in text
    assert text.count("\n") == 1
    assert text.endswith("\n")


def test_a_terminal_is_redrawn_ten_times_a_second_at_most() -> None:
    clock = Clock()
    with terminal(100) as (stream, leader):
        progress = Progress(10_000, stream, clock)
        progress.start()
        for done in range(10_000):
            clock.now += 0.0001
            progress.update(done, 0, 1)
        text = drawn(leader)
        progress.stop()
    assert text.count("\r") <= 1 + 1 / REDRAW_S
    assert text.count("\r") >= 9


@pytest.mark.parametrize("columns", [1, 2, 20])
def test_a_tiny_terminal_never_wraps(columns: int) -> None:
    with terminal(columns) as (stream, leader):
        progress = Progress(10, stream, Clock())
        progress.start()
        progress.stop()
        text = drawn(leader)
    for frame in text.rstrip("\r\n").split("\r"):
        assert len(frame.replace("\x1b[K", "")) < columns


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with terminal(80) as (stream, leader):
        progress = Progress(10, stream, Clock())
        progress.start()
        progress.stop()
        assert "\x1b" not in drawn(leader)


def test_a_stream_that_closes_in_the_middle_is_left_alone() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(10, stream, clock)
    progress.start()
    stream.close()
    clock.now += 2 * PLAIN_LINE_S
    progress.update(1, 0, 0)
    progress.stop()


def test_a_stream_that_was_closed_before_is_left_alone() -> None:
    stream = io.StringIO()
    stream.close()
    progress = Progress(10, stream)
    progress.start()
    progress.update(1, 0, 0)
    progress.stop()


def test_a_broken_pipe_is_left_alone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    progress = Progress(10, stream, Clock())
    progress.start()
    progress.stop()
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_after_stop_nothing_is_drawn_and_no_thread_is_left() -> None:
    clock, stream = Clock(), io.StringIO()
    threads = threading.active_count()
    progress = Progress(10, stream, clock)
    progress.start()
    progress.stop()
    text = stream.getvalue()
    clock.now += 60
    progress.update(5, 0, 0)
    progress.stop()
    assert stream.getvalue() == text
    assert threading.active_count() == threads


def test_stop_without_start_draws_nothing() -> None:
    stream = io.StringIO()
    progress = Progress(10, stream)
    progress.update(1, 0, 0)
    progress.stop()
    assert stream.getvalue() == ""


def test_a_simulation_says_nothing_for_two_seconds_and_then_how_far_it_is() -> None:
    clock, stream = Clock(), io.StringIO()
    asked = 0

    def total() -> int:
        nonlocal asked
        asked += 1
        return 4000

    progress = SimulationProgress(total, None, stream, clock)
    for second in range(1, 9):
        clock.now += 1.0
        progress.update(300 * second, 60.0 * second)
        assert bool(stream.getvalue()) is (second >= 2)
        assert asked == (second >= 2)
    progress.stop()
    assert stream.getvalue().splitlines() == [
        "600 of 4,000 requests, 2 min 0 s of cluster time, 0:02 elapsed",
        "2,100 of 4,000 requests, 7 min 0 s of cluster time, 0:07 elapsed",
    ]


def test_on_a_terminal_the_bar_of_a_simulation_goes_by_requests_or_by_its_last_moment_and_is_taken_away() -> None:
    clock = Clock()
    with terminal(100) as (stream, leader):
        progress = SimulationProgress(lambda: None, 600.0, stream, clock)
        progress.begin("4 x h100_sxm TP2")
        clock.now += 3.0
        progress.update(10, 300.0)
        shown = drawn(leader)
        assert "[############------------] 4 x h100_sxm TP2: 10 requests, 5 min 0 s of cluster time, 0:03 elapsed" in shown
        progress.stop()
        assert drawn(leader) == "\r\x1b[K"


def test_many_parts_are_announced_at_once_and_the_bar_goes_by_them() -> None:
    clock = Clock()
    with terminal(100) as (stream, leader):
        progress = SimulationProgress(lambda: None, None, stream, clock)
        progress.begin("h100_sxm TP1", 0, 4)
        assert "[------------------------] 1 of 4, h100_sxm TP1: 0 requests" in drawn(leader)
        clock.now += 1.0
        progress.begin("h100_sxm TP2", 1, 4)
        clock.now += 1.0
        progress.update_of(50, 100, 10.0)
        assert "[######------------------] 2 of 4, h100_sxm TP2: 50 of 100 requests" in drawn(leader)
        progress.stop()
        assert drawn(leader) == "\r\x1b[K"


def test_a_short_simulation_leaves_a_terminal_as_it_was() -> None:
    with terminal(100) as (stream, leader):
        progress = SimulationProgress(lambda: 10, None, stream, Clock())
        progress.update(10, 5.0)
        progress.stop()
        assert drawn(leader) == ""
