"""The values in a text, by kind: addresses, paths, dates, numbers, quoted strings, names."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llmirage_server.replies.prompted import without_schemas
from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.vocabulary import CODE, COMMON_VERBS, EMPTY_WORDS, QUOTED, inside, word_set

_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
           "december")  # fmt: skip
_MONTH = rf"({'|'.join(f'{name[:3]}(?:{name[3:]})?' for name in _MONTHS)})\.?"
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_DATE = re.compile(
    rf"\b(?:(\d{{4}}-\d\d-\d\d)(?!\d)|{_MONTH} {_DAY},? (\d{{4}})|{_DAY} (?:of )?{_MONTH},? (\d{{4}}))\b", re.IGNORECASE
)
_TIME = re.compile(r"(?<![\w:.-])(\d{1,2})(?::(\d\d)(?::(\d\d))?)?(?: ?([ap])\.?m\b|(?<=:\d\d)(?![\w:]))", re.IGNORECASE)
_MOMENT = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?(?!\w)")

# Kinds that are looked for in the whole text, the most special first. A value of one kind hides what it consists of.
_PATTERNS: dict[str, re.Pattern[str]] = {
    "url": re.compile(r"\b(?:https?|ftp|wss?|s3|file)://[^\s\"'<>`)\]]*[^\s\"'<>`)\].,;?!:]"),
    "email": re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    "uuid": re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"),
    "ipv4": re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"),
    "zone": re.compile(
        r"\b(?:(?:Africa|America|Antarctica|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc)/[\w+-]+(?:/\w+)?|UTC|GMT)\b"
    ),
    "date-time": _MOMENT,
    "date": _DATE,
    "time": _TIME,
    "path": re.compile(
        r"(?<![\w@/.:\\-])(?:[A-Za-z]:\\[\w\\.-]*\w|(?:~|\.{1,2})?/[\w./~-]*[\w/]|(?:[\w.-]*[A-Za-z][\w.-]*/)+(?:[\w.-]*\w)?|"
        r"[\w-]+(?:\.[\w-]+)*\.[A-Za-z]\w{0,5}(?!\())(?![\w@])"
    ),
}  # fmt: skip
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w|\.\d)")
_CODE_WORD = re.compile(r"#?(?<![\w.])[\w-]*\d[\w-]*(?![\w.]*\w)")
_FORMULA = re.compile(r"(?<![\w.])[-(]*\d[\d\s.,()+*/^%-]*[\d)]")
_OPERATES = re.compile(r"[\d()\[\]+*/%<>=-]")
_MOST_WORDS, _MOST_LONG = 12, 200  # words and characters of an expression
_NAME_WORD = re.compile(r"[^\W\d_][\w’'&-]*")
_WITHIN_NAMES = word_set("de del da do la le of van von")
_STATE = re.compile(r", [A-Z]{2}\b")
_SENTENCE_ENDS = ".!?\n。？！"


@dataclass(slots=True, frozen=True)
class Value:
    """A value and where it stands. `written`: what it is as an argument."""

    start: int
    end: int
    written: str


class TextValues:
    """The values of a text, each found when it is first asked for."""

    def __init__(self, text: str, name_words: frozenset[str] = frozenset()) -> None:
        """name_words: words of the tool, in lower case; at the beginning of a sentence they are no part of a name."""
        self.text = without_schemas(text)
        self._not_first = COMMON_VERBS | name_words
        self._found: dict[str, list[Value]] = {}
        self._used: list[tuple[int, int]] = []
        self._hidden: list[str] = []

    def use(self, value: Value, *, hides: bool = False) -> None:
        """No other argument gets this value. hides: nor does a text that other arguments quote have it."""
        self._used.append((value.start, value.end))
        if hides and value.end - value.start > 3:
            self._hidden.append(self.text[value.start : value.end])

    def without_hidden(self, text: str) -> str:
        for hidden in self._hidden:
            text = text.replace(hidden, " ")
        return text

    def left(self, kind: str) -> list[Value]:
        """Return the unused values of a kind, in order.

        kind: quoted, name, first word, number, code, formula, program (what is marked as code, or an expression of Python),
        or of _PATTERNS.
        """
        if kind not in self._found:
            self._found[kind] = list(self._search(kind))
        used = self._used
        return [one for one in self._found[kind] if not any(one.start < end and start < one.end for start, end in used)]

    def _search(self, kind: str) -> Iterator[Value]:
        if kind == "quoted":
            for match in QUOTED.finditer(self.text):
                yield Value(match.start(), match.end(), inside(match))
        elif kind in ("name", "first word"):
            yield from self._names(self._without(*_PATTERNS, "quoted"), kind == "first word")
        elif kind == "number":
            for match in _NUMBER.finditer(self._without(*_PATTERNS, "quoted")):
                yield Value(match.start(), match.end(), match[0].replace(",", ""))
        elif kind in ("code", "formula"):
            pattern = _CODE_WORD if kind == "code" else _FORMULA
            others = self._without("date", "time", "email", "url", "quoted") if kind == "code" else self.text
            for match in pattern.finditer(others):
                yield Value(match.start(), match.end(), match[0].strip())
        elif kind == "program":
            yield from self._programs()
        else:
            yield from self._special(kind)

    def _programs(self) -> Iterator[Value]:
        """Return the texts marked as code, then expressions of Python: the longest runs of words that are one."""
        marked = [
            Value(match.start(), match.end(), (match[1] or match[2] or "").strip("\n")) for match in CODE.finditer(self.text)
        ]
        yield from marked
        words = [
            match for match in re.finditer(r"\S+", self.text) if len(match[0]) <= _MOST_LONG and _OPERATES.search(match[0])
        ]
        place = 0
        while place < len(words):
            start, run = words[place].start(), 1
            while (
                run < _MOST_WORDS
                and place + run < len(words)
                and self.text[words[place + run - 1].end() : words[place + run].start()].isspace()
            ):
                run += 1
            while run and not _is_expression(self.text[start : words[place + run - 1].end()].rstrip(".,;:?!")):
                run -= 1
            if run and not any(one.start <= start < one.end for one in marked):
                written = self.text[start : words[place + run - 1].end()].rstrip(".,;:?!")
                yield Value(start, start + len(written), written)
            place += run or 1

    def _special(self, kind: str) -> Iterator[Value]:
        """Values outside of quotation marks, then those that fill them."""
        pattern, written = _PATTERNS[kind], _WRITTEN.get(kind, _as_it_is)
        before = list(_PATTERNS)[: list(_PATTERNS).index(kind)]
        outside = self._without("quoted", *[name for name in before if name not in ("date-time", "zone")])
        for match in pattern.finditer(outside):
            yield Value(match.start(), match.end(), written(match))
        for quoted in self.left("quoted"):
            if (whole := pattern.fullmatch(quoted.written)) is not None:
                yield Value(quoted.start, quoted.end, written(whole))

    def _without(self, *kinds: str) -> str:
        """Return the text with blanks where values of these kinds are."""
        characters = list(self.text)
        for kind in kinds:
            for value in self._found.get(kind) or self.left(kind):
                characters[value.start : value.end] = " " * (value.end - value.start)
        return "".join(characters)

    def _names(self, text: str, first: bool) -> Iterator[Value]:
        """Return runs of capitalised words: "New York", "Rio de Janeiro", "San Francisco, CA".

        The first word of a sentence starts one only before another capitalised word, and if it is no common verb and no word
        of the tool's name. Before a colon it is a label ("Current Task: ..."). first: such words alone, where they do not.
        """
        words = [(match.start(), match.end(), match[0]) for match in _NAME_WORD.finditer(text)]
        place = 0
        while place < len(words):
            start, end, word = words[place]
            last = place
            while _is_capitalised(word) and (after := _next_in_name(text, words, last)) is not None:
                last = after
            before = text[:start].rstrip(" \t\"'“(*>-")
            starts_sentence = not before or before[-1] in _SENTENCE_ENDS
            labels = starts_sentence and text.startswith(":", words[last][1])
            if not _is_capitalised(word) or labels or (starts_sentence and word.lower() in self._not_first):
                place = last + 1 if labels else place + 1
                continue
            if first == (starts_sentence and last == place):
                state = _STATE.match(text, words[last][1])
                end = words[last][1] if state is None else state.end()
                yield Value(start, end, text[start:end].removesuffix("'s").removesuffix("’s").rstrip("'’-&"))
            place = last + 1


def _is_expression(text: str) -> bool:
    """Return if it is an expression of Python that does something: an operation or a call."""
    spend()
    try:
        return isinstance(ast.parse(text, mode="eval").body, ast.BinOp | ast.Call | ast.Compare | ast.Subscript)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_capitalised(word: str) -> bool:
    return word[0].isupper() and re.split(r"['’]", word)[0].lower() not in EMPTY_WORDS


def _next_in_name(text: str, words: list[tuple[int, int, str]], place: int) -> int | None:
    """Return the place of the next word of a name that has the word at `place`."""
    for after in (place + 1, place + 2):
        if after >= len(words) or text[words[after - 1][1] : words[after][0]] != " ":
            return None
        if _is_capitalised(words[after][2]):
            return after
        if words[after][2] not in _WITHIN_NAMES:
            return None
    return None


# --- how a value is written as an argument ------------------------------------------------------------------------------


def _as_it_is(match: re.Match[str]) -> str:
    return match[0].rstrip(".") if not match[0].startswith(".") else match[0]


def _iso_date(match: re.Match[str]) -> str:
    if match[1]:
        return match[1]
    month, day, year = (match[2], match[3], match[4]) if match[2] else (match[6], match[5], match[7])
    number = next(place for place, name in enumerate(_MONTHS, 1) if name.startswith(month[:3].lower()))
    return f"{year}-{number:02}-{int(day):02}"


def _iso_moment(match: re.Match[str]) -> str:
    text = match[0].replace(" ", "T")
    text = text if len(text.rstrip("Z")) > 16 else f"{text.rstrip('Z')}:00"
    return text if re.search(r"(?:Z|[+-]\d\d:\d\d)$", text) else f"{text}Z"


def iso_time(text: str) -> str:
    """3pm -> 15:00:00Z, as JSON Schema's format `time` has it."""
    match = _TIME.fullmatch(text)
    if match is None:
        return text
    hour = int(match[1])
    if match[4]:
        hour = hour % 12 + (12 if match[4].lower() == "p" else 0)
    return f"{hour:02}:{match[2] or '00'}:{match[3] or '00'}Z"


_WRITTEN: dict[str, Callable[[re.Match[str]], str]] = {"date": _iso_date, "date-time": _iso_moment}
