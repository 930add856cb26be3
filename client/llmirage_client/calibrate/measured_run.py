"""A measured run of any client: when each request was sent, how long it was, and how long it took.

Read are the folders of `llmirage run` and of AIPerf, the JSON of `vllm bench serve --save-result --save-detailed`, and the
benchmark_data.db of evalscope.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from llmirage_client.measure.columns import Columns, columns_of, filled
from llmirage_client.measure.run_folder import RECORDS_FILE, RunFolderError, read_run
from llmirage_client.simulator.cluster_settings import SIMULATED, ClusterSettings
from llmirage_client.simulator.deployments import gpu_key, model_key
from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_client.simulator.replay import ReplayRequests
from llmirage_client.targets.engine_settings import sglang_settings, vllm_settings
from llmirage_shared.settings import ConfigError
from llmirage_shared.statistics import Bools, Floats, Ints, first_known

EVALSCOPE_FILE = "benchmark_data.db"
FIGURES = ("ttft", "tpot", "latency")
_LATE_CLIENT_MS = 2.0  # an idle loop's timers are late by up to one, to which it rounds them


class MeasuredRunError(ValueError):
    """A run that cannot be used; the message is for the user."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """requests: in the order in which they were sent. figures: measured seconds by name of FIGURES; NaN where unknown.

    counted: requests whose times count; those of a warm-up are load only. notes: what was left out. deployment: what was
    measured, as RunResult has it, as far as the run's files say it.
    """

    place: str
    requests: ReplayRequests
    figures: Mapping[str, Floats]
    counted: Bools
    load: Floats  # requests in flight in the middle of each
    unloaded: Bools  # no other request was in flight between its start and its first token
    notes: list[str] = field(default_factory=list)
    deployment: list[dict[str, Any]] = field(default_factory=list)


def read_measured(place: str) -> MeasuredRun:
    """Read a measured run. Raises MeasuredRunError for other folders and for runs that lack needed figures."""
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


def figures_of(start_s: Floats, first_s: Floats, last_s: Floats, output_tokens: Ints) -> dict[str, Floats]:
    """Return FIGURES of requests, s; no TPOT (NaN) for a reply of one token."""
    ttft, latency = first_s - start_s, last_s - start_s
    tpot = np.divide(latency - ttft, output_tokens - 1, out=np.full(ttft.size, np.nan), where=output_tokens > 1)
    return dict(zip(FIGURES, (ttft, tpot, latency), strict=True))


def _of_folder(path: Path) -> MeasuredRun:
    result = read_run(path)
    columns = columns_of(result.records)
    usage, speed, options = columns.usage, result.speed, result.options
    slots = bool(options.get("concurrency")) and not any(
        options.get(name) for name in ("request_rate", "fixed_schedule", "user_centric_rate", "request_rate_series")
    )
    events = columns.events.astype(np.float64)
    columns = replace(
        columns,
        start_s=speed * columns.start_s,
        first_s=np.where(columns.streamed, speed * columns.first_s, np.nan),
        last_s=speed * columns.last_s,
        end_s=speed * columns.end_s,
        input_tokens=first_known(usage.get("usage_prompt_tokens"), columns.input_tokens),
        output_tokens=first_known(usage.get("usage_completion_tokens"), columns.output_tokens, events),
    )
    number = np.array([record.session_num for record in result.records], dtype=np.int64)
    run = _measured(path, columns, slots, usage.get("usage_prompt_cache_read_tokens"), number)
    run.deployment.extend(result.deployment)
    if not result.deployment:
        _add_deployment(run, model=result.model, gpu=options.get("gpu"))
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
    run = _measured(path, _columns(start, ttft, latency, prompt, output, ok), slots)
    _add_deployment(run, model=data.get("model_id"))
    return run


def _vllm_starts(path: Path, data: Mapping[str, Any], latency: Floats) -> tuple[Floats, bool]:
    """Return the time each request was sent, and whether another one ended then."""
    most, rate = data.get("max_concurrency"), data.get("request_rate")
    unlimited = rate in (None, "inf") or (isinstance(rate, (int, float)) and math.isinf(rate))
    slots = unlimited and isinstance(most, int) and most > 0
    starts = data.get("start_times")
    if isinstance(starts, list) and len(starts) == latency.size:
        start = np.array(starts, dtype=np.float64)
        return start - start.min(initial=math.inf), slots
    if not unlimited:
        raise MeasuredRunError(
            f"{path}: it does not say when requests were sent (start_times), and with --request-rate {rate} that is "
            "random: use a version of vLLM that writes start_times, or --request-rate inf"
        )
    start = np.zeros(latency.size)
    if slots:  # the next one is sent when the first of those in flight ends
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
    run = _measured(path, _columns(start, ttft, latency, prompt, output, ok), slots)
    _add_deployment(run, model=closed.get("model"))
    return run


def _add_deployment(run: MeasuredRun, **said: Any) -> None:
    if pool := {name: value for name, value in said.items() if isinstance(value, str) and value}:
        run.deployment.append(pool)


def _columns(start: Floats, ttft: Floats, latency: Floats, prompt: Floats, output: Floats, ok: Bools) -> Columns:
    end = start + latency
    return filled(start, first_s=start + ttft, last_s=end, end_s=end, input_tokens=prompt, output_tokens=output, ok=ok)


def _measured(
    path: Path, columns: Columns, slots: bool, cached: Floats | None = None, number: Ints | None = None
) -> MeasuredRun:
    """Return the measured run.

    slots: each request was sent when another one ended. cached: prompt tokens that the server found in its cache.

    number: orders requests that were sent at the same moment.
    """
    n = len(columns)
    has_tokens = (np.nan_to_num(columns.input_tokens) >= 1) & (np.nan_to_num(columns.output_tokens) >= 1)
    good = columns.ok & has_tokens & ~np.isnan(columns.start_s) & ~np.isnan(columns.last_s)
    notes = []
    if left := n - int(good.sum()):
        notes.append(f"{path}: {left} of {n} requests failed or have no token counts; they are excluded, also as load")
    order = np.argsort(columns.start_s, kind="stable") if number is None else np.lexsort((number, columns.start_s))
    order = order[good[order]]
    place_of = np.full(n + 1, -1)
    place_of[order] = np.arange(order.size)
    before = place_of[columns.continues[order]]  # -1 stays -1: the last entry
    start, first, last, end = (each[order] for each in (columns.start_s, columns.first_s, columns.last_s, columns.end_s))
    prompt, output = columns.input_tokens[order].astype(np.int64), columns.output_tokens[order].astype(np.int64)
    after, due = _chains(start, end, before, slots)
    shared = _shared(prompt, output, before, None if cached is None else cached[order])
    middle, ends = (start + last) / 2, np.sort(last)
    load = np.searchsorted(start, middle, side="right") - np.searchsorted(ends, middle, side="right")
    begun = np.searchsorted(start, np.where(np.isnan(first), start, first), side="left")
    figures = figures_of(start, first, last, output)
    return MeasuredRun(
        str(path),
        ReplayRequests(due, after, prompt, output, shared, before, columns.conversation[order]),
        {name: np.where(values > 0, values, np.nan) for name, values in figures.items()},
        columns.measured[order],
        load.astype(np.float64),
        begun - np.searchsorted(ends, start, side="right") <= 1,
        notes,
    )


def _chains(start: Floats, end: Floats, before: Ints, slots: bool) -> tuple[Ints, Floats]:
    """Return after which request each is sent, and how long after its end; -1: at its own time.

    A turn is sent after the turn before it. With `slots` (a number of conversations at a time) a conversation begins after
    the earliest request that ended before it and that no other one follows.
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


