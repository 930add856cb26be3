"""Name and expected length of a run."""

from __future__ import annotations

import re

from llmirage_client.load.options import RunOptions
from llmirage_client.load.plan import scheduled_roots
from llmirage_client.workload.session import Workload
from llmirage_client.workload.summary import requests_by_root


def model_shown(options: RunOptions, workload: Workload) -> str:
    """Return the model of the command line or the endpoint, else those that the file names."""
    if options.model:
        return options.model
    turns = [turn for session in workload.sessions.values() for turn in session.turns]
    names = [turn.model or (turn.payload or {}).get("model") for turn in turns]
    return ", ".join(dict.fromkeys(str(name) for name in names if name)) or "unnamed"


def run_name(options: RunOptions, workload: Workload, load: str = "") -> str:
    """Return the default name of a run's folder: MODEL-ENDPOINT-LOAD."""
    model = re.sub(r"[^\w.-]+", "_", model_shown(options, workload))
    return f"{model}-openai-{options.endpoint_type or 'chat'}-{load or _load_shown(options)}"


def expected_requests(workload: Workload, options: RunOptions) -> int | None:
    """How many requests the run will send if nothing fails; None when only time limits it, or the roots are drawn."""
    count = options.num_conversations
    if options.fixed_schedule and (options.schedule_start_s or options.schedule_end_s < float("inf")):
        return None if scheduled_roots(workload, options) < len(workload.roots) else sum(requests_by_root(workload).values())
    if options.user_rate_per_s is not None or (count is options.request_count is None and options.open_ended):
        return options.request_count
    by_root = list(requests_by_root(workload).values())
    once = by_root[: len(by_root) - workload.skipped]
    if options.sampling != "sequential" and count is not None and len(set(by_root)) > 1:
        expected = None
    elif count is None:
        expected = sum(once)
    else:
        before, after = (
            divmod(number, len(by_root)) for number in (options.first_root, options.first_root + count)
        )  # passes over the file, and roots of the next
        expected = (after[0] - before[0]) * sum(by_root) + sum(by_root[: after[1]]) - sum(by_root[: before[1]])
    if options.request_count is not None:
        return options.request_count if count is None or expected is None else min(options.request_count, expected)
    return expected


def _load_shown(options: RunOptions) -> str:
    if options.fixed_schedule:
        return "fixed_schedule"
    if options.user_rate_per_s is not None:
        return f"user_centric{options.user_rate_per_s:g}"
    if options.request_rate_series is not None:
        return "request_rate_series"
    if options.request_rate_per_s is not None:
        return f"request_rate{options.request_rate_per_s:g}"
    return f"concurrency{options.concurrency}"
