"""The settings of a load in a study file: the words of the command line with underscores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from llmirage_client.measure.slo import SloError, parse_slo
from llmirage_client.workload.distributions import DistributionError, read_distribution


def read_load_setting(key: str, value: Any) -> Any:
    """The value, checked by itself. Raises ValueError with the end of a sentence."""
    return LOAD_SETTINGS[key](value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"must be a whole number from 1 up, not {value!r}")
    return value


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be a whole number, not {value!r}")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"must be a whole number from 0 up, not {value!r}")
    return value


def _above_zero(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"must be a number above 0, not {value!r}; a load is never infinite")
    return float(value)


def _tokens(least: float) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            read_distribution(value, least=least)
        except DistributionError as error:
            raise ValueError(str(error)) from None
        return value

    return read


def _word(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or (choices and value not in choices):
            raise ValueError(f"must be {'one of ' + ', '.join(choices) if choices else 'a text'}, not {value!r}")
        return value

    return read


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value!r}")
    return value


def _slo(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be objectives such as ttft_p99<500ms, not {value!r}")
    try:
        parse_slo(value)
    except SloError as error:
        raise ValueError("; ".join(error.problems)) from None
    return value


LOAD_SETTINGS: Mapping[str, Callable[[Any], Any]] = {
    "workload": _word(),
    "format": _word(),
    "isl": _tokens(1),
    "osl": _tokens(1),
    "requests": _whole,
    "turns": _tokens(1),
    "think_time": _tokens(0),
    "shared_prefix": _count,
    "request_rate": _above_zero,
    "concurrency": _whole,
    "arrival_pattern": _word("poisson", "constant", "gamma"),
    "arrival_smoothness": _above_zero,
    "fixed_schedule": _switch,
    "fixed_schedule_speedup": _above_zero,
    "num_conversations": _whole,
    "request_count": _whole,
    "duration": _above_zero,
    "session_prefix": _word("extend", "none"),
    "seed": _seed,
    "slo": _slo,
    "max_time": _above_zero,
}
