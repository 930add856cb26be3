"""Bisection on a fixed grid, and the search for a number of users that ends where it does, in fewer and smaller trials."""

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.slo import parse_slo
from llmirage_client.simulator.deployments import InstanceShape
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.max_rate import highest_met, max_rates, rate_grid, search_grid, search_users, user_grid
from llmirage_client.size.traffic import Traffic, synthetic_source
from llmirage_client.size.trial import Trials


def test_rates_go_up_to_the_top_in_steps_of_two_percent() -> None:
    grid = rate_grid(100.0, 0.9)
    assert grid == [90.6, 92.4, 94.2, 96.1, 98.0, 100.0]


def test_the_top_alone_is_enough_where_it_is_met() -> None:
    asked: list[float] = []

    def met(load: float, most: float) -> bool:
        asked.append(load)
        return load <= most

    grid = list(range(1, 101))
    assert highest_met(grid, lambda load: met(load, 1000), top_first=True) == 99
    assert asked == [100]
    assert highest_met(grid, lambda load: met(load, 42), top_first=True) == 41


def test_users_are_whole_and_few() -> None:
    assert user_grid(5) == [1, 2, 3, 4, 5]
    assert len(user_grid(10_000)) < 350


@given(st.integers(-1, 40), st.integers(1, 40))
def test_the_last_load_that_meets_a_monotone_condition(last: int, count: int) -> None:
    grid = list(range(count))
    found = highest_met(grid, lambda load: load <= last)
    assert (-1 if found is None else found) == min(last, count - 1)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_a_stricter_condition_never_ends_higher(answers: list[tuple[bool, bool]]) -> None:
    """Whatever the noise: the stricter one holds where both answers do."""
    grid = list(range(len(answers)))
    lax = highest_met(grid, lambda load: answers[int(load)][0])
    strict = highest_met(grid, lambda load: answers[int(load)][0] and answers[int(load)][1])
    assert (-1 if strict is None else strict) <= (-1 if lax is None else lax)
    lax = highest_met(grid, lambda load: answers[int(load)][0], top_first=True)
    strict = highest_met(grid, lambda load: answers[int(load)][0] and answers[int(load)][1], top_first=True)
    assert (-1 if strict is None else strict) <= (-1 if lax is None else lax)


@dataclass(frozen=True)
class Judged:
    """What a search looks at of a trial."""

    amount: float
    load: float
    clear: bool = True

    @property
    def met(self) -> bool:
        return self.load <= 1


class Cluster:
    """Uses its limit in full at `most` users. told: beyond so many times the limit, a trial is stopped without a figure."""

    def __init__(self, most: float, power: float, floor: float, told: float, noisy: float = 0.0) -> None:
        self.most, self.power, self.floor, self.told, self.noisy = most, power, floor, told, noisy
        self.users: list[float] = []

    def __call__(self, amount: float) -> Judged:
        self.users.append(amount)
        load = self.floor + (1 - self.floor) * (amount / self.most) ** self.power
        return Judged(amount, load if load <= self.told else math.inf, abs(load - 1) > self.noisy)


CLUSTERS = {
    "most": st.floats(0.4, 4000),
    "power": st.floats(0.2, 6),
    "floor": st.floats(0, 0.99),
    "told": st.sampled_from([1.0, 1.2, math.inf]),
}


@given(**CLUSTERS, top=st.integers(1, 3000), start=st.none() | st.floats(0.1, 5000))
def test_it_ends_as_bisection(most: float, power: float, floor: float, told: float, top: int, start: float | None) -> None:
    """`run_last` is asked where the next number is known to be missed, or is beyond the grid."""
    grid, run, last = user_grid(top), Cluster(most, power, floor, told), Cluster(most, power, floor, told)
    one = search_users(grid, run, start=start, run_last=last)  # type: ignore[arg-type]
    other = search_grid(grid, Cluster(most, power, floor, told))  # type: ignore[arg-type]
    assert (one.met, one.missed) == (other.met, other.missed)
    beyond = [grid[grid.index(int(users)) + 1 :][:1] for users in last.users]
    assert all(not following or following[0] in run.users + last.users for following in beyond)


def test_a_start_near_the_limit_needs_few_trials() -> None:
    run, last = Cluster(434, 0.7, 0.1, 1.2), Cluster(434, 0.7, 0.1, 1.2)
    found = search_users(user_grid(958), run, start=415, run_last=last)  # type: ignore[arg-type]
    assert found.met.amount == 434
    assert len(run.users) + len(last.users) <= 4


def test_it_needs_fewer_and_smaller_trials() -> None:
    grid = user_grid(958)
    few, many = Cluster(434, 0.7, 0.1, 1.2), Cluster(434, 0.7, 0.1, 1.2)
    search_users(grid, few)  # type: ignore[arg-type]
    search_grid(grid, many, top_first=True)  # type: ignore[arg-type, list-item]
    assert len(few.users) <= 7 < len(many.users)
    assert sum(few.users) < 0.6 * sum(many.users)


def test_it_goes_on_to_where_noise_leaves_no_doubt() -> None:
    found = search_users(user_grid(958), Cluster(434, 1.0, 0.0, math.inf, noisy=0.06))  # type: ignore[arg-type]
    assert found.clearly_met < 434 * 0.94
    assert found.clearly_missed > 434 * 1.06


def test_conversations_with_ids_end_where_whole_trials_of_every_number_on_the_way_do() -> None:
    """Trials end early where noise leaves no doubt, and begin where the limit is expected; the answer is that without."""
    base = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", weights="bf16")
    shape = InstanceShape("h100_sxm", None, "bf16", 1)
    source = synthetic_source("300", "20", "4", "0.2", 200, 0)
    assert not source.tokens_alone

    def trials() -> Trials:
        return Trials(Traffic(source, "concurrency", 1, RunOptions(seed=0)), parse_slo("tpot_p95<11ms"), 30)

    brief, whole = trials(), trials()
    found = max_rates(base, [shape], brief, 1)[0]
    assert source.lengths is not None
    most = whole.bounds(shape.config(base, 1)).most_running(source.lengths)
    assert most is not None
    grid = user_grid(most)
    best = highest_met(grid, lambda users: whole.run(shape.config(base, 1), users).met, top_first=True)
    short = whole.effort.requests
    while not whole.run_long(shape.config(base, 1), grid[best]).met:
        best -= 1
    assert (found.trial.amount, found.beyond.amount) == (grid[best], grid[best + 1])
    assert found.trial == whole.run_long(shape.config(base, 1), grid[best])
    assert brief.effort.requests < whole.effort.requests - 0.3 * short
