"""What a sentence names: places, persons, numbers and what belongs to an operation."""

from __future__ import annotations

import re
from collections.abc import Callable


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_NUMBER_WORDS = {
    word: str(number)
    for number, word in enumerate("two three four five six seven eight nine ten eleven twelve".split(), start=2)  # noqa: SIM905
}
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(_NUMBER_WORDS)})\b", re.IGNORECASE)
_CAPITALISED = r"[A-Z][\w’-]+(?: [A-Z][\w’-]+)*"
_LOWER_PLACE = re.compile(r"\b(?:in|at|near|for)\s+(?!the\b|my\b|an?\b|this\b|that\b|it\b|me\b|today\b)([a-z]{3,})\b")
_PLACE = re.compile(r"\b(?:in|at|from|to|for|near|of)\s+((?:[A-Z][\w-]+)(?:[ ,]+(?:[A-Z][\w-]+))*)")
_ONE_MORE = re.compile(r"(?:\s*,\s*(?:and\s+)?|\s+and\s+(?:in\s+)?)([A-Z][\w-]+(?: [A-Z][\w-]+)*)")
_STATE = re.compile(r"[A-Z]{2,3}")
_PROPER = re.compile(r"(?<=[a-z,] )([A-Z][\w-]+(?: [A-Z][\w-]+)*)")
_OPERAND = r"(-?\d+(?:\.\d+)?)"
_OPERATIONS: dict[frozenset[str], re.Pattern[str]] = {
    word_set(names): re.compile(
        rf"{_OPERAND}\s*(?:{signs})\s*{_OPERAND}|(?:{verbs})\s+{_OPERAND}\s+(?:and|by|with|to|from)\s+{_OPERAND}",
        re.IGNORECASE,
    )
    for names, signs, verbs in (
        ("add plus sum addition", r"\+|plus", "add|sum(?: of)?"),
        ("subtract minus subtraction difference", r"-|minus", "subtract|difference between"),
        ("multiply times product multiplication", r"[*x×]|times|multiplied by", "multiply|product of"),
        ("divide division quotient", r"[/÷]|divided by|over", "divide"),
    )
}
_SUBJECT = re.compile(
    r"(?:^|[.!?:]\s+)([A-Z][\w-]+(?: [A-Z][\w-]+)*)(?=,? (?:is|was|has|aged|lives|works|and [A-Z]|\d)|, )", re.MULTILINE
)
_OPENERS = word_set(
    "Add Ask Book Call Create Describe Do Does Email Extract Find Generate Get Give Hello Here Hey Hi How Is It Look "
    "Make Message My Parse Please Read Remind Return Schedule Search Send Show Tell That The There This User Was What When "
    "Where Which Who Write"
)
_CALENDAR = word_set(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July August September "
    "October November December I"
)
_split_words: Callable[[str], list[str]] = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+").findall


def words_of(name: str) -> set[str]:
    """first_name, firstName, first-name -> {first, name}."""
    return {word.lower() for word in _split_words(name)}


def numbers(said: str) -> list[str]:
    """The numbers in a text, as written; in words only where there are no figures."""
    return _NUMBER.findall(said) or [_NUMBER_WORDS[word.lower()] for word in _NUMBER_WORD.findall(said)]


def ends_of_route(said: str) -> tuple[str | None, str | None]:
    """Where a journey starts and where it goes: "from New York to London"."""
    start, end = (re.search(rf"\b{word}\s+({_CAPITALISED})", said) for word in ("from", "to"))
    return start and start.group(1), end and end.group(1)


def lower_places(said: str) -> list[str]:
    """Words that may be places although they are in lower case."""
    found: list[str] = _LOWER_PLACE.findall(said)
    return found


def proper_names(said: str) -> list[str]:
    """Capitalised words that do not begin a sentence."""
    found: list[str] = _PROPER.findall(said)
    return found


def places(said: str) -> list[str]:
    """The places that a text names: "in Paris, London and New York" -> three."""
    found: list[str] = []
    for match in _PLACE.finditer(said):
        for place in re.split(r",\s*", match.group(1).strip(" ,.?!")):
            if found and _STATE.fullmatch(place):  # San Francisco, CA
                found[-1] += f", {place}"
            else:
                found.append(place)
        at = match.end()
        while more := _ONE_MORE.match(said, at):
            found.append(more.group(1))
            at = more.end()
    return list(dict.fromkeys(found))


def operands(tool: str, said: str) -> list[str]:
    """The numbers beside the operation a tool is named after: multiply, "what is 3 * 12 and 1 + 2?" -> 3, 12."""
    for word in words_of(tool):
        for known, expression in _OPERATIONS.items():
            if word in known and (match := expression.search(said)) is not None:
                return [number for number in match.groups() if number is not None]
    return []


def people(said: str) -> list[str]:
    """Names of persons, or of what may be one: "John Doe is 30", "look up the user John", "Alice and Bob"."""
    found = []
    for match in _SUBJECT.finditer(said):
        first, _, rest = match.group(1).partition(" ")
        if name := rest if first in _OPENERS else match.group(1):
            found.append(name)
    for match in _PROPER.finditer(said):
        name = match.group(1)
        if name.isupper() or name.split()[0] in _CALENDAR or any(name in place for place in places(said)):
            continue
        found.append(name)
    return list(dict.fromkeys(found))
