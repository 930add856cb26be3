"""Goodput: requests that met every objective given for single requests, such as `ttft:200 tpot:15`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from llmirage_client.measure.arrays import Bools, Floats
from llmirage_client.measure.catalogue import PER_REQUEST, SHORT_NAMES
from llmirage_client.measure.columns import Columns

_LARGER_IS_BETTER = {"output_token_throughput_per_user", "e2e_output_token_throughput", "prefill_throughput_per_user"}
_OF_A_GROUP = {"first_turn_time_to_first_token", "subsequent_turn_time_to_first_token", "inter_chunk_latency", "error_isl"}
_NAMES = {name: tag for name, tag in SHORT_NAMES.items() if tag in PER_REQUEST and tag not in _OF_A_GROUP}


def parse_goodput(text: str) -> dict[str, float]:
    """Limits by metric tag, in the metric's own unit (ms, tokens/sec/user), from "name:limit name:limit".

    A name is a tag of a per-request metric, as AIPerf has it, or the short name of one (vLLM's are among these). Raises
    ValueError with one line a problem.
    """
    limits: dict[str, float] = {}
    problems = []
    for part in text.replace(",", " ").split():
        name, colon, limit_text = part.partition(":")
        tag = _NAMES.get(name, name)
        try:
            limit = float(limit_text)
        except ValueError:
            limit = math.nan
        if tag not in PER_REQUEST or tag in _OF_A_GROUP:
            problems.append(f"{part!r}: no metric of single requests is called {name!r}; known are {', '.join(_NAMES)}")
        elif not colon or not (0 < limit < math.inf):
            problems.append(f"{part!r}: expected {name}:LIMIT with a limit above zero in {PER_REQUEST[tag].unit}")
        elif tag in limits:
            problems.append(f"{part!r}: {tag} has a limit already")
        limits[tag] = limit
    if not limits:
        problems.append("no objective given; an example is ttft:200")
    if problems:
        raise ValueError("\n".join(problems))
    return limits


def goodput_problem(text: str) -> str | None:
    """Return the problems of the limits, one a line; None if there are none."""
    try:
        parse_goodput(text)
    except ValueError as error:
        return str(error)
    return None


def good_requests(columns: Columns, metrics: Mapping[str, Floats], limits: Mapping[str, float]) -> Bools:
    """Return a mask of rows that met every limit; failed requests and missing metrics do not meet it.

    One exception: a reply of a single token has no time per further token, and is not held to one.
    """
    good = columns.ok.copy()
    lengths = metrics.get("output_sequence_length")
    single = np.zeros(len(columns), dtype=bool) if lengths is None else lengths <= 1
    for tag, limit in limits.items():
        values = metrics.get(tag)
        if values is None:
            values = np.full(len(columns), np.nan)
        with np.errstate(invalid="ignore"):
            met = values >= limit if tag in _LARGER_IS_BETTER else values <= limit
        if tag in ("inter_token_latency", "output_token_throughput_per_user", "time_to_second_token"):
            met |= np.isnan(values) & single
        good &= met
    return good
