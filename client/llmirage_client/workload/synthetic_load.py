"""A workload without a file: requests of given lengths, in token counts, for simulations and quick measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_client.workload.checking import MOST_TOKENS
from llmirage_client.workload.distributions import Distribution, DistributionError, read_distribution
from llmirage_client.workload.schedule import ArrivalProcess
from llmirage_client.workload.session import Problem, Session, TokenSpec, Turn, Workload, WorkloadError

FORMAT_NAME = "synthetic"
_MOST_TURNS = 100_000
_FIRST_ID, _LAST_ID = 256, 8192  # in every vocabulary of a model, and no special tokens there


def synthetic_load(
    isl: Any,
    osl: Any,
    requests: int,
    *,
    arrivals: ArrivalProcess | None = None,
    turns: Any = 1,
    wait_s: Any = 0,
    shared_prefix_tokens: int = 0,
    sessions: int | None = None,
    loads: int = 1,
    seed: int = 0,
) -> Workload:
    """Return `requests` requests in sessions of mode "tokens", without ids; or `sessions` whole sessions where it is given.

    loads: number of loads, one after the other, for a sweep; each has as many requests.

    isl, osl: input and output tokens of a request: a number, "800:1200", "lognormal(p50=900, p95=4000, max=8000)" or a
    Distribution. turns: requests of a session, each of which continues the last one: its input is the last input, the last
    output and isl new tokens. wait_s: pause before each of these. arrivals: times of the sessions' first requests; None: the
    load strategy says. shared_prefix_tokens: every session starts with these, before isl tokens of its first input; calls
    then have ids. The last session of a load is cut where the number of requests is reached.

    Raises WorkloadError with every parameter that makes no sense.
    """
    problems: list[Problem] = []
    lengths_in = _read(isl, "isl", 1, MOST_TOKENS, problems)
    lengths_out = _read(osl, "osl", 1, MOST_TOKENS, problems)
    turn_counts = _read(turns, "turns", 1, _MOST_TURNS, problems)
    waits_s = _read(wait_s, "think_time", 0, math.inf, problems)
    if requests < 1:
        problems.append(Problem("must be at least 1", field="requests"))
    if shared_prefix_tokens < 0:
        problems.append(Problem("must not be negative", field="shared_prefix"))
    if problems:
        raise WorkloadError(FORMAT_NAME, problems)
    source = np.random.default_rng([abs(seed), 1])
    draw_turns = _drawn(turn_counts, lambda: turn_counts.count(source, least=1))
    if sessions is not None:
        turns_of = [draw_turns() for _ in range(sessions)]
        requests, draw_turns = sum(turns_of), iter(turns_of).__next__
    total = requests * loads
    inputs = lengths_in.counts(source, total, least=1)
    outputs = lengths_out.counts(source, total, least=1)
    ids = _Ids(shared_prefix_tokens, abs(seed)) if shared_prefix_tokens else None
    made: list[Session] = []
    known: dict[tuple[int, int, float], Turn] = {}
    done = 0
    while done < total:
        count = min(draw_turns(), requests - done % requests)
        delays_s = [0.0, *waits_s.sample(source, count - 1).tolist()] if count > 1 else [0.0]
        lengths = list(zip(inputs[done : done + count], outputs[done : done + count], strict=True))
        name = f"request_{len(made) + 1}" if count == 1 else f"session_{len(made) + 1}"
        if ids is None:
            chain = _lengths_only(lengths, delays_s, known)
        else:
            chain = [Turn(tokens=spec, delay_s=delay_s) for spec, delay_s in zip(ids.chain(lengths), delays_s, strict=True)]
        made.append(Session(name, tuple(chain), mode="tokens"))
        done += count
    times_s = (arrivals or ArrivalProcess()).times_s(len(made), source)
    if times_s is not None:
        made = [replace(session, arrival_s=at_s) for session, at_s in zip(made, times_s, strict=True)]
    return Workload.of_roots(FORMAT_NAME, FORMAT_NAME, made)


def with_priorities(workload: Workload, shares: Sequence[tuple[int, float]], seed: int) -> Workload:
    """Return the workload with priorities of whole conversations, drawn in these shares; equal turns stay one object."""
    total, source = sum(share for _, share in shares), np.random.default_rng([abs(seed), 3])
    drawn = source.choice([priority for priority, _ in shares], len(workload.sessions), p=[s / total for _, s in shares])
    known: dict[tuple[int, int], Turn] = {}

    def turn_of(turn: Turn, priority: int) -> Turn:
        key = id(turn), priority
        if key not in known:
            known[key] = replace(turn, extra={**turn.extra, "priority": priority})
        return known[key]

    sessions = {
        name: replace(session, turns=tuple(turn_of(turn, priority) for turn in session.turns))
        for (name, session), priority in zip(workload.sessions.items(), drawn.tolist(), strict=True)
    }
    return replace(workload, sessions=sessions)


def _read(value: Any, field: str, least: float, most: float, problems: list[Problem]) -> Distribution:
    if isinstance(value, Distribution):
        return value
    try:
        return read_distribution(value, least=least, most=most)
    except DistributionError as error:
        problems.append(Problem(str(error), field=field))
        return read_distribution(least)


def _drawn(distribution: Distribution, draw: Callable[[], int]) -> Callable[[], int]:
    """Return `draw`, or its constant result: drawing one number costs as much as making a session."""
    return repeat(draw()).__next__ if distribution.kind == "constant" else draw


def _lengths_only(
    lengths: Sequence[tuple[int, int]], delays_s: Sequence[float], known: dict[tuple[int, int, float], Turn]
) -> list[Turn]:
    """Return turns. known: turns made before: equal ones are one object, since to make one costs as much as to send it."""
    turns = []
    context = 0
    for (new, out), delay_s in zip(lengths, delays_s, strict=True):
        alike = context + new, out, delay_s
        turn = known.get(alike)
        if turn is None:
            turn = known[alike] = Turn(tokens=TokenSpec(context + new, out), delay_s=delay_s)
        turns.append(turn)
        context += new + out
    return turns


class _Ids:
    """Return token ids for sessions that share their first tokens; valid in every vocabulary of that size."""

    def __init__(self, shared_tokens: int, seed: int) -> None:
        self._source = np.random.default_rng([seed, 2])
        self._shared = self._draw(shared_tokens)

    def chain(self, lengths: Sequence[tuple[int, int]]) -> list[TokenSpec]:
        specs = []
        context = self._shared
        for new, out in lengths:
            prompt = np.concatenate([context, self._draw(new)])
            reply = self._draw(out)
            specs.append(TokenSpec(len(prompt), out, prompt, reply))
            context = np.concatenate([prompt, reply])
        return specs

    def _draw(self, tokens: int) -> npt.NDArray[np.int32]:
        return self._source.integers(_FIRST_ID, _LAST_ID, tokens, dtype=np.int32)
