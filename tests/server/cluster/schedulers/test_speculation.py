"""How many draft tokens are accepted: the right share, and always the same ones."""

from typing import Any

import pytest

from llmirage_server.cluster.schedulers.batch import Acceptance
from llmirage_server.cluster.snapshots import STEP_TOKENS, StepCounts
from llmirage_server.perf.speculation import chances


@pytest.mark.parametrize(("drafts", "rate"), [(1, 0.8), (3, 0.5), (5, 0.9), (4, 0.0), (4, 1.0)])
def test_a_step_brings_what_the_formula_says_on_average(drafts: int, rate: float) -> None:
    acceptance = Acceptance(chances(rate, drafts), seed=7)
    draws = [1 + acceptance.accepted(request, produced, drafts) for request in range(200) for produced in range(200)]
    expected = (1 - rate ** (drafts + 1)) / (1 - rate) if rate < 1 else drafts + 1
    assert sum(draws) / len(draws) == pytest.approx(expected, rel=0.01)
    assert max(draws) <= drafts + 1


def test_each_further_draft_is_accepted_with_the_same_chance() -> None:
    acceptance = Acceptance(chances(0.6, 3), seed=1)
    draws = [acceptance.accepted(request, 11, 3) for request in range(40_000)]
    for accepted in range(3):
        reached = sum(draw >= accepted for draw in draws)
        assert sum(draw > accepted for draw in draws) / reached == pytest.approx(0.6, abs=0.015)


def test_it_depends_on_seed_request_and_progress_alone() -> None:
    acceptance = Acceptance(chances(0.7, 4), seed=3)
    draws = [acceptance.accepted(request, produced, 4) for request in range(20) for produced in range(20)]
    assert draws == [acceptance.accepted(request, produced, 4) for request in range(20) for produced in range(20)]
    assert draws != [
        Acceptance(chances(0.7, 4), seed=4).accepted(request, produced, 4) for request in range(20) for produced in range(20)
    ]
    assert len(set(draws[:20])) > 1  # not all alike within a request
    assert len(set(draws[::20])) > 1  # nor over requests
    assert acceptance.accepted(2**70, 0, 4) in range(5)


def test_fewer_drafts_accept_what_more_of_them_would_have_at_most() -> None:
    acceptance = Acceptance(chances(0.7, 4), seed=3)
    for request in range(100):
        assert acceptance.accepted(request, 5, 2) == min(acceptance.accepted(request, 5, 4), 2)


@pytest.mark.parametrize("scheduler", ["vllm", "sglang", "trtllm"])
def test_a_request_gains_by_speculation_what_the_rate_promises(lab: Any, scheduler: str) -> None:
    engine = lab(scheduler=scheduler, num_speculative_tokens=3, acceptance_rate=0.7, speculation_seed=5)
    requests = [engine.submit(10, 1001) for _ in range(8)]
    engine.run()
    assert {request.produced for request in requests} == {1001}
    sequence_steps = sum(len(contexts) for _, contexts in engine.batches)
    assert 8 * 1000 / sequence_steps == pytest.approx((1 - 0.7**4) / 0.3, rel=0.03)


class TestCounts:
    """What is told of drafts."""

    @staticmethod
    def steps(engine: Any) -> StepCounts:
        counts = engine.instance.snapshot().steps
        assert counts is not None
        return counts

    def test_of_drafts_that_are_all_accepted(self, lab: Any) -> None:
        engine = lab(num_speculative_tokens=3, acceptance_rate=1.0)
        engine.submit(10, 12)  # prefill 1, then 4, 4, and of 3 that are left 2 are drafted
        engine.run()
        counts = self.steps(engine)
        assert (counts.drafts, counts.draft_tokens, counts.accepted_tokens) == (3, 8, 8)
        assert counts.accepted_by_position == [3, 3, 2]
        assert counts.tokens == 10 + 12
        assert dict(zip(STEP_TOKENS, counts.by_tokens, strict=False)) | {8: 3, 16: 1} == dict(
            zip(STEP_TOKENS, counts.by_tokens, strict=False)
        )  # three of 3 or 4 tokens, and the prompt's of 11

    def test_of_drafts_that_are_never_accepted(self, lab: Any) -> None:
        engine = lab(num_speculative_tokens=2, acceptance_rate=0.0)
        engine.submit(10, 5)  # four steps; before the last token there is nothing to draft
        engine.run()
        counts = self.steps(engine)
        assert (counts.drafts, counts.draft_tokens, counts.accepted_tokens) == (3, 5, 0)
        assert counts.accepted_by_position == [0, 0]

    def test_without_drafts_there_are_none(self, lab: Any) -> None:
        engine = lab()
        engine.submit(10, 5)
        engine.run()
        counts = self.steps(engine)
        assert (counts.drafts, counts.draft_tokens, counts.accepted_by_position) == (0, 0, [])
        assert (sum(counts.by_tokens), counts.tokens) == (5, 15)

    @pytest.mark.parametrize("rate", [0.3, 0.62, 0.9])
    def test_drafts_are_accepted_as_often_as_configured(self, lab: Any, rate: float) -> None:
        engine = lab(num_speculative_tokens=3, acceptance_rate=rate, speculation_seed=2)
        for _ in range(8):
            engine.submit(10, 2001)
        engine.run()
        counts = self.steps(engine)
        assert counts.accepted_tokens / counts.drafts == pytest.approx(rate + rate**2 + rate**3, rel=0.03)
        shares = [accepted / counts.drafts for accepted in counts.accepted_by_position]
        assert shares == pytest.approx([rate, rate**2, rate**3], abs=0.02)

    def test_a_crash_forgets_none(self, lab: Any) -> None:
        engine = lab(num_speculative_tokens=3, acceptance_rate=1.0)
        engine.submit(10, 12)
        engine.run()
        engine.instance.evacuate(1000.0)
        assert self.steps(engine).drafts == 3

    def test_ranks_are_added_up(self, lab: Any) -> None:
        engine = lab(ranks=2, num_speculative_tokens=3, acceptance_rate=1.0)
        for _ in range(2):
            engine.submit(10, 12)
        engine.run()
        counts = self.steps(engine)
        assert counts.drafts == 6
        assert counts.accepted_by_position == [6, 6, 4]
