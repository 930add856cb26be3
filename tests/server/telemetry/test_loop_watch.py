"""Times in which the event loop is held up are counted, and shown in the metrics."""

import asyncio
import logging
import time

import pytest

from llmirage_server.telemetry.pace import BLOCK_S, LoopWatch


def test_only_late_wake_ups_count() -> None:
    ready = False
    watch = LoopWatch(lambda: ready)
    assert not watch.late(0.5, 0.5)
    ready = True
    assert [watch.late(late_s, 1.0) for late_s in (0.0, BLOCK_S, 0.11, 3.0, 0.2)] == [False, False, True, True, True]
    assert not watch.late(5.0, 0.01)  # the machine was busy, not this process
    assert (watch.blocks, watch.longest_s) == (3, 3.0)
    assert "\nllmirage:event_loop_blocks_total 3.0\n" in watch.exposition()
    assert "\nllmirage:event_loop_block_seconds_max 3.000000\n" in watch.exposition()


def test_a_loop_that_is_held_up_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch()

    async def held_up() -> None:
        watch.start()
        await asyncio.sleep(0)
        until_s = time.process_time() + 3 * BLOCK_S
        while time.process_time() < until_s:
            pass
        while not watch.blocks:
            await asyncio.sleep(0.01)
        watch.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(held_up())
    assert "held up" in caplog.text


def test_the_metrics_of_a_server_have_the_counts(api: object) -> None:
    assert "llmirage:event_loop_blocks_total 0.0" in api.request("GET", "/metrics").text  # type: ignore[attr-defined]
