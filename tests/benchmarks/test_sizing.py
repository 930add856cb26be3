"""Answers of `size` are those of long simulations, for the cheapest of the mixes that `python -m sizing` compares."""

from pathlib import Path

import numpy as np
import pytest
from sizing.__main__ import TRUTH, ask, verdict
from sizing.day import by_hours_and_whole, write_trace
from sizing.mixes import MIXES
from sizing.truth import Truths, grows

from llmirage_client.measure.columns import filled


@pytest.mark.parametrize("name", ["MoE 20B", "session users"])
def test_the_answer_is_that_of_long_simulations(name: str, tmp_path: Path) -> None:
    (mix,) = (mix for mix in MIXES if mix.name == name)
    sizing, _ = ask(mix, seed=0)
    assert sizing.answer is not None
    known = tmp_path / "truth.json"
    known.write_text(TRUTH.read_text())
    least, most = Truths(known).between(mix, sizing.answer.capacity.instances)
    assert verdict(sizing, least, most) in ("right", "neighbour")


def test_a_day_simulated_whole_takes_the_gpu_hours_of_its_hours(tmp_path: Path) -> None:
    """Two hours of `python -m sizing.day`."""
    write_trace(tmp_path / "day.jsonl", [0.4, 1.2], seed=2)
    hourly, whole = by_hours_and_whole(tmp_path / "day.jsonl")
    assert len(set(hourly.instances)) > 1
    assert whole.gpu_hours == pytest.approx(hourly.gpu_hours, rel=0.1)
    assert whole.goodput == pytest.approx(hourly.goodput, abs=0.05)


def test_users_in_step_do_not_grow() -> None:
    """All wait at the same time, so that moments 11.36 s apart see ever more of them, or ever fewer."""
    rounds = np.arange(250) * 11.4
    starts = np.repeat(rounds, 64)
    assert not grows(filled(starts, end_s=starts + 6.0))
    more = np.sort(np.concatenate([starts, *(np.repeat(rounds[k:], 6) for k in range(0, 250, 10))]))
    assert grows(filled(more, end_s=more + 6.0))
