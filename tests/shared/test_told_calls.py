"""Which tools were called for the last message of the user, and what they gave."""

from typing import Any

import pytest
from chat_messages import user

from llmirage_shared.wire.chat import calls_since_user, last_user_text, with_calls


def assistant(*calls: tuple[str, str]) -> dict[str, Any]:
    made = [{"id": key, "type": "function", "function": {"name": name, "arguments": "{}"}} for key, name in calls]
    return {"role": "assistant", "content": None, "tool_calls": made}


def tool(key: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": key, "content": text}


def test_results_are_in_the_order_of_their_calls() -> None:
    messages = [user("x"), assistant(("a", "f"), ("b", "g"), ("c", "h")), tool("b", "2"), tool("a", "1")]
    assert calls_since_user(messages) == [("f", "1"), ("g", "2"), ("h", "")]


def test_calls_for_an_earlier_message_do_not_count() -> None:
    assert calls_since_user([user("x"), assistant(("a", "f")), tool("a", "1"), user("y")]) == []


def test_a_question_said_again_with_the_result_is_answered() -> None:
    messages = [user("x"), assistant(("a", "f")), user("x"), tool("a", "1")]
    assert calls_since_user(messages) == [("f", "1")]


def test_deprecated_calls_have_no_ids() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    assert calls_since_user([user("x"), call, {"role": "function", "name": "f", "content": "1"}]) == [("f", "1")]


CALLING = "Calling tools:\n[{'id': 'call_1', 'type': 'function', 'function': {'name': 'f', 'arguments': {'city': 'Paris'}}}]"


def test_calls_and_results_in_words() -> None:
    messages = [user("What is it?"), {"role": "assistant", "content": f"\n{CALLING}"}, user("Observation:\nsunny")]
    heard = with_calls(messages)
    assert calls_since_user(heard) == [("f", "sunny")]
    assert last_user_text(heard) == "What is it?"


def test_code_that_calls_functions_and_its_results() -> None:
    code = "Thought: I look.\n```\nfound = look_up(place='Paris')\nprint(found)\n```"
    messages = [user("Where?"), {"role": "assistant", "content": code}, user("Observation: here")]
    assert calls_since_user(with_calls(messages)) == [("look_up", "here"), ("print", "here")]


@pytest.mark.parametrize("heading", ["New task:", "Request 1 of the user:"])
def test_what_follows_an_observation_under_the_first_heading_is_a_new_message(heading: str) -> None:
    observed = f"Observation:\nsunny\n{heading}\nAnd in Rome?"
    messages = [user(f"{heading}\nAnd in Paris?"), {"role": "assistant", "content": CALLING}, user(observed)]
    heard = with_calls(messages)
    assert last_user_text(heard) == f"{heading}\nAnd in Rome?"
    assert calls_since_user(heard) == []
    assert calls_since_user(with_calls([*messages[:2], user("Observation:\nsunny: warm")])) == [("f", "sunny: warm")]


def test_calls_of_the_api_stay_as_they_are_whatever_is_said_beside_them() -> None:
    called = {**assistant(("a", "f")), "content": "I call g(1)."}
    messages = [user("x"), called, tool("a", "1"), user("Observation: y")]
    assert with_calls(messages) == messages


def test_an_observation_of_nothing_is_a_message() -> None:
    messages = [user("What is it?"), {"role": "assistant", "content": "A bird."}, user("Observation: it flies")]
    assert with_calls(messages) == messages
    assert with_calls([]) == []
