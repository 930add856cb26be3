"""What was recorded once still comes out, bit for bit: of the engine, of whole runs, of scripted endpoints, of commands.

Clusters have the frozen step times of toy_deployment.py: what the performance model says is no part of it.

A failure names the plan and the request that differ first; `python tests/golden/record.py show PLAN` prints both. Where the
change is meant, `record.py outcomes --force` records anew, and the commit says why the figures moved.
"""

from collections.abc import Iterator, Mapping
from functools import cache

import pytest
import stored
from commands import COMMANDS, play_command, unlike
from play import WAYS, ways_of
from play_engines import is_fast
from stored import OUTCOMES, PLANS, Row, differences, group_of, packed, unpacked
from toy_deployment import toy_deployments


@cache
def kept(family: str) -> tuple[Mapping[str, Row], Mapping[str, Row]]:
    """Plans and outcomes."""
    return stored.read(PLANS[family]), stored.read(OUTCOMES[family])


GROUPS = {family: dict.fromkeys(map(group_of, stored.names(path))) for family, path in PLANS.items()}
CASES = [(family, group, way) for family in PLANS for group in GROUPS[family] for way in WAYS[family]]
STEPS = {
    ("run", "default"): slice(0, None, 2),
    ("run", "per_sequence"): slice(1, None, 2),
    ("engine", "per_sequence"): slice(0, None, 2),
}
"""Parts of the plans, by family and way. Each plan of a run is played in one of two ways."""


@pytest.fixture(autouse=True)
def _frozen_step_times() -> Iterator[None]:
    with toy_deployments():
        yield


@pytest.mark.parametrize(("family", "group", "way"), CASES)
def test_what_was_recorded_comes_out_again(family: str, group: str, way: str) -> None:
    plans, outcomes = kept(family)
    told = []
    for name, row in list(plans.items())[STEPS.get((family, way), slice(None))]:
        if group_of(name) == group and way in (ways := ways_of(family, name)):
            told += differences(outcomes[name], ways[way](row))
    assert not told, "\n".join(["", *told[:20]])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_and_writes_what_was_recorded(name: str) -> None:
    told = unlike(stored.read(stored.COMMANDS)[name], play_command(name))
    assert not told, "\n".join(["", *told[:20]])


def test_most_engine_plans_go_through_steady_batches_in_one_go_by_default() -> None:
    plans = list(kept("engine")[0].values())[::4]
    assert sum(map(is_fast, plans)) > 0.6 * len(plans)


def test_plans_and_outcomes_belong_together_and_are_many() -> None:
    counts = []
    for family in PLANS:
        plans, outcomes = kept(family)
        assert list(plans) == list(outcomes)
        counts.append(len(plans))
    assert sum(counts) >= 400


def test_times_are_kept_without_loss() -> None:
    for times_s in ([], [0.1], [0.1, 0.1 + 2**-54, 0.3, 7.0, 7.0], [0.0, 1e-300, 5e9]):
        assert unpacked(packed(times_s)) == times_s


def test_a_difference_names_the_request_and_the_token_that_part_first() -> None:
    def outcome(*times_s: list[float]) -> Row:
        requests = [{"id": number, "state": "ok", "times_s": packed(each)} for number, each in enumerate(times_s)]
        return {"name": "made-0", "requests": requests, "over": [0, 1]}

    one, other = outcome([1.0, 2.0, 3.0], [1.0, 1.5]), outcome([1.0, 2.0, 3.5], [1.0, 1.75])
    assert differences(one, one) == []
    assert differences(one, other) == [
        "plan made-0: request 1: token 1 of 2 at 1.75 s instead of 1.5 s (+0.25 s)",
        "plan made-0: request 0: token 2 of 3 at 3.5 s instead of 3.0 s (+0.5 s)",
    ]
    assert differences(one, outcome([1.0, 2.0], [1.0, 1.5]) | {"over": [1, 0]}) == [
        "plan made-0: request 0: 2 tokens instead of 3, the first 2 as they were",
        "plan made-0: over: entry 0: 1 instead of 0",
    ]
