"""A measured run, whoever measured it: when each request went out, how long it was, and how long it took.

Read are the folders of `llmirage run` and of AIPerf, the JSON of `vllm bench serve --save-result --save-detailed`, and the
benchmark_data.db of evalscope.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_client.measure.arrays import Floats
from llmirage_client.measure.columns import columns_of
from llmirage_client.measure.run_folder import RECORDS_FILE, RunFolderError, read_run
from llmirage_client.simulator.replay import Asked

EVALSCOPE_FILE = "benchmark_data.db"
FIGURES = ("ttft", "tpot", "latency")
_LATE_CLIENT_MS = 2.0  # an idle loop's timers are late by up to one, to which it rounds them


class MeasuredRunError(ValueError):
    """A run that cannot be used; the message is for the user."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """asked: the requests, in the order in which they went out. figures: what was measured, s, by name; NaN where unknown.

    counted: requests whose times count; the others (of a warm-up) are load. notes: what was left out.
    """

    place: str
    asked: Asked
    figures: Mapping[str, Floats]
    counted: npt.NDArray[np.bool_]
    load: Floats  # requests under way in the middle of each
    alone: npt.NDArray[np.bool_]  # nobody else was under way from when it went out to its first token
    notes: list[str] = field(default_factory=list)


def read_measured(place: str) -> MeasuredRun:
    """Raises MeasuredRunError for what is no run, or has too little of one."""
    path = Path(place)
    if path.is_dir() and not (path / RECORDS_FILE).exists() and (path / EVALSCOPE_FILE).exists():
        path /= EVALSCOPE_FILE
    if path.suffix == ".db":
        return _of_evalscope(path)
    if path.suffix == ".json" and path.is_file():
        return _of_vllm(path)
    try:
        return _of_folder(path)
    except RunFolderError as error:
        raise MeasuredRunError(str(error)) from None


def _of_folder(path: Path) -> MeasuredRun:
    result = read_run(path)
    columns = columns_of(result.records)
    usage = columns.usage
    prompt = _known(usage.get("usage_prompt_tokens"), columns.input_tokens)
    output = _known(usage.get("usage_completion_tokens"), columns.output_tokens, columns.events.astype(np.float64))
    cached = usage.get("usage_prompt_cache_read_tokens")
    options = result.options
    slots = bool(options.get("concurrency")) and not any(
        options.get(name) for name in ("request_rate", "fixed_schedule", "user_centric_rate", "request_rate_series")
    )
    times = [result.speed * t for t in (columns.start_s, columns.first_s, columns.last_s, columns.end_s)]
    streamed = columns.streamed
    run = _run(
        str(path),
        *times,
        first_known=streamed,
        prompt=prompt,
        output=output,
        ok=columns.ok,
        cached=cached,
        continues=columns.continues,
        conversation=columns.conversation,
        counted=columns.measured,
        slots=slots,
        number=np.array([record.session_num for record in result.records], dtype=np.int64),
    )
    late_ms = None if result.client_cost is None else result.client_cost.timers_late_p95_ms
    if late_ms is not None and late_ms > _LATE_CLIENT_MS:
        run.notes.append(
            f"{path}: this client was late itself, its timers by {late_ms:.1f} ms (95th percentile). What its machine "
            "adds to first tokens counts as front end here; measure again on an idle one"
        )
    return run


def _of_vllm(path: Path) -> MeasuredRun:
    data = _json(path)
    needed = ("input_lens", "output_lens", "ttfts", "itls")
    if missing := [name for name in needed if not isinstance(data.get(name), list)]:
        raise MeasuredRunError(
            f"{path}: no list {', '.join(missing)}: times of single requests are needed, as `vllm bench serve --save-result "
            "--save-detailed` writes them"
        )
    n = len(data["input_lens"])
    if lengths := {name: len(data[name]) for name in needed if len(data[name]) != n}:
        raise MeasuredRunError(
            f"{path}: input_lens has {n} entries, {', '.join(f'{k} has {v}' for k, v in lengths.items())}"
        )
    try:
        ttft = np.array(data["ttfts"], dtype=np.float64)
        latency = ttft + np.array([math.fsum(gaps) for gaps in data["itls"]])
        prompt, output = (np.array(data[name], dtype=np.float64) for name in ("input_lens", "output_lens"))
    except (TypeError, ValueError) as error:
        raise MeasuredRunError(f"{path}: not the numbers of `vllm bench serve`: {error}") from None
    errors = data.get("errors") or [""] * n
    ok = np.array([not error for error in errors], dtype=bool) & (output > 0) & (ttft > 0)
    start, slots = _vllm_starts(path, data, latency)
    return _run(
        str(path), start, start + ttft, start + latency, start + latency, prompt=prompt, output=output, ok=ok, slots=slots
    )


def _vllm_starts(path: Path, data: Mapping[str, Any], latency: Floats) -> tuple[Floats, bool]:
    """When each request went out, and whether that was when another one was over."""
    most, rate = data.get("max_concurrency"), data.get("request_rate")
    unlimited = rate in (None, "inf") or (isinstance(rate, (int, float)) and math.isinf(rate))
    slots = unlimited and isinstance(most, int) and most > 0
    starts = data.get("start_times")
    if isinstance(starts, list) and len(starts) == latency.size:
        start = np.array(starts, dtype=np.float64)
        return start - start.min(initial=math.inf), slots
    if not unlimited:
        raise MeasuredRunError(
            f"{path}: it does not say when requests went out (start_times), and with --request-rate {rate} that was left to "
            "chance: use a version of vLLM that writes start_times, or --request-rate inf"
        )
    start = np.zeros(latency.size)
    if slots:  # the next one goes out when the first of those under way is over
        free = [0.0] * min(int(most or 1), latency.size)
        for row in range(latency.size):
            at = int(np.argmin(free))
            start[row] = free[at]
            free[at] += float(latency[row])
    return start, slots


def _of_evalscope(path: Path) -> MeasuredRun:
    columns = "start_time, first_chunk_latency, latency, prompt_tokens, completion_tokens, success"
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as base:
            rows = base.execute(f"select {columns} from result").fetchall()
    except sqlite3.Error as error:
        raise MeasuredRunError(f"{path}: not the results of evalscope perf: {error}") from None
    values = np.array([[math.nan if v is None else float(v) for v in row] for row in rows]).reshape(-1, 6)
    start, ttft, latency, prompt, output, success = values.T
    closed = _json(path.with_name("benchmark_args.json")) if path.with_name("benchmark_args.json").exists() else {}
    rate = closed.get("rate")
    slots = bool(closed) and (rate is None or (isinstance(rate, (int, float)) and rate <= 0))
    ok = (success > 0) & (latency > 0)
    return _run(
        str(path), start, start + ttft, start + latency, start + latency, prompt=prompt, output=output, ok=ok, slots=slots
    )


def _run(
    place: str,
    start_s: Floats,
    first_s: Floats,
    last_s: Floats,
    end_s: Floats,
    *,
    prompt: Floats,
    output: Floats,
    ok: npt.NDArray[np.bool_],
    slots: bool,
    first_known: npt.NDArray[np.bool_] | None = None,
    cached: Floats | None = None,
    continues: npt.NDArray[np.int64] | None = None,
    conversation: npt.NDArray[np.int64] | None = None,
    counted: npt.NDArray[np.bool_] | None = None,
    number: npt.NDArray[np.int64] | None = None,
) -> MeasuredRun:
    """number: what tells the order of requests that went out at the same moment."""
    n = start_s.size
    good = ok & (np.nan_to_num(prompt) >= 1) & (np.nan_to_num(output) >= 1) & ~np.isnan(start_s) & ~np.isnan(last_s)
    notes = []
    if left := n - int(good.sum()):
        notes.append(f"{place}: {left} of {n} requests failed or have no token counts and are left out, also as load")
    order = np.argsort(start_s, kind="stable") if number is None else np.lexsort((number, start_s))
    order = order[good[order]]
    place_of = np.full(n + 1, -1)
    place_of[order] = np.arange(order.size)
    before = np.full(n, -1) if continues is None else continues
    start, end = start_s[order], end_s[order]
    before = place_of[before[order]]  # -1 stays -1: the last entry
    prompt_n, output_n = prompt[order].astype(np.int64), output[order].astype(np.int64)
    talk = (np.arange(n) if conversation is None else conversation)[order].astype(np.int64)
    first = np.where(first_known, first_s, np.nan)[order] if first_known is not None else first_s[order]
    ttft, latency = first - start, last_s[order] - start
    tpot = np.divide(latency - ttft, output_n - 1, out=np.full(order.size, np.nan), where=output_n > 1)
    after, due = _chains(start, end, before, slots)
    shared = _shared(prompt_n, output_n, before, None if cached is None else cached[order])
    middle = (start + last_s[order]) / 2
    last = np.sort(last_s[order])
    load = np.searchsorted(start, middle, side="right") - np.searchsorted(last, middle, side="right")
    begun = np.searchsorted(start, np.where(np.isnan(first), start, first), side="left")
    alone = begun - np.searchsorted(last, start, side="right") <= 1
    return MeasuredRun(
        place,
        Asked(due, after, prompt_n, output_n, shared, before, talk),
        {"ttft": _positive(ttft), "tpot": _positive(tpot), "latency": _positive(latency)},
        np.ones(order.size, dtype=bool) if counted is None else counted[order],
        load.astype(np.float64),
        alone,
        notes,
    )


def _chains(start: Floats, end: Floats, before: npt.NDArray[np.int64], slots: bool) -> tuple[npt.NDArray[np.int64], Floats]:
    """After which request each goes out, and how long after it; -1: by the clock.

    A turn goes out after the turn before it. With `slots` (so many conversations at a time) a conversation begins after
    the last request that was over before it, if no other one began after that.
    """
    after = np.where((before >= 0) & (end[before] <= start), before, -1)
    if slots and start.size:
        taken = {int(row) for row in after if row >= 0}
        ends = np.argsort(end, kind="stable")
        free: list[int] = []
        at = 0
        for row in range(start.size):
            while at < ends.size and end[ends[at]] <= start[row]:
                if int(ends[at]) not in taken:
                    free.append(int(ends[at]))
                at += 1
            if after[row] < 0 and free:
                after[row] = free.pop(0)
    due = np.where(after >= 0, start - end[after], start - (start[0] if start.size else 0.0))
    return after.astype(np.int64), due


def _shared(
    prompt: npt.NDArray[np.int64], output: npt.NDArray[np.int64], before: npt.NDArray[np.int64], cached: Floats | None
) -> npt.NDArray[np.int64]:
    """How many tokens each prompt shares: as many as were found in the cache, or all that a conversation has so far."""
    guess = np.where(before >= 0, np.minimum(prompt[before] + output[before], prompt), 0)
    if cached is None:
        return guess
    found = np.where(np.isnan(cached), guess, np.nan_to_num(cached)).astype(np.int64)
    most = np.where(before >= 0, guess, prompt)
    return np.minimum(found, most)


def _known(*choices: Floats | None) -> Floats:
    """By row, the first that is known."""
    given = [choice for choice in choices if choice is not None]
    found = given[0]
    for other in given[1:]:
        found = np.where(np.isnan(found), other, found)
    return found


def _positive(values: Floats) -> Floats:
    return np.where(values > 0, values, np.nan)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise MeasuredRunError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise MeasuredRunError(f"{path}: not valid JSON") from None
    if not isinstance(value, dict):
        raise MeasuredRunError(f"{path}: not a JSON object")
    return value


def count_of(runs: Sequence[MeasuredRun]) -> int:
    """Requests that count, of all."""
    return sum(int(run.counted.sum()) for run in runs)
