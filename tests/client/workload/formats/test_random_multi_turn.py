"""random_multi_turn: what is drawn, what it depends on, which options it needs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_files import problems_of

from llmirage_client.workload.registry import load
from llmirage_client.workload.session import SyntheticUser, Workload

NAME = "random_multi_turn"


def drawn(**options: Any) -> Workload:
    return load(NAME, None, {"max_turns": 4, "max_prompt_length": 50, **options})


def messages(workload: Workload) -> list[list[SyntheticUser]]:
    return [[t.synthetic for t in workload.sessions[root].turns if t.synthetic] for root in workload.roots]


def test_turns_and_lengths_are_drawn_from_their_ranges_ends_included() -> None:
    conversations = messages(drawn(min_turns=2, min_prompt_length=48, conversations=300))
    assert len(conversations) == 300
    assert {len(turns) for turns in conversations} == {2, 3, 4}
    assert {message.tokens for turns in conversations for message in turns} == {48, 49, 50}


def test_no_message_is_empty_and_no_two_have_the_same_text() -> None:
    conversations = messages(drawn(max_prompt_length=1))
    assert {message.tokens for turns in conversations for message in turns} == {1}
    keys = [message.key for turns in conversations for message in turns]
    assert len(set(keys)) == len(keys)


def test_a_prefix_is_on_every_turn() -> None:
    assert {message.prefix_tokens for turns in messages(drawn(prefix_length=7)) for message in turns} == {7}


def test_the_same_options_draw_the_same_and_more_conversations_do_not_change_the_first() -> None:
    few, many = messages(drawn(conversations=5)), messages(drawn(conversations=20))
    assert few == many[:5]
    assert messages(drawn(conversations=5, seed=1)) != few


def test_an_offset_goes_on_where_a_run_from_the_start_ends() -> None:
    assert messages(drawn(conversations=3, dataset_offset=5)) == messages(drawn(conversations=8))[5:]


def test_a_run_offers_its_settings() -> None:
    offered = {"conversations": 7, "seed": 3, "tokenizer": None, "min_turns": 4}
    workload = load(NAME, None, {"max_turns": 4, "max_prompt_length": 9}, offered)
    assert [len(turns) for turns in messages(workload)] == [4] * 7
    assert messages(workload) == messages(drawn(conversations=7, seed=3, min_turns=4, max_prompt_length=9))


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ({}, ["option max_turns: random_multi_turn needs it (most turns of a conversation)"]),
        ({"max_turns": 0}, ["option max_turns: Input should be greater than or equal to 1"]),
        ({"max_turns": "many"}, ["option max_turns: Input should be a valid integer, unable to parse string as an integer"]),
        ({"max_turns": 2.5}, ["option max_turns: Input should be a valid integer, got a number with a fractional part"]),
        ({"max_turns": True}, ["option max_turns: Input should be a valid integer, not a boolean (got True)"]),
        ({"max_turns": 2, "min_turns": 3}, ["option min_turns: 3 is more than max_turns 2"]),
        (
            {"max_turns": 2, "min_prompt_length": 9, "max_prompt_length": 8},
            ["option min_prompt_length: 9 is more than max_prompt_length 8"],
        ),
        (
            {"max_turns": 2, "min_prompt_length": -1},
            ["option min_prompt_length: Input should be greater than or equal to 0"],
        ),
        (
            {"max_turns": 2, "max_prompt_length": 1e30},
            ["option max_prompt_length: Input should be less than or equal to 10000000"],
        ),
        ({"max_turns": 2, "conversations": 0}, ["option conversations: Input should be greater than or equal to 1"]),
        ({"max_turns": 2, "dataset_offset": -1}, ["option dataset_offset: Input should be greater than or equal to 0"]),
        ({"max_turns": 2, "prefix_length": [1, 2]}, ["option prefix_length: Input should be a valid integer"]),
        (
            {"max_turn": 2},
            [
                "option max_turn: random_multi_turn has no such option (did you mean 'max_turns'?)",
                "option max_turns: random_multi_turn needs it (most turns of a conversation)",
            ],
        ),
    ],
)
def test_bad_options_are_refused_all_at_once(options: dict[str, Any], problems: list[str]) -> None:
    assert problems_of(NAME, **options) == problems


@given(st.integers(1, 5), st.integers(0, 4), st.integers(0, 30), st.integers(0, 30), st.integers(0, 5))
def test_any_ranges_are_kept(low: int, more: int, shortest: int, longer: int, offset: int) -> None:
    workload = drawn(
        min_turns=low,
        max_turns=low + more,
        min_prompt_length=shortest,
        max_prompt_length=max(shortest + longer, 1),
        conversations=6,
        dataset_offset=offset,
    )
    assert workload.roots == tuple(f"conversation_{number}" for number in range(offset + 1, offset + 7))
    for turns in messages(workload):
        assert low <= len(turns) <= low + more
        assert all(max(1, shortest) <= message.tokens <= max(shortest + longer, 1) for message in turns)
