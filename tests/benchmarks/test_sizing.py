"""Answers of `size` are those of long simulations, for the cheapest of the mixes that `python -m sizing` compares."""

from __future__ import annotations

from pathlib import Path

import pytest
from sizing.__main__ import TRUTH, ask, verdict
from sizing.mixes import MIXES
from sizing.truth import Truths


@pytest.mark.parametrize("name", ["single, tight TPOT", "heavy prompts, p99", "MoE 20B", "sessions, loose"])
def test_the_answer_is_that_of_long_simulations(name: str, tmp_path: Path) -> None:
    (mix,) = (mix for mix in MIXES if mix.name == name)
    sizing = ask(mix, seed=0)
    assert sizing.answer is not None
    known = tmp_path / "truth.json"
    known.write_text(TRUTH.read_text())
    least, most = Truths(known).between(mix, sizing.answer.capacity.instances)
    assert verdict(sizing, least, most) in ("right", "neighbour")
