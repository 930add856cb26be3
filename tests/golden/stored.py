"""Plans and outcomes as files, and how two outcomes of one plan differ. Knows nothing of the product.

A file is xz over one JSON object a line, each with a `name`. Token times are exact: the bits of float64 as integers, of
which the second differences are kept. Steps of one length follow each other most of the time: these are small, and repeat.
"""

import json
import lzma
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PLANS = {"engine": HERE / "engine.plans.xz", "run": HERE / "run.plans.xz", "script": HERE / "script.plans.xz"}
OUTCOMES = {family: HERE / f"{family}.outcomes.xz" for family in PLANS}
COMMANDS = HERE / "commands.xz"
_XZ = {"preset": 9 | lzma.PRESET_EXTREME}
_SHOWN = 3  # differences of a plan that are told

Row = dict[str, Any]


def write(path: Path, rows: Iterable[Row]) -> None:
    lines = [json.dumps(row, separators=(",", ":"), ensure_ascii=False, allow_nan=False) for row in rows]
    path.write_bytes(lzma.compress("\n".join(lines).encode(), **_XZ))


def read(path: Path) -> dict[str, Row]:
    """By name, in the order of the file."""
    rows = [json.loads(line) for line in lzma.decompress(path.read_bytes()).decode().split("\n")]
    return {row["name"]: row for row in rows}


def names(path: Path) -> list[str]:
    """The names alone, which each process that collects tests needs."""
    return re.findall(r'^{"name":"([^"]*)"', lzma.decompress(path.read_bytes()).decode(), re.MULTILINE)


def group_of(name: str) -> str:
    """Plans are called `group-number`."""
    return name.rpartition("-")[0]


def packed(times_s: Sequence[float]) -> list[int]:
    """Seconds as integers, without loss; see `unpacked`."""
    bits = np.array(times_s, dtype=np.float64).view(np.int64)
    return [*bits[:1].tolist(), *np.diff(np.diff(bits), prepend=0).tolist()]


def unpacked(numbers: Sequence[int]) -> list[float]:
    if not numbers:
        return []
    steps = np.cumsum(np.array(numbers[1:], dtype=np.int64))
    bits = np.cumsum(np.concatenate([np.array(numbers[:1], dtype=np.int64), steps]))
    return [float(value) for value in bits.view(np.float64)]


def differences(expected: Row, found: Row) -> list[str]:
    """What differs between two outcomes of a plan, what happened first coming first; empty if they are equal bit for bit.

    Both are of the form: {"name": ..., "requests": [{"id": ..., "times_s": [packed], ...}, ...], ...}.
    """
    if expected == found:
        return []
    name = expected["name"]
    known, new = ({each["id"]: each for each in outcome["requests"]} for outcome in (expected, found))
    told: list[tuple[float, str]] = []
    for key in [*known, *(key for key in new if key not in known)]:
        if key not in new or key not in known:
            what = "is missing" if key in known else "is new"
            told.append((_moment(known.get(key) or new[key]), f"request {key} {what}"))
        elif known[key] != new[key]:
            told.append(_of_request(known[key], new[key]))
    told.sort(key=lambda entry: entry[0])
    lines = [line for _, line in told[:_SHOWN]]
    if len(told) > _SHOWN:
        lines.append(f"and {len(told) - _SHOWN} further requests")
    if not told and list(known) != list(new):
        at = next(i for i, (a, b) in enumerate(zip(known, new, strict=True)) if a != b)
        lines.append(f"place {at} in the order of the requests: {list(new)[at]} instead of {list(known)[at]}")
    rest = [key for key in sorted({*expected, *found} - {"requests"}) if expected.get(key) != found.get(key)]
    lines += [f"{key}: {_short(found.get(key), expected.get(key))}" for key in rest]
    return [f"plan {name}: {line}" for line in lines]


def _of_request(expected: Row, found: Row) -> tuple[float, str]:
    """When two outcomes of a request part, and how."""
    fields = [key for key in sorted({*expected, *found} - {"times_s"}) if expected.get(key) != found.get(key)]
    parts = [f"{key} {found.get(key)!r} instead of {expected.get(key)!r}" for key in fields]
    moment = _moment(expected)
    old, new = unpacked(expected.get("times_s", [])), unpacked(found.get("times_s", []))
    if old != new:
        at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        if at < min(len(old), len(new)):
            moment = min(old[at], new[at])
            parts.insert(
                0, f"token {at} of {len(old)} at {new[at]!r} s instead of {old[at]!r} s ({new[at] - old[at]:+.3g} s)"
            )
        else:
            parts.insert(0, f"{len(new)} tokens instead of {len(old)}, the first {at} as they were")
    return moment, f"request {expected['id']}: " + "; ".join(parts)


def _moment(request: Row) -> float:
    times_s = unpacked(request.get("times_s", [])[:1])
    return times_s[0] if times_s else float("inf")


def _short(found: Any, expected: Any) -> str:
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        keys = [key for key in sorted({*found, *expected}) if found.get(key) != expected.get(key)]
        return "; ".join(f"{key} {found.get(key)!r} instead of {expected.get(key)!r}" for key in keys)
    if isinstance(found, list) and isinstance(expected, list):
        if len(found) != len(expected):
            return f"{len(found)} entries instead of {len(expected)}"
        at = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
        return f"entry {at}: {found[at]!r} instead of {expected[at]!r}"
    return f"{found!r} instead of {expected!r}"
