"""Options of a format: typed values that a user may give besides the file, as `--format-option key=value`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.schedule import earlier
from llmirage_client.workload.session import Problem, Workload, WorkloadError

Kind = Literal["integer", "number", "boolean", "text", "range"]
"""range: a whole number, or two for a value drawn between them, written LOW:HIGH or [LOW, HIGH]; read as (low, high)."""


@dataclass(slots=True, frozen=True)
class Option:
    """One option. required: it has no default. minimum and maximum hold for numbers and both ends of a range."""

    name: str
    kind: Kind
    help: str
    default: Any = None
    minimum: int = 0
    maximum: int = 10_000_000
    required: bool = False


DATASET_OFFSET = Option("dataset_offset", "integer", "skip this many conversations of the file", 0)
"""Every format has it; one that declares it itself is given the value, for the others `skip` applies it."""


def read_options(
    path: str, format_name: str, declared: Sequence[Option], given: Mapping[str, Any], offered: Mapping[str, Any]
) -> dict[str, Any]:
    """The value of every declared option. given: must be known to the format. offered: used where the format knows it.

    Raises WorkloadError with every problem.
    """
    check = Checker(None)
    known = [option.name for option in declared]
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
            hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(known)}"
            check.fail(f"option {key}", f"{format_name} has no such option ({hint})")
    values = {}
    for option in declared:
        value = given.get(option.name, offered.get(option.name))
        if value is not None:
            values[option.name] = _read(option, value, check)
            continue
        if option.required:
            check.fail(f"option {option.name}", f"{format_name} needs it ({option.help})")
        values[option.name] = option.default
    if check.problems:
        raise WorkloadError(path, check.problems)
    return values


def _read(option: Option, value: Any, check: Checker) -> Any:
    field = f"option {option.name}"
    match option.kind:
        case "integer":
            return check.integer(value, field, minimum=option.minimum, maximum=option.maximum)
        case "number":
            return check.number(value, field, minimum=option.minimum, maximum=option.maximum)
        case "boolean":
            return check.boolean(value, field)
        case "text":
            return check.text(value, field)
        case "range":
            return _range(option, value, field, check)


def _range(option: Option, value: Any, field: str, check: Checker) -> tuple[int, int] | None:
    parts = value.split(":") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    if not 1 <= len(parts) <= 2:
        check.fail(field, "Input should be one whole number, or LOW:HIGH")
        return None
    ends = [check.integer(part, field, minimum=option.minimum, maximum=option.maximum) for part in parts]
    low, high = ends[0], ends[-1]
    if low is None or high is None:
        return None
    if low > high:
        check.fail(field, f"has its end before its start ({low} > {high})")
        return None
    return low, high


def parse_pairs(texts: Sequence[str]) -> dict[str, Any]:
    """Options from KEY=VALUE texts and JSON objects, merged in order. Raises ValueError with a message for the user."""
    merged: dict[str, Any] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            try:
                merged |= json.loads(text)
            except ValueError as error:
                raise ValueError(f"{text!r} is not a JSON object: {error}") from None
            continue
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{text!r} is neither key=value nor a JSON object")
        merged[key.strip().replace("-", "_")] = _json_list(value.strip())
    return merged


def _json_list(value: str) -> Any:
    if not value.startswith("["):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def skip(workload: Workload, count: int) -> Workload:
    """The workload from its root number `count` on.

    A run that wants more roots than are left goes on with the skipped ones; where the file says when roots arrive, they are
    left out for good, and the schedule begins with the first that is left. Raises WorkloadError when nothing is left.
    """
    if count == 0:
        return workload
    size = len(workload.roots)
    if count >= size:
        message = f"{count} skips all of the {size} conversation{'s' * (size != 1)} of the file"
        raise WorkloadError(workload.path, [Problem(message, field="option dataset_offset")])
    rest, skipped = workload.roots[count:], workload.roots[:count]
    if workload.timed:
        first_s = min(workload.sessions[root].arrival_s or 0.0 for root in rest)
        moved = {root: earlier(workload.sessions[root], first_s) for root in rest}
        return replace(workload, roots=rest, sessions={**workload.sessions, **moved})
    return replace(workload, roots=(*rest, *skipped), skipped=count)
