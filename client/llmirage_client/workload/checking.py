"""Checks of single JSON values. Each one returns the typed value, or None after it has noted what is wrong.

The wording is that of pydantic's messages, which users of the dag_jsonl format know from its documentation, and so is
the leniency where a file is plainly meant: 128.0, "128" and "128.0" are integers, "true" is a boolean. Booleans are never
numbers.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from llmirage_client.workload.session import NOBODY, Problem, Tenant

Value = TypeVar("Value")

_TRUE = {"true", "t", "yes", "y", "on", "1"}
_FRACTION = re.compile(r"\.\d+")  # of seconds, of any number of digits
_WHOLE = re.compile(r"\.0*$")  # of a number that a table writes as 128.0
_FALSE = {"false", "f", "no", "n", "off", "0"}

AT_LEAST_ONE_ITEM = "List should have at least 1 item after validation, not 0"
MOST_TOKENS = 10_000_000  # of one prompt or reply; more is a mistake of the file, and no endpoint could take it
MS_PER_S = 1e3
FIELD_REQUIRED = "Field required"
ABSENT = object()  # what `required` returns for a missing key; checks let it pass, as the problem is noted already


TENANT_KEYS = ("tenant", "service_class")


class Checker:
    """Reads the values of one line and collects their problems; `field` is the dotted place, as in turns.0.messages."""

    def __init__(self, line: int | None, file: str | None = None) -> None:
        self.line = line
        self.file = file
        self.problems: list[Problem] = []

    def fail(self, field: str | None, message: str) -> None:
        self.problems.append(Problem(message, self.line, field, self.file))

    def rule(self, message: str, field: str | None = None) -> None:
        """Note a broken rule between several values, marked as the documentation words it."""
        self.fail(field, f"Value error, {message}")

    def required(self, values: Mapping[str, Any], key: str, prefix: str = "") -> Any:
        """Return values[key], or ABSENT after it has noted that the key is missing."""
        if key not in values:
            self.fail(prefix + key, FIELD_REQUIRED)
        return values.get(key, ABSENT)

    def tenant(self, row: Mapping[str, Any]) -> Tenant:
        """Return the tenant of a row by its TENANT_KEYS."""
        name, service_class = (self.given(row, key, self.text) or "" for key in TENANT_KEYS)
        return Tenant(name, service_class) if name or service_class else NOBODY

    def given(
        self, values: Mapping[str, Any], key: str, read: Callable[[object, str], Value | None], prefix: str = ""
    ) -> Value | None:
        """Return values[key] as read by `read`; None where the key is missing or null."""
        value = values.get(key)
        return None if value is None else read(value, prefix + key)

    def need(
        self, values: Mapping[str, Any], key: str, read: Callable[[object, str], Value | None], prefix: str = ""
    ) -> Value | None:
        """Return values[key] as read by `read`; a missing key is a problem."""
        return read(self.required(values, key, prefix), prefix + key)

    def ms_as_s(self, values: Mapping[str, Any], key: str, prefix: str = "") -> float | None:
        """Return seconds of a number of milliseconds; None where the key is missing or null."""
        number_ms = self.given(values, key, self.number, prefix)
        return None if number_ms is None else number_ms / MS_PER_S

    def name(self, value: object, field: str) -> str | None:
        """Return a text that is not empty."""
        return self.text(value, field, may_be_empty=False)

    def tokens(self, value: object, field: str) -> int | None:
        """Return the length of a prompt, or of a reply that has one."""
        return self.integer(value, field, minimum=1, maximum=MOST_TOKENS)

    def tokens_from_0(self, value: object, field: str) -> int | None:
        """Return the length of what may be empty."""
        return self.integer(value, field, minimum=0, maximum=MOST_TOKENS)

    def text(self, value: object, field: str, *, may_be_empty: bool = True) -> str | None:
        if value is ABSENT:
            return None
        if not isinstance(value, str):
            self.fail(field, "Input should be a valid string")
        elif not value and not may_be_empty:
            self.fail(field, "String should have at least 1 character")
        else:
            return value
        return None

    def integer(
        self, value: object, field: str, *, minimum: int | None = None, maximum: int | None = None, from_text: bool = True
    ) -> int | None:
        """Return an int in [minimum, maximum]; from_text: a string of digits will do too."""
        number: int
        if value is ABSENT:
            return None
        if type(value) is int:
            number = value
        elif isinstance(value, str) and from_text:
            try:
                number = int(value if value.isdecimal() else _WHOLE.sub("", value))
            except ValueError:
                self.fail(field, "Input should be a valid integer, unable to parse string as an integer")
                return None
        elif isinstance(value, bool):
            self.fail(field, f"Input should be a valid integer, not a boolean (got {value})")
            return None
        elif not isinstance(value, int | float):
            self.fail(field, "Input should be a valid integer")
            return None
        elif isinstance(value, float) and not value.is_integer():
            self.fail(field, "Input should be a valid integer, got a number with a fractional part")
            return None
        else:
            number = int(value)
        if minimum is not None and number < minimum:
            self.fail(field, f"Input should be greater than or equal to {minimum}")
            return None
        if maximum is not None and number > maximum:
            self.fail(field, f"Input should be less than or equal to {maximum}")
            return None
        return number

    def number(
        self, value: object, field: str, *, minimum: float = 0.0, maximum: float = math.inf, above_minimum: bool = False
    ) -> float | None:
        """Return a finite float in [minimum, maximum], or in (minimum, maximum] with above_minimum."""
        if type(value) is float and minimum < value <= maximum and value < math.inf:
            return value
        if value is ABSENT:
            return None
        if isinstance(value, str):
            try:
                number = float(value)
            except ValueError:
                self.fail(field, "Input should be a valid number, unable to parse string as a number")
                return None
        elif isinstance(value, bool):
            self.fail(field, f"Input should be a valid number, not a boolean (got {value})")
            return None
        elif isinstance(value, int | float):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
        else:
            self.fail(field, "Input should be a valid number")
            return None
        if not math.isfinite(number):
            self.fail(field, "Input should be a finite number")
        elif above_minimum and number <= minimum:
            self.fail(field, f"Input should be greater than {minimum:g}")
        elif number < minimum:
            self.fail(field, f"Input should be greater than or equal to {minimum:g}")
        elif number > maximum:
            self.fail(field, f"Input should be less than or equal to {maximum:g}")
        else:
            return number
        return None

    def moment(self, value: object, field: str) -> float | None:
        """Return seconds since 1970 of a date and time in ISO 8601, in UTC where it names no zone."""
        text = self.text(value, field)
        if text is None:
            return None
        try:
            fraction = _FRACTION.search(text)
            moment = datetime.fromisoformat(_FRACTION.sub("", text))
            whole_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            self.fail(field, "Input should be a valid date and time (ISO 8601)")
            return None
        return whole_s + (float(fraction.group()) if fraction else 0.0)

    def json_of(self, value: object, field: str) -> Any:
        """Return the value that a text holds as JSON; one that is no text as it is. ABSENT after a problem."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            self.fail(field, f"a text here is JSON, but: {getattr(error, 'msg', None) or error}")
            return ABSENT

    def boolean(self, value: object, field: str) -> bool | None:
        if isinstance(value, bool):
            return value
        if isinstance(value, int | float) and value in (0, 1):
            return bool(value)
        if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
            return value.lower() in _TRUE
        detail = ", unable to interpret input" if isinstance(value, int | float | str) else ""
        self.fail(field, f"Input should be a valid boolean{detail}")
        return None

    def items(self, value: object, field: str, *, may_be_empty: bool = True) -> list[Any] | None:
        if value is ABSENT:
            return None
        if not isinstance(value, list):
            self.fail(field, "Input should be a valid list")
        elif not value and not may_be_empty:
            self.fail(field, AT_LEAST_ONE_ITEM)
        else:
            return value
        return None

    def some_items(self, value: object, field: str) -> list[Any] | None:
        """Return a list that is not empty."""
        return self.items(value, field, may_be_empty=False)

    def mapping(self, value: object, field: str | None) -> dict[str, Any] | None:
        if isinstance(value, dict):
            return value
        if value is not ABSENT:
            self.fail(field, f"Input should be a valid dictionary (a JSON object), got {kind_of(value)}")
        return None

    def texts(self, value: object, field: str, *, may_be_empty: bool = True) -> tuple[str, ...] | None:
        entries = self.items(value, field, may_be_empty=may_be_empty)
        if entries is None:
            return None
        read = [self.text(entry, f"{field}.{i}") for i, entry in enumerate(entries)]
        return tuple(entry for entry in read if entry is not None)

    def mappings(self, value: object, field: str) -> tuple[dict[str, Any], ...] | None:
        entries = self.items(value, field)
        return None if entries is None else tuple(entry for _, entry in self.each(entries, field))

    def each(self, entries: Sequence[Any] | None, field: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the mappings of a list, each with the prefix of its fields; an entry that is none is a problem."""
        for i, entry in enumerate(entries or ()):
            value = self.mapping(entry, f"{field}.{i}")
            if value is not None:
                yield f"{field}.{i}.", value

    def unknown_keys(self, value: Mapping[str, Any], known: Collection[str], prefix: str = "", hint: str = "") -> None:
        """Note every unknown key of `value` as a problem, with a near miss or else the hint."""
        for key in value:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
                advice = f" (did you mean '{near[0]}'?)" if near else hint
                self.fail(prefix + key, f"Extra inputs are not permitted{advice}")


def kind_of(value: object) -> str:
    """Return the JSON name of a value's type, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    return {"str": "a string", "list": "an array", "dict": "an object"}.get(type(value).__name__, type(value).__name__)
