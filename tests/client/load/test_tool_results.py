"""Tool results of a file after live calls whose ids the file cannot know."""

from typing import Any

import pytest

from llmirage_client.load.history import Message, ToolResults, fit_results


def said(*ids: str, live: bool = True) -> Message:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return Message({"role": "assistant", "content": None, "tool_calls": calls} if ids else
                   {"role": "assistant", "content": "no call"}, live=live)  # fmt: skip


def result(id_: str, content: str = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content}


USER = {"role": "user", "content": "u"}


def fit(last: Message | None, policy: ToolResults, *messages: dict[str, Any]) -> list[Any]:
    return fit_results([] if last is None else [USER, last], messages, policy)


@pytest.mark.parametrize("policy", ["matched", "fitted"])
def test_as_many_results_as_calls_get_their_ids_in_order(policy: ToolResults) -> None:
    assert fit(said("x", "y"), policy, USER, result("1", "a"), result("2", "b")) == [
        USER, result("x", "a"), result("y", "b"),
    ]  # fmt: skip
    item = {"type": "function_call_output", "call_id": "1", "output": "o"}
    assert fit(said("x"), policy, item) == [{**item, "call_id": "x"}]


@pytest.mark.parametrize("policy", ["authored", "matched", "fitted"])
def test_what_fits_already_stays(policy: ToolResults) -> None:
    assert fit(said("x", "y"), policy, result("y"), result("x")) == [result("y"), result("x")]
    assert fit(said("1", live=False), policy, result("other")) == [result("other")]
    assert fit(None, policy, result("1")) == [result("1")]
    assert fit(said(), policy, USER) == [USER]


def test_other_numbers_stay_unless_they_are_to_fit() -> None:
    assert fit(said("x", "y"), "matched", result("1"), USER) == [result("1"), USER]
    assert fit(said("x"), "authored", result("1")) == [result("1")]
    assert fit(said(), "matched", result("1")) == [result("1")]


def test_fitted_results_come_first_one_for_each_call() -> None:
    assert fit(said("x", "y"), "fitted", USER, result("1", "a")) == [result("x", "a"), result("y", "done"), USER]
    assert fit(said("x"), "fitted", USER) == [result("x", "done"), USER]
    assert fit(said("x"), "fitted", result("1", "a"), result("2", "b")) == [result("x", "a"), {**USER, "content": "b"}]
    assert fit(said(), "fitted", result("1", "a")) == [{**USER, "content": "a"}]


def test_results_of_the_turns_own_calls_are_never_touched() -> None:
    own = {"role": "assistant", "content": None, "tool_calls": [{"id": "z", "type": "function"}]}
    assert fit(said(), "fitted", USER, own, result("z")) == [USER, own, result("z")]
    assert fit(said("x"), "fitted", result("1"), own, result("z"), USER) == [result("x"), own, result("z"), USER]
    assert fit_results([USER], [own, result("z")], "fitted") == [own, result("z")]


def test_after_a_failed_request_there_is_no_call_to_answer() -> None:
    assert fit_results([USER], [result("1", "a")], "fitted") == [{**USER, "content": "a"}]
    assert fit_results([USER], [result("1", "a")], "matched") == [result("1", "a")]
