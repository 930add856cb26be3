"""User messages given by their length, conversations that end with a failure, and offsets, as they are run."""

from typing import Any

import pytest

from llmirage_client.load.options import RunOptions
from llmirage_client.load.turn_calls import SyntheticTurns
from llmirage_client.workload.format import skip
from llmirage_client.workload.session import Session, SyntheticUser, Turn
from llmirage_shared.tokenizer_loader import embedded


def content(options: RunOptions, message: SyntheticUser) -> str:
    return str(SyntheticTurns(options).written(Turn(), message).messages[-1]["content"])


@pytest.mark.parametrize("tokens", [1, 2, 17, 1000])
@pytest.mark.parametrize("prefix_tokens", [0, 1, 40])
def test_a_message_has_exactly_its_tokens(tokens: int, prefix_tokens: int) -> None:
    for key in range(8):
        text = content(RunOptions(seed=2), SyntheticUser(tokens, key, prefix_tokens))
        assert len(embedded().encode(text)) == prefix_tokens + tokens


def test_the_same_key_and_seed_give_the_same_text_and_prefixes_are_shared() -> None:
    options = RunOptions(seed=2)
    assert content(options, SyntheticUser(30, 5)) == content(options, SyntheticUser(30, 5))
    assert content(options, SyntheticUser(30, 5)) != content(options, SyntheticUser(30, 6))
    assert content(options, SyntheticUser(30, 5)) != content(RunOptions(seed=3), SyntheticUser(30, 5))
    one, other = (embedded().encode(content(options, SyntheticUser(30, key, 20))).tolist() for key in (5, 6))
    assert one[:19] == other[:19]  # the last of the prefix may be one with what follows
    assert one[21:] != other[21:]


def test_a_turn_s_own_messages_go_before_the_synthetic_one_and_replies_follow(bench: Any) -> None:
    system = {"role": "system", "content": "s"}
    turns = (Turn(messages=(system,), synthetic=SyntheticUser(3, 1)), Turn(synthetic=SyntheticUser(4, 2)))
    _, target = bench.run(bench.workload(Session("a", turns)))
    roles = [[message["role"] for message in sent.call.body["messages"]] for sent in target.sent]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"]]


def test_a_failure_ends_only_a_conversation_that_says_so(bench: Any) -> None:
    turns = (bench.turn("FAIL 1"), bench.turn("2"))
    strict = Session("strict", turns, ends_on_failure=True)
    result, target = bench.run(bench.workload(strict, Session("lenient", turns)), concurrency=1)
    assert [label for label, _ in target.times()] == ["FAIL 1", "FAIL 1", "2"]
    assert len(result.records) == 3


def test_an_offset_leaves_conversations_out_unless_more_are_wanted(bench: Any) -> None:
    whole = bench.workload(*(Session(name, (bench.turn(name),)) for name in "abc"))
    sent = [label for label, _ in bench.run(skip(whole, 1))[1].times()]
    assert sent == ["b", "c"]
    sent = [label for label, _ in bench.run(skip(whole, 1), num_conversations=5)[1].times()]
    assert sent == ["b", "c", "a", "b", "c"]
