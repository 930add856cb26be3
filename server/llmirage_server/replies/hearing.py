"""What a sentence names: places, persons, numbers, dates and what belongs to an operation."""

from __future__ import annotations

import re
from collections.abc import Callable

from llmirage_server.replies.commands import FILE
from llmirage_server.replies.lexicon import word_set

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?=(?:st|nd|rd|th)?(?!\w))")
_NUMBER_WORDS = {
    word: str(number)
    for number, word in enumerate("two three four five six seven eight nine ten eleven twelve".split(), start=2)  # noqa: SIM905
}
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(_NUMBER_WORDS)})\b", re.IGNORECASE)
_CAPITALISED = r"[A-Z][\w’-]+(?: [A-Z][\w’-]+)*"
_NOT_PLACES = (
    r"(?:the|my|an?|this|that|it|me|us|you|your|our|today|tomorrow|tonight|now|celsius|fahrenheit|kelvin|metric|detail|"
    r"general|next|last|"
    r"all|some|each|every|which|what|how|about|do|be|of|get|see|know|send|and|or|degrees|one|english|french|german|"
    r"spanish|next week|euros|usd|"
    r"dollars|python|bash|json|free|sure|touch|case|order|here|there|monday|tuesday|wednesday|thursday|friday|saturday|"
    r"sunday)"
)
_SECOND_WORDS = "york|francisco|angeles|delhi|aires|city|kong|vegas|diego|lumpur|janeiro|de janeiro"
_LOWER_WORDS = rf"(?!{_NOT_PLACES}\b)[a-zà-ÿ]{{3,}}(?: (?:{_SECOND_WORDS}))?"
_LOWER_PLACE = re.compile(
    rf"\b(?:in|at|near|for|to|from)\s+({_LOWER_WORDS}(?:(?:\s*,\s*(?:and\s+)?|\s+and\s+)(?:in\s+)?{_LOWER_WORDS})*)"
)
_PLACE = re.compile(
    r"\b(?:[Ii]n|[Aa]t|[Ff]rom|[Tt]o|[Ff]or|[Nn]ear|[Oo]f|[Vv]isit|[Bb]etween|"
    r"[Aa]round)\s+((?:[A-Z][\w-]+)(?:[ ,]+(?:[A-Z][\w-]+))*)"
)
_ONE_MORE = re.compile(r"(?:\s*,\s*(?:and\s+)?|\s+and\s+(?:in\s+)?|\s+or\s+)([A-Z][\w-]+(?: [A-Z][\w-]+)*)")
_STATE = re.compile(r"[A-Z]{2,3}")
_PROPER = re.compile(r"(?<=[a-zà-ÿ,] )([A-Z][\w-]+(?: [A-Z][\w-]+)*)")
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
_UNITS = word_set("Celsius Fahrenheit Kelvin Euros Dollars EUR USD GBP JPY AM PM")
_MONTHS = {name.lower()[:3]: number for number, name in enumerate(
    "January February March April May June July August September October November December".split(), 1)}  # fmt: skip  # noqa: SIM905
_MONTH = r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_ISO_DATE = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_MONTH_FIRST = re.compile(rf"\b{_MONTH}\.? (\d{{1,2}})(?:st|nd|rd|th)?,? (\d{{4}})\b", re.IGNORECASE)
_DAY_FIRST = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?{_MONTH}\.?,? (\d{{4}})\b", re.IGNORECASE)
_DAY_WORDS = re.compile(
    rf"\b(?:today|tonight|tomorrow|yesterday|(?:on |next |this |coming )?(?:mon|tues|wednes|thurs|fri|satur|sun)day|next "
    rf"(?:week|month)|this weekend"
    rf"|{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?|\d{{1,2}}(?:st|nd|rd|th)? (?:of )?{_MONTH})\b",
    re.IGNORECASE,
)  # fmt: skip
_CLOCK = re.compile(r"\b(\d{1,2})(?::(\d\d))?\s*(am|pm)\b|\b([01]?\d|2[0-3]):([0-5]\d)\b|\b(noon|midnight)\b", re.IGNORECASE)
_QUOTED = re.compile(r"[\"“]([^\"”]+)[\"”]|(?<!\w)'([^']{2,})'(?!\w)|`([^`\n]+)`")
_COORDINATES = {
    "Paris": (48.86, 2.35), "London": (51.51, -0.13), "Berlin": (52.52, 13.41), "Tokyo": (35.68, 139.69),
    "Madrid": (40.42, -3.7), "New York": (40.71, -74.01), "San Francisco": (37.77, -122.42), "Rome": (41.9, 12.5),
    "Sydney": (-33.87, 151.21),
    "Bogotá": (4.71, -74.07), "Boston": (42.36, -71.06), "Oslo": (59.91, 10.75), "Chicago": (41.88, -87.63),
}  # fmt: skip
_TICKERS = {
    "Apple": "AAPL", "Tesla": "TSLA", "Microsoft": "MSFT", "Google": "GOOGL", "Alphabet": "GOOGL", "Amazon": "AMZN",
    "Nvidia": "NVDA", "NVIDIA": "NVDA", "Meta": "META", "Netflix": "NFLX", "Intel": "INTC",
}  # fmt: skip
_TICKER = re.compile(r"\$?\b(?!NVIDIA\b)([A-Z]{2,5})\b")
_COMPANY = re.compile(rf"\b(?:{'|'.join(_TICKERS)})\b")
_split_words: Callable[[str], list[str]] = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+").findall


