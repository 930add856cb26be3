"""Replies in the text form of ReAct: an action that the prompt declares, with its input, then an answer with the results."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from llmirage_server.replies.compose import ComposedReplies
from llmirage_server.replies.reply import ReplyRequest
from llmirage_server.service.constraints import instructions_of
from llmirage_shared.wire.chat import chat_history, with_calls

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SUM = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
DECLARED = f"""You solve tasks with tools.
> Tool Name: get_weather
Tool Description: get_weather(city: str) -> str
Tells the weather of a city.
Tool Args: {json.dumps(WEATHER)}

> Tool Name: add
Tool Description: Adds two numbers.
Tool Args: {json.dumps(SUM)}

Write in this form:
Thought: what you think
Action: the tool (one of get_weather, add)
Action Input: its arguments as JSON

At the end, write:
Thought: why you are done
Answer: [the answer]
"""
LISTED = """Answer questions with these tools:

get_weather(city: str) -> str - Tells the weather of a city.
add(a: float, b: float) -> float - Adds two numbers.
lookup: Looks up a word.

In this form:
Question: what is asked
Thought: what to do
Action: one of [get_weather, add, lookup]
Action Input: the input
Observation: the result
Thought: I know it
Final Answer: the answer

Question: {question}
Thought:"""
Messages = Sequence[dict[str, Any]]


def said(source: ComposedReplies, messages: Messages) -> str:
    written = with_calls(messages)
    history = chat_history(written)
    request = ReplyRequest(
        prompt_ids=np.arange(20, dtype=np.int32),
        last_user_text=history.last_user_text,
        max_tokens=None,
        limit_tokens=4000,
        called=history.called,
        results=history.results,
        messages=history.messages,
        instructions=instructions_of(messages),
    )
    reply = source.reply(request)
    return "".join([reply.said(part) for part in reply.parts])


def system(question: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": DECLARED}, {"role": "user", "content": question}]


@pytest.mark.parametrize(
    ("question", "name", "arguments"),
    [("What is the weather in Oslo?", "get_weather", {"city": "Oslo"}), ("add 2 and 40", "add", {"a": 2, "b": 40})],
)
def test_an_action_is_followed_by_an_answer_with_what_it_gave(
    source: ComposedReplies, question: str, name: str, arguments: Any
) -> None:
    messages = system(question)
    acted = said(source, messages)
    thought, action, given = acted.split("\n")
    assert thought.startswith("Thought: ")
    assert action == f"Action: {name}"
    assert json.loads(given.removeprefix("Action Input: ")) == arguments
    messages += [{"role": "assistant", "content": acted}, {"role": "user", "content": "Observation: 42 it is"}]
    thought, answer = said(source, messages).split("\n", maxsplit=1)
    assert thought.startswith("Thought: ")
    assert answer.startswith("Answer: 42 it is")


def test_what_no_tool_is_for_is_answered_at_once(source: ComposedReplies) -> None:
    assert "\nAnswer: " in said(source, system("Good morning!"))


@pytest.mark.parametrize(
    ("question", "name", "given"),
    [
        ("What is the weather in Oslo?", "get_weather", "Oslo"),
        ("Use lookup for 'mirage'", "lookup", "mirage"),
        ("add 2 and 40", "add", '{"a":2,"b":40}'),
    ],
)
def test_one_message_may_have_all_of_it(source: ComposedReplies, question: str, name: str, given: str) -> None:
    prompt = LISTED.format(question=question)
    acted = said(source, [{"role": "user", "content": prompt}])
    assert acted.split("\n")[1:] == [f"Action: {name}", f"Action Input: {given}"]
    more = f"{prompt} {acted.removeprefix('Thought: ')}\nObservation: a shimmer\nThought:"
    assert "\nFinal Answer: a shimmer" in said(source, [{"role": "user", "content": more}])