def _shared(prompt: Ints, output: Ints, before: Ints, cached: Floats | None) -> Ints:
    """Return the shared tokens of each prompt: those found in the cache, or else all of the conversation so far."""
    guess = np.where(before >= 0, np.minimum(prompt[before] + output[before], prompt), 0)
    if cached is None:
        return guess
    found = np.where(np.isnan(cached), guess, np.nan_to_num(cached)).astype(np.int64)
    return np.minimum(found, np.where(before >= 0, guess, prompt))


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
    """Return requests whose times count, in all runs."""
    return sum(int(run.counted.sum()) for run in runs)


_KEYS: Mapping[str, Callable[[str], str]] = {"model": model_key, "gpu": gpu_key}


def with_measured(cluster: ClusterSettings, runs: Sequence[MeasuredRun]) -> ClusterSettings:
    """Return the cluster with the settings of the deployment that all runs measured, where the user gave none.

    Raises ConfigError when nothing says model or GPU: a calibration to a default would be one to another deployment.
    """
    if cluster.cluster_file is not None:
        return cluster
    several = [run.place for run in runs if len(run.deployment) > 1]
    if several:
        raise ConfigError([f"{several[0]} measured a cluster of several pools: give its --cluster FILE"])
    filled = dict(cluster.overrides)
    for name in dict.fromkeys(name for run in runs for pool in run.deployment for name in pool):
        if name not in filled and name in SIMULATED and len(found := _values_of(runs, name)) == 1:
            filled[name] = found.pop()
    missing = [name for name in _KEYS if name not in filled]
    if missing:
        flags = " and ".join(f"--{name}" for name in missing)
        words = " and ".join("GPU" if name == "gpu" else name for name in missing)
        raise ConfigError([f"the runs do not say which {words} was measured: give {flags}, or --cluster FILE"])
    accepted = ("acceptance_rate", "acceptance_length", "acceptance_rates")
    if (drafts := filled.get("num_speculative_tokens")) and not any(name in filled for name in accepted):
        raise ConfigError([f"the engine drafted {drafts} tokens a step: give --acceptance-rate, which no file says"])
    return replace(cluster, overrides=filled)


