"""Replies in the text form of ReAct (arXiv:2210.03629), for prompts that show it: an action and its input, then an answer.

Read are the lines of the prompt, never the name of a program: `Action: ...` above `Action Input: ...`, and the tools that it
declares (`Tool Name:` with a schema of arguments, or a line for each name that the action may be one of).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from llmirage_server.replies.arguments import arguments_for
from llmirage_server.replies.prompted import json_objects
from llmirage_server.replies.reply import AUTO, ReplyRequest, Tool
from llmirage_server.replies.shown import object_of, short_texts, signature_of
from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.replies.structured.schema_check import check_schema
from llmirage_server.replies.tool_request import calls_now
from llmirage_shared.wire.output import json_text

_START = r"^[^\w\n]{0,10}"  # of a line
_NEXT = r"\n{1,3}[^\w\n]{0,10}"
_ACTION = re.compile(rf"{_START}Action:[^\n]*{_NEXT}Action Input:([^\n]*)", re.MULTILINE)
_ONE_OF = re.compile(rf"{_START}Action:[^\n]*?\bone of:? ?\[?([^\])\n]+)", re.MULTILINE)
_FINAL = re.compile(rf"{_START}(Final Answer|Answer):", re.MULTILINE)
_TOOL = re.compile(rf"{_START}Tool Name: ?(\S+)", re.MULTILINE)
_DESCRIPTION = re.compile(r"Tool Description: ?([^\n]*(?:\n(?![^\w\n]{0,10}Tool )[^\n]+)*)")
_MADE = re.compile(rf"{_START}Action: ?(\S+)[ \t]*{_NEXT}Action Input:[^\n]*{_NEXT}Observation: ?([^\n]*)", re.MULTILINE)
_QUESTION = re.compile(rf"{_START}(?:Question|Task): ?([^\n]*)", re.MULTILINE)
_CHARACTERS = 50  # read in one step of planning
_MOST_OF_A_TOOL = 4_000  # characters
_MOST_OF_A_LINE = 500
_MOST_TOOLS = 64


@dataclass(slots=True, frozen=True)
class ReactForm:
    """The form of a prompt. answer: the label of an answer; in_json: if the input of an action is JSON, not a text."""

    tools: tuple[Tool, ...]
    answer: str
    in_json: bool


def react_form(request: ReplyRequest) -> ReactForm | None:
    """Return the form that a text of the prompt shows, None for prompts without."""
    texts = [text for text in short_texts(request.instructions or ()) if "Action Input:" in text]
    return next((form for text in reversed(texts) if (form := _form_of(text)) is not None), None)


@lru_cache(maxsize=64)
def _form_of(text: str) -> ReactForm | None:
    spend(len(text) // _CHARACTERS)
    shown, answers = _ACTION.search(text), _FINAL.findall(text)
    if shown is None or not answers:
        return None
    tools = tuple(islice(_declared(text), _MOST_TOOLS)) or tuple(islice(_listed(text), _MOST_TOOLS))
    answer = "Final Answer" if "Final Answer" in answers else "Answer"
    return ReactForm(tools, answer, "JSON" in shown[1] or _TOOL.search(text) is not None) if tools else None


def action(form: ReactForm, request: ReplyRequest, key: int) -> str | None:
    """Return the reply that calls a tool; None where it is time for an answer."""
    called, results, said = request.called, request.results, request.last_user_text
    if short_texts([said]) and _ACTION.search(said) is not None:  # one message has all of it
        made = _made(form, said)
        called, results = tuple([name for name, _ in made]), tuple([result for _, result in made])
        questions = _QUESTION.findall(said)
        said = questions[-1] if questions else ""
    calls = calls_now(
        replace(request, tools=form.tools, tool_choice=AUTO, called=called, results=results, last_user_text=said)
    )
    if not calls:
        return None
    try:
        given = arguments_for(calls[0], key)
    except SchemaError:  # no arguments fit
        return None
    texts = [str(value) for value in given.values()]
    written = texts[0] if len(texts) == 1 and not form.in_json else json_text(given)
    name = calls[0].tool.name
    return f"Thought: I need to use {name}.\nAction: {name}\nAction Input: {written}"


def answer_so_far(form: ReactForm, request: ReplyRequest) -> str:
    """Return what an answer begins with: its label, and the results of the actions."""
    results = request.results or [result for _, result in _made(form, request.last_user_text)]
    return f"Thought: I now know the answer.\n{form.answer}: " + "".join([f"{result.strip()} " for result in results])


def _made(form: ReactForm, said: str) -> list[tuple[str, str]]:
    """Return (name, result) of each action that a message tells of."""
    names = {tool.name for tool in form.tools}
    return [made for text in short_texts([said]) for made in _MADE.findall(text) if made[0] in names]


def _declared(text: str) -> Iterator[Tool]:
    """Yield tools of lines `Tool Name:` with a JSON Schema of the arguments, or the types of the arguments by name."""
    starts = list(_TOOL.finditer(text))
    for place, start in enumerate(starts):
        end = starts[place + 1].start() if place + 1 < len(starts) else start.end() + _MOST_OF_A_TOOL
        block = text[start.end() : min(end, start.end() + _MOST_OF_A_TOOL)]
        given = next((value for value, _, _ in json_objects(block) if value is not None), {})
        properties = {name: value for name, value in given.items() if isinstance(value, dict)}
        schema = given if "properties" in given else object_of(properties, properties)
        described = _DESCRIPTION.search(block)
        with suppress(SchemaError):  # the prompt's words look like a schema, and are none
            check_schema(schema)
            yield Tool("function", start[1], "" if described is None else described[1].rpartition("\n")[2], schema)


def _listed(text: str) -> Iterator[Tool]:
    """Yield tools of which the prompt has the names where it says what an action is, with a line for each."""
    names = _ONE_OF.search(text)
    for name in re.split(r"[,\s]+", names[1].strip())[:_MOST_TOOLS] if names is not None else ():
        name = name.strip("'\"`")
        line = re.search(
            rf"{_START}{re.escape(name)}\b(?:\(([^\n()]*)\))?(?: ?-> ?[\w\[\], ]+)? ?(?:[-:,] ?)?([^\n]*)",
            text,
            re.MULTILINE,
        )
        if name and line is not None:
            one = object_of({"input": {"type": "string"}}, ["input"])
            yield Tool(
                "function", name, line[2][:_MOST_OF_A_LINE], signature_of(line[1][:_MOST_OF_A_LINE]) if line[1] else one
            )
