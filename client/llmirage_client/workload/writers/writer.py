"""What a module of `writers/` declares, and how JSON is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmirage_client.workload.session import ContextMode, Turn, Workload


@dataclass(slots=True, frozen=True)
class Written:
    """A file, and the options of the format with which it has to be loaded."""

    data: bytes
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Writer:
    """modes: of the sessions it can write at all. write: puts down all the format has a place for; the rest is left out,
    and the conversion finds out by loading the file.
    """

    format: str
    modes: frozenset[ContextMode]
    write: Callable[[Workload], Written]


def line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def milliseconds(seconds: float) -> float | int:
    """To the nanosecond; whole ones as integers."""
    value = round(seconds * 1000, 6)
    return int(value) if value.is_integer() else value


def extra_of(turn: Turn) -> dict[str, Any]:
    """The turn's further parameters, with the exact length of its reply where it has one."""
    exact = {} if turn.min_tokens is None else {"min_tokens": turn.min_tokens, "ignore_eos": True}
    return {**exact, **turn.extra}
