"""Errors of a load client's times, by the stamps of the server that sent the tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from llmirage_client.measure.record import Record
from llmirage_shared.settings import InputRefused


@dataclass(slots=True, frozen=True)
class Error:
    """Measured less sent, in ms of real time. count: of the compared values. p99: of the amounts."""

    count: int
    median: float
    p99: float


@dataclass(slots=True, frozen=True)
class ClientError:
    """ttft: from the request's arrival at the server on, so that the way there and back is in it. itl: the mean of a reply.

    gap: single gaps between chunks, of replies that came in as many chunks as they were sent in. None: nothing to compare.
    requests: of the run; compared: those with stamps.
    """

    requests: int
    compared: int
    ttft: Error | None
    itl: Error | None
    gap: Error | None

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        return asdict(self)


T = TypeVar("T")
Stamps = Sequence[tuple[float, int]]  # milliseconds since the request arrived, tokens sent by then


def read_stamps(path: str) -> dict[str, Stamps]:
    """Return the stamps of a file of `serve`, by request. Raises InputRefused with its problems."""
    return _read(path, lambda row: [(float(ms), int(tokens)) for ms, tokens in row["sent"]])


def read_instances(path: str) -> dict[str, int]:
    """Return which instance served each request of such a file. Raises InputRefused with its problems."""
    return _read(path, lambda row: int(row["instance"]))


def _read(path: str, value: Callable[[Any], T]) -> dict[str, T]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputRefused([f"{path}: {getattr(error, 'strerror', None) or error}"]) from None
    found: dict[str, T] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            found[row["request_id"]] = value(row)
        except (ValueError, TypeError, KeyError, RecursionError):
            problems.append(f"{path}: line {number}: is no line of sent stamps: request_id, instance, sent [[ms, tokens]]")
    if problems:
        raise InputRefused(problems[:10])
    return found


def client_error(records: Iterable[Record], stamps: Mapping[str, Stamps]) -> ClientError:
    """Compare the successful, streamed requests of a run with what was sent."""
    ttft: list[float] = []
    itl: list[float] = []
    gaps: list[float] = []
    requests = compared = 0
    for record in records:
        exchange = record.exchange
        if not record.ok or not exchange.streamed or not exchange.token_s:
            continue
        requests += 1
        sent = stamps.get(record.request_id)
        if not sent:
            continue
        compared += 1
        got_ms = [(time_s - exchange.start_s) * 1000 for time_s in exchange.token_s]
        ttft.append(got_ms[0] - sent[0][0])
        between = sent[-1][1] - sent[0][1]
        if between and len(got_ms) > 1:
            itl.append(((got_ms[-1] - got_ms[0]) - (sent[-1][0] - sent[0][0])) / between)
        if len(got_ms) == len(sent):
            gaps += [(b - a) - (d - c) for (a, b), ((c, _), (d, _)) in zip(pairwise(got_ms), pairwise(sent), strict=True)]
    return ClientError(requests, compared, _error(ttft), _error(itl), _error(gaps))


def _error(values: Sequence[float]) -> Error | None:
    if not values:
        return None
    return Error(len(values), float(np.median(values)), float(np.percentile(np.abs(values), 99)))