def words_of(name: str) -> set[str]:
    """first_name, firstName, first-name -> {first, name}."""
    return {word.lower() for word in _split_words(name)}


def numbers(said: str) -> list[str]:
    """The numbers in a text, as written; in words only where there are no figures."""
    return _NUMBER.findall(said) or [_NUMBER_WORDS[word.lower()] for word in _NUMBER_WORD.findall(said)]


def number_beside(said: str, words: set[str]) -> str | None:
    """The number that stands beside one of the words: "3 days", "top 5 results", "a limit of 10", "order 123"."""
    for word in words:
        stem = re.escape(word.rstrip("s"))
        if found := re.search(rf"(?<![\w.])(-?\d+(?:\.\d+)?)[\s-]+{stem}s?\b", said, re.IGNORECASE):
            return found[1]
        if found := re.search(
            rf"\b{stem}s?\s*(?:number|no\.?|of|to|is|=|:|#|at|id)?\s*#?(-?\d+(?:\.\d+)?)\b", said, re.IGNORECASE
        ):
            return found[1]
    return None


def quoted(said: str) -> list[str]:
    return [next(filter(None, groups)) for groups in _QUOTED.findall(said)]


def ends_of_route(said: str) -> tuple[str | None, str | None]:
    """Where a journey starts and where it goes: "from New York to London"."""
    start, end = (re.search(rf"\b{word}\s+({_CAPITALISED})", said) for word in ("from", "to"))
    return start and start.group(1), end and end.group(1)


def at(said: str) -> tuple[float, float] | None:
    """Latitude and longitude of the first place named, where it is one of a few that everybody knows."""
    return next((_COORDINATES[place] for place in [*places(said), *proper_names(said)] if place in _COORDINATES), None)


def tickers(said: str) -> list[str]:
    """The symbols of the shares that a text names."""
    found = {match.start(): match[1] for match in _TICKER.finditer(said)}
    found |= {match.start(): _TICKERS[match[0]] for match in _COMPANY.finditer(said)}
    return [found[place] for place in sorted(found)]


def lower_places(said: str) -> list[str]:
    """Words that may be places although they are in lower case."""
    return [
        place.strip()
        for found in _LOWER_PLACE.findall(said)
        for place in re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+(?:in\s+)?", found)
        if place.strip()
    ]


def proper_names(said: str) -> list[str]:
    """Capitalised words that do not begin a sentence."""
    return [name for name in _PROPER.findall(said) if name not in _UNITS and name.split()[0] not in _CALENDAR]


def places(said: str) -> list[str]:
    """The places that a text names: "in Paris, London and New York" -> three."""
    found: list[str] = []
    for match in _PLACE.finditer(said):
        for place in re.split(r",\s*", match.group(1).strip(" ,.?!")):
            if found and _STATE.fullmatch(place) and place not in _UNITS:  # San Francisco, CA
                found[-1] += f", {place}"
            else:
                found.append(place)
        at = match.end()
        while more := _ONE_MORE.match(said, at):
            found.append(more.group(1))
            at = more.end()
    return [place for place in dict.fromkeys(found) if place not in _UNITS and place.split()[0] not in _CALENDAR]


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


def date(said: str) -> str | None:
    """A day in ISO's form, where one is named in full."""
    if (match := _ISO_DATE.search(said)) is not None:
        return match[0]
    if (match := _MONTH_FIRST.search(said)) is not None:
        return f"{match[3]}-{_MONTHS[match[1].lower()]:02}-{int(match[2]):02}"
    if (match := _DAY_FIRST.search(said)) is not None:
        return f"{match[3]}-{_MONTHS[match[2].lower()]:02}-{int(match[1]):02}"
    return None


def day_words(said: str) -> str | None:
    """A day as it was said: "tomorrow", "next Friday"."""
    return None if (match := _DAY_WORDS.search(said)) is None else re.sub(r"^on ", "", match[0])


def clock(said: str) -> str | None:
    """A time of day as HH:MM."""
    match = _CLOCK.search(said)
    if match is None:
        return None
    if match[6]:
        return "12:00" if match[6].lower() == "noon" else "00:00"
    hour, minute = int(match[1] or match[4]), match[2] or match[5] or "00"
    if match[3]:
        hour = hour % 12 + 12 * (match[3].lower() == "pm")
    return f"{hour:02}:{minute}"


def listed(said: str) -> list[str]:
    """The things of a list: "milk, eggs and bread" -> three."""
    match = re.search(
        r"(?::\s*|\b(?:add|buy|items?|tags?|with|for|of)\s+)((?:[\w' -]+?,\s*)+(?:and\s+)?[\w' -]+|[\w'-]+ and [\w'-]+)",
        said,
    )
    if match is None:
        return []
    items = [item.strip() for item in re.split(r",\s*(?:and\s+)?|\s+and\s+", match[1])]
    ends = r"\s+(?:to|on|in|into)\s+(?:my|the|our|a)\b.*$"
    return [item for item in (re.sub(ends, "", item) for item in items) if item]


def particulars(said: str) -> set[str]:
    """What a sentence names besides common words: names, numbers, files and what stands in quotes."""
    found = {*_PROPER.findall(said), *places(said), *numbers(said), *quoted(said), *lower_places(said), *FILE.findall(said)}
    return {str(part).lower() for part in found}