def mismatches(config: ClusterConfig, runs: Sequence[MeasuredRun]) -> list[str]:
    """Return one sentence for each setting in which a run measured another deployment than the cluster.

    Raises ConfigError.
    """
    cluster = [pool.described for pool in plan_of(config)]
    known = ClusterSettings.known()
    found = []
    for run in runs:
        for name in cluster[0]:
            there = sorted({str(pool[name]) for pool in cluster})
            measured = sorted(str(value) for value in _values_of([run], name))
            if measured and measured != there:
                flag = known[name].as_option if name in known else name
                found.append(
                    f"{run.place} measured {_words(name, measured)}, and the cluster to be calibrated has "
                    f"{_words(name, there)}: give the {flag} that was measured, or its --cluster FILE"
                )
    return found


def unchecked(config: ClusterConfig, runs: Sequence[MeasuredRun]) -> list[str]:
    """Return a note for each run on the settings of the cluster that it does not tell. Raises ConfigError."""
    names = [name for name in plan_of(config)[0].described if name != "instances"]
    notes = []
    for run in runs:
        silent = [name for name in names if not any(name in pool for pool in run.deployment)]
        if silent:
            notes.append(
                f"{run.place} does not tell {', '.join(silent)}: whether these are the cluster's could not be checked"
            )
    return notes


