"""Bisection on a fixed grid: exact where the condition is monotone, and monotone where it is not."""

from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.size.max_rate import highest_met, rate_grid, user_grid


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
