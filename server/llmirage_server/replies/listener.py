"""What a text has to say of one property after the other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llmirage_server.replies import hearing, phrases
from llmirage_server.replies.asked import VERBS
from llmirage_server.replies.commands import FILE, code_of, command_of, sql_of
from llmirage_server.replies.hearing import words_of
from llmirage_server.replies.lexicon import EMPTY, meaning, split_words, word_set
from llmirage_server.replies.structured import strings
from llmirage_server.replies.structured.schema import types_of
from llmirage_server.replies.sums import NAMES as OPERATIONS
from llmirage_server.replies.sums import Number

PLACE_NAMES = word_set("city location place town country region address destination origin departure arrival area where")
_PERSON_NAMES = word_set(
    "name fullname person user username player author customer recipient employee patient attendee to who assignee"
)
_TEXT_NAMES = word_set(
    "query question prompt text message input content request task topic search keyword keywords q body term phrase "
    "subject title summary description reason objective instruction instructions note what thing item"
)
_SEARCH_NAMES = word_set("query question q search keyword keywords topic term phrase pattern")
_STARTS = word_set("origin departure source start from")
_ENDS = word_set("destination arrival target end to")
_ADDRESSEES = word_set("to cc recipient recipients addressee")
_GROUPS = word_set("participants attendees people persons guests members invitees recipients")
_FILE_NAMES = word_set("path file filename filepath directory dir folder")
_FORMULA_NAMES = word_set("expression formula equation calculation math expr")
_COMMAND_NAMES = word_set("command cmd commands")
_CODE_NAMES = word_set("code program script source python")
_SQL_NAMES = word_set("sql query statement")
_DATE_NAMES = word_set("date day when deadline due start departure arrival checkin checkout time datetime")
_TIME_NAMES = word_set("time hour start when at")
_WHEN = word_set("date day deadline due checkin checkout datetime")
_LANGUAGE_NAMES = word_set("language lang locale")
_TITLES = word_set("subject title summary topic headline label")
_BODIES = word_set("body content text message note description")
_LIMITS = word_set(
    "limit max maximum top k page offset timeout num count size results ms seconds per min minimum temperature"
)
_OLD, _NEW = word_set("old from before search find original"), word_set("new to after replace replacement with")
TICKER_NAMES = word_set("symbol symbols ticker tickers")
_SUBSTITUTED = word_set("string str text old new replacement find replace")
_ARRAY_OF_PLACES = frozenset(name + "s" for name in PLACE_NAMES) | {"cities", "countries"}


@dataclass(slots=True, frozen=True)
class Hints:
    """What is known of a call besides the words that ask for it.

    more: other words of the conversation. numbers, formula and operation: of arithmetic. result: what the call before gave,
    where this one passes it on.
    """

    more: str = ""
    numbers: tuple[Number, ...] = ()
    formula: str = ""
    operation: str = ""
    result: str = ""


class Listener:
    """Takes what is said, piece by piece."""

    def __init__(self, said: str, turn: int, tool: str, hints: Hints, quoting: bool = True) -> None:
        self._said = said
        self._turn = turn
        self._tool = set(split_words(tool))
        self._hints = hints
        self._quoting = quoting
        self._numbers = [f"{number:.15g}" for number in hints.numbers] or hearing.numbers(phrases.DATED.sub(" ", said))
        self._quoted = hearing.quoted(said)
        self._names: set[str] = set()

    def meet(self, properties: Iterable[str]) -> None:
        """The names of all properties there are."""
        self._names = set().union(*(words_of(name) for name in properties)) if properties else set()

    def value(self, name: str, schema: Mapping[str, Any], required: bool) -> Any:
        """A value for this property if the text has one, else None."""
        found = self._value(name, schema, required)
        if found is not None or not self._hints.more or self._hints.more == self._said or not required:
            return found
        elsewhere = Listener(self._hints.more, self._turn, "", Hints(numbers=(0,)), quoting=False)
        elsewhere._numbers = []
        elsewhere._names = self._names
        found = elsewhere._value(name, schema, required)
        if found is None and self._is_plain(name, schema):
            return next(iter(reversed(hearing.proper_names(self._hints.more))), None)
        return found

    @staticmethod
    def _is_plain(name: str, schema: Mapping[str, Any]) -> bool:
        """Whether it is a text of which nothing is known."""
        return (
            types_of(schema) == ["string"] and not schema.keys() & {"enum", "const", "format"} and not strings.is_known(name)
        )

    def _value(self, name: str, schema: Mapping[str, Any], required: bool) -> Any:
        if "enum" in schema:
            return self._option(schema["enum"])
        if "const" in schema:
            return None
        options = [option for key in ("anyOf", "oneOf") for option in schema.get(key, ())]
        for option in options:
            if isinstance(option, Mapping) and (found := self._value(name, option, required)) is not None:
                return found
        types = types_of(schema)
        if "integer" in types or "number" in types:
            return self._number(name, "number" in types, required)
        if "boolean" in types:
            return self._flag(name)
        if "string" in types or (not types and not options):
            return self._string(name, schema, required)
        return self._array(name, schema) if "array" in types else None

    def _option(self, options: list[Any]) -> Any:
        if self._hints.operation:
            names = OPERATIONS[self._hints.operation]
            return next((option for option in options if str(option).lower() in names), None)
        lower = self._said.lower()
        written = [option for option in options if isinstance(option, str)]
        for spelled in (
            lambda option: option,
            lambda option: re.sub(r"[_-]", " ", option),
            lambda option: option.rstrip("es"),
        ):
            for option in sorted(written, key=len, reverse=True):
                if len(option) > 1 and _mentions(lower, spelled(option)):
                    return option
        for number in self._numbers:
            for option in options:
                if isinstance(option, int) and not isinstance(option, bool) and str(option) == number:
                    return option
        units = {
            "c": r"celsius|°c|centigrade",
            "f": r"fahrenheit|°f",
            "metric": r"celsius|kilomet",
            "imperial": r"fahrenheit|miles",
        }
        return next(
            (option for option in written if option.lower() in units and re.search(units[option.lower()], lower)), None
        )

    def _number(self, name: str, fraction: bool, required: bool) -> Number | None:
        words = words_of(name)
        if words & {"latitude", "lat", "longitude", "lon", "lng"} and (place := hearing.at(self._said)) is not None:
            return place[0 if words & {"latitude", "lat"} else 1]
        beside = None if self._hints.numbers else hearing.number_beside(self._said, words - EMPTY - {"id"} or words)
        if beside is None and not self._hints.numbers and words & _LIMITS and not required:
            found = re.search(
                r"\b(?:top|first|last|only|at most|up to|limit(?: of)?|max(?:imum)?(?: of)?)\s+(\d+)\b",
                self._said,
                re.IGNORECASE,
            )
            if found is None:
                return None
            beside = found[1]
        candidates = [beside] if beside is not None else self._numbers
        for written in list(candidates):
            value = float(written)
            if fraction or value.is_integer():
                if written in self._numbers:
                    self._numbers.remove(written)
                return int(value) if value.is_integer() else value
        return None

    def _flag(self, name: str) -> bool | None:
        words = meaning(words_of(name))
        said = meaning(split_words(self._said))
        if not words or not words <= said:
            return None
        word = re.escape(max(words, key=len))
        return (
            re.search(rf"\b(?:not|no|non|without|never|don't|disable)\W+(?:\w+\W+)?{word}", self._said, re.IGNORECASE)
            is None
        )

    def _string(self, name: str, schema: Mapping[str, Any], required: bool) -> str | None:
        words = words_of(re.sub(r"check[_-]?(?=in|out)", "check", name, flags=re.IGNORECASE))
        form = schema.get("format")
        shape = phrases.SHAPES.get(form or "") or next(
            (phrases.SHAPES[word] for word in sorted(words) if word in phrases.SHAPES), None
        )
        if shape is None and words & _ADDRESSEES and (match := phrases.SHAPES["email"].search(self._said)):
            return match[0]
        if shape is not None:
            if (match := shape.search(self._said)) is not None:
                return match[0]
            if words & {"url", "uri", "link", "website"} and (match := phrases.DOMAIN.search(self._said)):
                return f"https://{match[0]}"
            return None
        if form in ("date", "date-time", "time"):
            return self._moment(form)
        if form is not None:
            return None
        if self._hints.operation and words & {"operation", "op", "operator"}:
            return self._hints.operation
        if self._hints.formula and words & (_FORMULA_NAMES | _TEXT_NAMES | {"x"}):
            return self._hints.formula
        if self._hints.formula and words & _CODE_NAMES:
            return f"print({self._hints.formula})"
        found = self._special(words)
        if found is None and (words & _WHEN and not words & _TEXT_NAMES):
            return None
        return found or self._named(name, words, required)

    def _moment(self, form: str) -> str | None:
        day, time = hearing.date(self._said), hearing.clock(self._said)
        if form == "time":
            return None if time is None else f"{time}:00Z"
        if day is None or form == "date":
            return day
        return f"{day}T{time or '09:00'}:00Z"

    def _special(self, words: set[str]) -> str | None:
        """What only certain properties hold: commands, code, files, dates, languages, currencies, identifiers."""
        said = self._said
        if words & _COMMAND_NAMES:
            return command_of(said)
        if words & _SQL_NAMES and (words | self._tool) & {"sql", "database", "db", "postgres", "mysql", "sqlite"}:
            return sql_of(said)
        if words & _CODE_NAMES and (code := code_of(said)):
            return code
        if words & _CODE_NAMES and self._tool & {"python", "code", "interpreter"}:
            return f"# {' '.join(said.split())}\nprint('done')"
        if words & _FILE_NAMES and (match := FILE.search(said)):
            return match[0]
        if words & _LANGUAGE_NAMES or (words & {"target", "source", "to", "from"} and "translate" in self._tool):
            found = phrases.LANGUAGES.findall(said)
            return found[-1] if found and not words & {"source", "from"} else found[0] if len(found) > 1 else None
        if words & {"currency", "currencies", "base"} or (words & {"from", "to"} and self._tool & {"currency", "exchange"}):
            return self._currency(words)
        if words & TICKER_NAMES and (symbols := hearing.tickers(said)):
            return symbols[self._turn % len(symbols)]
        if words & {"channel"} and (match := phrases.CHANNEL.search(said)):
            return match[0]
        if words & {"repo", "repository"} and (match := phrases.REPOSITORY.search(said)):
            return match[0]
        if words & {"id", "identifier", "number", "code", "sku", "key"} and (match := phrases.IDENTIFIER.search(said)):
            return match[1]
        if words & {"id", "identifier", "number"} and self._numbers:
            return self._numbers[0]
        if words & _TIME_NAMES - {"start", "when"} and not words & {"zone", "timezone"} and (time := hearing.clock(said)):
            day = hearing.date(said)
            return f"{day}T{time}" if day and not self._names & {"date", "day"} else time
        if words & _DATE_NAMES:
            day, time = hearing.date(said), hearing.clock(said)
            if day and time and not self._names & {"time"}:
                return f"{day}T{time}"
            spoken = day or hearing.day_words(said)
            if spoken and time and not day and not self._names & {"time"} and words & {"start", "when", "datetime"}:
                return f"{spoken} {time}"
            return spoken
        return None

    def _currency(self, words: set[str]) -> str | None:
        found = []
        for match in phrases.CURRENCY.finditer(self._said):
            word = match[0]
            found.append(
                phrases.SIGN_CURRENCIES.get(word)
                or (word if word.isupper() else phrases.CURRENCIES[word.rstrip("s").lower()])
            )
        if not found:
            return None
        return found[-1] if words & {"to", "target", "quote"} else found[0]

    def _named(self, name: str, words: set[str], required: bool) -> str | None:
        said = self._said
        if (
            words & _PERSON_NAMES
            and not words & {"file", "table", "tool", "function", "event"}
            and (named := hearing.people(said))
        ):
            return named[self._turn % len(named)]
        if words & PLACE_NAMES:
            start, end = hearing.ends_of_route(said)
            if words & _STARTS and start:
                return start
            if words & _ENDS and end:
                return end
            if words & (_STARTS | _ENDS) and len(named := self._ends(start, end)) > 1:
                return named[0] if words & _STARTS else named[-1]
            found = hearing.places(said) or hearing.proper_names(said) or hearing.lower_places(said) or self._rest()
            return found[self._turn % len(found)] if found else None
        if words & _SUBSTITUTED and words & (_OLD | _NEW) and (replaced := phrases.REPLACED.search(said)) is not None:
            return replaced[2 if words & _NEW - {"to"} else 1].strip("\"'`“” ")
        if words & _FORMULA_NAMES and (match := phrases.FORMULA.search(said)):
            return match[0].strip()
        if self._hints.result and words & _BODIES:
            return self._hints.result
        if not self._quoting:
            return None
        return self._worded(name, words, required)

    def _ends(self, start: str | None, end: str | None) -> list[str]:
        """The places of a journey in order, of which only one may be marked as its start or its end."""
        known = [place for place in (start, end) if place]
        names = dict.fromkeys([*hearing.places(self._said), *phrases.CITY.findall(self._said)])
        others = [place for place in names if place not in known]
        return [*([start] if start else []), *others, *([end] if end else [])]

    def _worded(self, name: str, words: set[str], required: bool) -> str | None:
        """The user's own words."""
        said = self._said
        if self._quoted and not words & PLACE_NAMES and (required or words & _TEXT_NAMES):
            return self._quoted.pop(0)
        if words & _SEARCH_NAMES:
            match = phrases.SEARCHED.match(said)
            return (match[1] if match else said).strip(" .?!" if match else " ").strip("\"'“”")
        if words & _TEXT_NAMES and (match := phrases.TRANSLATED.search(said)) and "translate" in self._tool:
            return (match[1] or match[2]).strip()
        if words & _BODIES and (match := phrases.BODY.search(said)):
            return match[1].strip(" .")
        if words & (_TITLES | _BODIES | {"task", "item", "name", "event"}):
            for pattern in (phrases.TITLE, phrases.REMINDED) + (
                (phrases.TASK,) if self._tool & {"todo", "task", "item", "list", "note", "issue", "ticket"} else ()
            ):
                if (match := pattern.search(said)) is not None and match[1].strip():
                    return match[1].strip(" .")
            if self._tool & {"event", "meeting", "calendar", "appointment"} and (match := phrases.MEETING.search(said)):
                return re.sub(r"^(?:an?|the|my|schedule|book|create|add) ", "", match[1].strip(), flags=re.IGNORECASE)
        if required and words & (_TEXT_NAMES | _FORMULA_NAMES):
            return said.strip()
        if required and not strings.is_known(name):
            words_said = split_words(said)
            if words_said and words_said[0] in VERBS and (match := phrases.OBJECT.match(said)) is not None:
                return match[1]
            return next(iter(reversed(hearing.proper_names(said))), None)
        return None

    def _rest(self) -> list[str]:
        """The few words that are left when those that name the tool are taken away: "weather tokyo" -> tokyo."""
        left = [
            word for word in re.findall(r"[^\W\d_]+", self._said) if word.lower() not in phrases.DROPPED | EMPTY | self._tool
        ]
        return [" ".join(left)] if 0 < len(left) <= 2 and len(self._said.split()) <= 5 else []

    def _array(self, name: str, schema: Mapping[str, Any]) -> list[Any] | None:
        items = schema.get("items")
        if not isinstance(items, Mapping):
            return None
        kinds, words = types_of(items), words_of(name)
        if "integer" in kinds or "number" in kinds:
            taken = list(iter(lambda: self._number("", "number" in kinds, True), None))
            return taken or None
        if "string" not in kinds:
            return None
        if "enum" in items:
            lower = self._said.lower()
            return [option for option in items["enum"] if isinstance(option, str) and _mentions(lower, option)] or None
        if words & (_ADDRESSEES | _GROUPS) and (found := phrases.SHAPES["email"].findall(self._said)):
            return list(found)
        if words & _ARRAY_OF_PLACES:
            return hearing.places(self._said) or None
        if words & _GROUPS:
            return hearing.people(self._said) or None
        if words & {"urls", "links"}:
            return phrases.SHAPES["url"].findall(self._said) or None
        if words & {"paths", "files"}:
            return FILE.findall(self._said) or None
        if words & {"queries", "keywords"}:
            phrase = self._worded("query", {"query"}, True)
            return [phrase] if phrase else None
        if words & _COMMAND_NAMES and (command := command_of(self._said)):
            return command.split()
        return (hearing.listed(self._said) or None) if self._quoting else None


def _mentions(lower_text: str, option: str) -> bool:
    return bool(option) and re.search(rf"(?<!\w){re.escape(option.lower())}s?(?!\w)", lower_text) is not None