def unknown_names(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return notes on models whose name in a run says nothing, so that they could not be compared."""
    return [
        f"{run.place} calls its model {pool['model']}, which the catalogue does not know: whether it is the "
        "cluster's model could not be checked"
        for run in runs
        for pool in run.deployment
        if "model" in pool and _key(pool, "model") is None
    ]


def _words(name: str, values: Sequence[str]) -> str:
    text = ", ".join(values)
    return text if name in _KEYS else f"{name} {text}"


def _values_of(runs: Sequence[MeasuredRun], name: str) -> set[Any]:
    return {key for run in runs for pool in run.deployment if (key := _key(pool, name)) is not None}


def _key(pool: Mapping[str, Any], name: str) -> Any:
    """Return the catalogue's key for a value of the run; None if the run or the catalogue lacks it."""
    if name not in _KEYS:
        return pool.get(name)
    try:
        return _KEYS[name](pool[name]) if name in pool else None
    except ConfigError:
        return None


_VLLM_ARGS = re.compile(r"non-default args: (\{.*\})")
_VLLM_LIMIT = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
_VLLM_TOKENS = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
_VLLM_BLOCKS = re.compile(r"# GPU blocks: (\d+)")
_SGLANG_ARGS = re.compile(r"server_args=ServerArgs\((.*)\)")
_SGLANG_ARG = re.compile(r"(\w+)=('[^']*'|-?[\d.]+|True)")
_SGLANG_LIMITS = re.compile(r"\bmax_total_num_tokens=(\d+), (.*)")
_IN_USE = ("max_running_requests", "chunked_prefill_size", "max_prefill_tokens")  # of the limits
_VLLM_BLOCK = 16  # tokens, vLLM's default on NVIDIA GPUs


def engine_log_settings(place: str) -> dict[str, Any]:
    """Return the settings of a cluster that a log names. Raises ConfigError for any other file."""
    try:
        text = Path(place).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError([f"--engine-log {place}: {error.strerror or error}"]) from None
    if (vllm := _VLLM_ARGS.search(text)) or _VLLM_TOKENS.search(text) or _VLLM_BLOCKS.search(text):
        given = _literal(vllm[1]) if vllm else {}
        if limit := _VLLM_LIMIT.search(text):
            given["max_num_batched_tokens"] = int(limit[1])
        model = str(given.get("model") or given.get("model_tag") or "")
        settings = {"engine": "vllm", **vllm_settings(given), **_model(model)}
        block = settings.get("block_size", _VLLM_BLOCK)
        blocks = [int(found) for found in _VLLM_BLOCKS.findall(text)]
        blocks += [int(found.replace(",", "")) // block for found in _VLLM_TOKENS.findall(text)]
    elif sglang := _SGLANG_ARGS.search(text):
        given = {name: _value(value) for name, value in _SGLANG_ARG.findall(sglang[1])}
        if (half := given.get("disaggregation_mode", "null")) != "null":
            raise ConfigError([f"--engine-log {place}: the engine did {half} only: describe both pools in a --cluster FILE"])
        limits = _SGLANG_LIMITS.findall(text)
        if limits and not given.get("enable_dp_attention"):  # else they are those of one rank
            in_use = dict(_SGLANG_ARG.findall(limits[0][1]))
            given |= {name: _value(in_use[name]) for name in _IN_USE if name in in_use}
        settings = {"engine": "sglang", **sglang_settings(given), **_model(str(given.get("model_path") or ""))}
        blocks = [int(found) // settings.get("block_size", 1) for found, _ in limits]
    else:
        raise ConfigError([f"--engine-log {place}: there is no start-up message of vLLM or SGLang in it"])
    if not blocks or settings.get("data_parallel_size", 1) > 1:  # the log then speaks of one rank
        return settings
    return settings | {"num_gpu_blocks_override": blocks[-1]}


def with_log(cluster: ClusterSettings, place: str | None) -> ClusterSettings:
    """Return the cluster with the settings of the log. Raises ConfigError where the two differ."""
    found, given = engine_log_settings(place) if place is not None else {}, cluster.overrides
    differ = [
        f"{ClusterSettings.known()[name].as_option} {given[name]}: the engine's log says {value}"
        for name, value in found.items()
        if name not in ("model", "engine") and given.get(name) not in (None, value)
    ]
    if differ:
        raise ConfigError(differ)
    return replace(cluster, overrides={**found, **given})


def _model(name: str) -> dict[str, str]:
    for known in (name, name.rstrip("/").rpartition("/")[2]):  # a folder is called as its model, often
        with suppress(ConfigError):
            return {"model": model_key(known)}
    return {}


def _literal(text: str) -> dict[str, Any]:
    with suppress(ValueError, SyntaxError):
        value = ast.literal_eval(text)
        return value if isinstance(value, dict) else {}
    return {}


def _value(text: str) -> str | int | float | bool:
    if text == "True":
        return True
    if text.startswith("'"):
        return text[1:-1]
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        return float(text)
    return text
