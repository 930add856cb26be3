"""Which tools a sensible model would call: those that do what the user asks for, and that it has not called yet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from llmirage_server.replies.reply import ReplyRequest, Tool

MOST_CALLS = 8  # in one reply
_ENOUGH = 3.0  # score from which a tool does what was asked
_NAME, _DESCRIPTION, _PARAMETER, _SPELLED_OUT = 3.0, 1.5, 1.0, 10.0

_WORD = re.compile(r"[A-Za-z]+|\d+(?:\.\d+)?")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Words that say nothing about what a tool does.
_EMPTY = _set(
    "a an and any are as at be by can current currently do does for from get give given has have how i if in into is it its "
    "just let list make me more my new now of on or our out please provide return returns run set show some tell that the "
    "their them then there this to tool tools up use used using value want was we what when where which who will with "
    "would you your function call based one two s"
)  # fmt: skip
# What people say when they want what a tool's name or description speaks of.
_SAID_AS: Mapping[str, frozenset[str]] = {
    key: _set(words)
    for key, words in {
        "weather": "temperature forecast rain sunny cold hot warm snow wind umbrella",
        "forecast": "weather rain sunny",
        "temperature": "weather hot cold warm",
        "calculate": "plus minus times sum multiply multiplied add divide divided subtract math compute square root percent",
        "calculator": "plus minus times sum multiply multiplied add divide divided subtract math compute calculate square",
        "math": "plus minus times sum multiply multiplied add divide divided calculate",
        "add": "plus sum total together",
        "sum": "plus add total",
        "subtract": "minus less difference",
        "multiply": "times multiplied product",
        "divide": "divided over quotient",
        "time": "clock hour oclock",
        "search": "find look google web news",
        "lookup": "find look search",
        "email": "mail send message",
        "stock": "price share ticker shares",
        "price": "cost much",
        "convert": "conversion exchange euros dollars",
        "translate": "translation french german spanish",
        "book": "reserve reservation flight hotel",
        "flight": "fly plane",
        "capital": "country",
        "population": "people inhabitants",
        "file": "read open folder directory",
        "execute": "run code script command",
        "python": "code script",
        "remind": "reminder remember",
        "reminder": "remind remember",
        "database": "query many users customers orders records rows",
        "sql": "database query many users customers orders records rows",
        "query": "look find search orders records rows",
        "transaction": "spend spent paid payment bought purchases",
    }.items()
}
# A short question that leans on the one before: it asks, or names something.
_FOLLOW_UP = re.compile(r"\s*(?i:and|what about|how about|now|same for|also) (?=.*(?:\?|[A-Z0-9])).{1,60}", re.DOTALL)
_USE_IT = re.compile(
    r"\b(?:use|call|invoke|run)\s+(?:the|a|your|this|that|one of the)\s+(?:\w+\s+)?(?:tool|function)s?\b", re.IGNORECASE
)
_OPERATORS = re.compile(r"\d\s*([-+*/x×÷^])\s*\(?-?\d")
_OPERATIONS = {"+": "plus", "-": "minus", "*": "times", "x": "times", "×": "times", "/": "divided", "÷": "divided"}


def choose_tools(request: ReplyRequest) -> list[Tool]:
    """The tools to call now, in the order they were declared; [] to answer in text.

    `auto` calls what the last user message asks for and has not been called since, so agent loops end; "and in London?" asks
    for what was called for the message before. `required` calls the
    best of the allowed ones in any case, one it has not called yet before others.
    """
    choice = request.tool_choice
    allowed = [tool for tool in request.tools if choice.names is None or tool.name in choice.names]
    if choice.mode == "none" or not allowed:
        return []
    if choice.mode == "auto" and request.ignore_eos:
        return []  # the caller wants so many tokens of text
    scores = {tool.name: score(tool, request.last_user_text) for tool in allowed}
    fresh = [tool for tool in allowed if tool.name not in request.called]
    wanted = [tool for tool in fresh if scores[tool.name] >= _ENOUGH]
    if not wanted and fresh and _USE_IT.search(request.last_user_text):
        wanted = [max(fresh, key=lambda tool: scores[tool.name])]
    if not wanted and _FOLLOW_UP.fullmatch(request.last_user_text):
        wanted = [tool for tool in fresh if tool.name in request.called_before]
    if not wanted and choice.mode == "required":
        candidates = fresh or allowed
        wanted = [max(candidates, key=lambda tool: scores[tool.name])]
    if wanted and not request.parallel_tool_calls:
        wanted = [max(wanted, key=lambda tool: scores[tool.name])]
    return wanted[:MOST_CALLS]


def score(tool: Tool, text: str) -> float:
    """How much a text asks for what a tool does."""
    if re.search(rf"\b{re.escape(tool.name)}\b", text):
        return _SPELLED_OUT
    said = _words([text])
    if signs := _OPERATORS.findall(text):
        said |= {_stem(word) for word in ("calculate", "math", *(_OPERATIONS.get(sign, "power") for sign in signs))}
    found = _NAME * len(_meant(_words([tool.name])) & said)
    found += _DESCRIPTION * len(_meant(_words([tool.description])) & said)
    properties = tool.parameters.get("properties") if isinstance(tool.parameters, Mapping) else None
    if isinstance(properties, Mapping) and found:
        found += _PARAMETER * len(_words(properties) & said)
    return found


def _meant(words: set[str]) -> set[str]:
    return words.union(*(_STEMS_SAID_AS.get(word, ()) for word in words))


def _words(texts: Iterable[str]) -> set[str]:
    """The words that carry meaning, without their endings."""
    found = (word.lower() for text in texts for word in _WORD.findall(_CAMEL.sub(" ", text)))
    return {_stem(word) for word in found if word not in _EMPTY and len(word) > 1 and not word[0].isdigit()}


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    return word


_STEMS_SAID_AS = {_stem(key): {_stem(word) for word in words} for key, words in _SAID_AS.items()}
