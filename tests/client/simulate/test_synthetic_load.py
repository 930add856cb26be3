"""Workloads of given lengths, without a file."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from invoked import invoke, refusal

from llmirage_client.workload.schedule import ArrivalProcess
from llmirage_client.workload.session import TokenSpec, Workload, WorkloadError
from llmirage_client.workload.synthetic_load import synthetic_load, with_priorities


def specs(workload: Workload) -> list[TokenSpec]:
    return [turn.tokens for s in workload.sessions.values() for turn in s.turns if turn.tokens is not None]


def test_each_request_is_a_session_of_the_lengths_that_were_given() -> None:
    workload = synthetic_load(1000, 500, 20)
    assert len(workload.roots) == 20
    assert {(s.input_tokens, s.output_tokens, s.input_ids) for s in specs(workload)} == {(1000, 500, None)}
    assert {session.mode for session in workload.sessions.values()} == {"tokens"}
    assert not workload.timed


def test_lengths_may_be_distributions_and_hang_on_the_seed() -> None:
    lengths = [s.input_tokens for s in specs(synthetic_load("lognormal(p50=900, p95=4000)", "40:160", 5000))]
    assert np.percentile(lengths, [50, 95]) == pytest.approx([900, 4000], rel=0.1)
    assert lengths == [s.input_tokens for s in specs(synthetic_load("lognormal(p50=900, p95=4000)", "40:160", 5000))]
    assert lengths != [s.input_tokens for s in specs(synthetic_load("lognormal(p50=900, p95=4000)", "40:160", 5000, seed=1))]


def test_turns_continue_the_last_request_and_its_reply() -> None:
    workload = synthetic_load(100, 10, 25, turns=3, wait_s=2)
    assert sum(len(s.turns) for s in workload.sessions.values()) == 25
    assert [len(s.turns) for s in workload.sessions.values()] == [3] * 8 + [1]
    first = next(iter(workload.sessions.values()))
    assert [turn.tokens.input_tokens for turn in first.turns if turn.tokens] == [100, 210, 320]
    assert [turn.delay_s for turn in first.turns] == [0, 2, 2]


def test_a_shared_prefix_is_the_same_tokens_in_all_sessions() -> None:
    workload = synthetic_load(100, 10, 8, turns=2, shared_prefix_tokens=60)
    prompts = []
    for session in workload.sessions.values():
        for before, after in itertools.pairwise([turn.tokens for turn in session.turns if turn.tokens]):
            assert before.output_ids is not None
            history = [*before.input_ids, *before.output_ids]
            assert after.input_ids.tolist()[: len(history)] == history
            prompts.append(before.input_ids.tolist())
    assert len({tuple(prompt[:60]) for prompt in prompts}) == 1
    assert len({tuple(prompt[:65]) for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize(("process", "cv"), [("constant", 0.0), ("poisson", 1.0), ("gamma", 2.5)])
def test_arrivals_are_of_the_process_that_was_asked_for(process: str, cv: float) -> None:
    workload = synthetic_load(10, 1, 4000, arrivals=ArrivalProcess(process, 5.0, cv=2.5))  # type: ignore[arg-type]
    times = [session.arrival_s or 0.0 for session in workload.sessions.values()]
    gaps = np.diff(times)
    assert workload.timed
    assert times[0] == 0
    assert 1 / gaps.mean() == pytest.approx(5, rel=0.15)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.15, abs=1e-6)


def test_all_that_is_wrong_is_told_by_name() -> None:
    with pytest.raises(WorkloadError) as caught:
        synthetic_load("many", 0, 0, turns="lognormal(mean=1)", wait_s=-1, shared_prefix_tokens=-1)
    fields = [problem.field for problem in caught.value.problems]
    assert fields == ["isl", "osl", "turns", "think_time", "requests", "shared_prefix"]


def test_a_shared_prefix_stands_before_the_input_and_may_be_longer() -> None:
    workload = synthetic_load(100, 10, 4, turns=2, shared_prefix_tokens=500)
    specs = [[turn.tokens for turn in session.turns if turn.tokens] for session in workload.sessions.values()]
    assert [[spec.input_tokens for spec in chain] for chain in specs] == [[600, 710], [600, 710]]
    assert all(spec.input_ids is not None and len(spec.input_ids) == spec.input_tokens for chain in specs for spec in chain)


def test_so_many_whole_sessions() -> None:
    workload = synthetic_load(100, 10, 7, turns="1:5", sessions=30, seed=4)
    counts = [len(session.turns) for session in workload.sessions.values()]
    assert len(counts) == 30
    assert len(set(counts)) > 1


def test_priorities_are_drawn_in_their_shares_for_whole_conversations() -> None:
    plain = synthetic_load(100, 10, 2000, turns=2, seed=1)
    workload = with_priorities(plain, [(0, 3.0), (7, 1.0)], seed=1)
    sessions = list(workload.sessions.values())
    drawn = [{turn.extra["priority"] for turn in session.turns} for session in sessions]
    assert all(len(found) == 1 for found in drawn)
    assert sum(found == {7} for found in drawn) / len(drawn) == pytest.approx(0.25, abs=0.05)
    assert len({id(turn) for session in sessions for turn in session.turns}) == 4  # 2 turns, 2 priorities
    assert workload == with_priorities(plain, [(0, 3.0), (7, 1.0)], seed=1)


def test_a_load_of_lengths_has_the_priorities_that_were_set(tmp_path: Path) -> None:
    words = ["simulate", "--model", "llama-3.1-8b", "--isl", "100", "--osl", "5", "--requests", "60", "--request-rate", "20"]
    done = invoke(*words, "--set", "priorities=0:0.5,3:0.5", "--artifact-dir", tmp_path, "--json")
    found = json.loads(done.output.splitlines()[-1])["by_priority"]
    assert set(found) == {"0", "3"}
    assert sum(one["requests"] for one in found.values()) == 60
    assert "each priority once" in refusal(*words, "--set", "priorities=0:0.5,0:0.5")
