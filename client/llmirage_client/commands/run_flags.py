"""From the flags of `llmirage run` to RunOptions: what they mean together, and what makes no sense together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import click

from llmirage_client.load.options import RunOptions
from llmirage_client.workload.session import Workload


def run_options(workload: Workload, flags: Mapping[str, Any]) -> RunOptions:
    """What the flags ask for with this workload, the endpoint not yet known. Raises click.UsageError in one sentence."""
    refuse_nonsense(workload, flags)
    fixed_schedule = flags["fixed_schedule"]
    if fixed_schedule is None:
        fixed_schedule = workload.timed and flags["concurrency"] is None and flags["request_rate"] is None
    grace_s = flags["benchmark_grace_period"]
    return RunOptions(
        model=flags["model"] or "",
        endpoint_type=flags["endpoint_type"],
        streaming=flags["streaming"],
        concurrency=flags["concurrency"],
        request_rate_per_s=flags["request_rate"],
        arrival_pattern=flags["arrival_pattern"] or "poisson",
        fixed_schedule=fixed_schedule,
        num_conversations=flags["num_conversations"],
        request_count=flags["request_count"],
        benchmark_duration_s=flags["benchmark_duration"],
        benchmark_grace_period_s=30.0 if grace_s is None else grace_s,
        warmup_request_count=flags["warmup_request_count"],
        inter_turn_delay_cap_s=flags["inter_turn_delay_cap_seconds"],
        speed=flags["speed"],
        fail_fast=flags["fail_fast"],
        extra_inputs=extra_inputs(flags["extra_inputs"]),
        use_legacy_max_tokens=flags["use_legacy_max_tokens"],
        session_header=flags["session_header"],
        session_prefix=flags["session_prefix"] or "extend",
        tokenizer=flags["tokenizer"],
        seed=flags["random_seed"],
    )


def refuse_nonsense(workload: Workload, flags: Mapping[str, Any]) -> None:
    schedule, rate = flags["fixed_schedule"], flags["request_rate"]
    count = flags["num_conversations"]
    modes = {session.mode for session in workload.sessions.values()}
    on_schedule = workload.timed and schedule is not False and flags["concurrency"] is None and rate is None
    problem = None
    if schedule and rate:
        problem = "--fixed-schedule and --request-rate both say when conversations start: give one of them"
    elif schedule and not workload.timed:
        problem = f"--fixed-schedule needs arrival times, and {workload.path} ({workload.format}) does not give them all"
    elif (schedule or on_schedule) and count and count > len(workload.roots):
        problem = (
            f"--num-conversations {count} is more than the {len(workload.roots)} of the file, whose arrival times can be "
            "replayed only once: add --concurrency or --request-rate to start conversations otherwise"
        )
    elif flags["arrival_pattern"] and not rate:
        problem = "--arrival-pattern says how a --request-rate is spaced: give a --request-rate with it"
    elif flags["benchmark_grace_period"] is not None and flags["benchmark_duration"] is None:
        problem = "--benchmark-grace-period follows a --benchmark-duration: give a --benchmark-duration with it"
    elif flags["session_prefix"] and "tokens" not in modes:
        problem = f"--session-prefix is for calls given by token counts, and {workload.path} ({workload.format}) has none"
    elif flags["endpoint_type"] == "completions" and modes - {"tokens", "verbatim"}:
        problem = (
            "--endpoint-type completions takes a prompt, and the conversations of "
            f"{workload.path} ({workload.format}) are chat messages: use --endpoint-type chat"
        )
    if problem:
        raise click.UsageError(problem)


def extra_inputs(given: Iterable[str]) -> dict[str, Any]:
    """Fields from key:value pairs and JSON objects, later ones over earlier ones; a value is JSON where it can be."""
    fields: dict[str, Any] = {}
    for text in given:
        if text.lstrip().startswith("{"):
            try:
                fields |= json.loads(text)
            except ValueError as error:
                raise click.UsageError(f"--extra-inputs {text!r} is not valid JSON: {error}") from None
            continue
        key, colon, value = text.partition(":")
        if not colon or not key.strip():
            raise click.UsageError(f"--extra-inputs {text!r} is neither key:value nor a JSON object")
        try:
            fields[key.strip()] = json.loads(value)
        except ValueError:
            fields[key.strip()] = value.strip()
    return fields


def headers(given: Iterable[str]) -> list[tuple[str, str]]:
    """Headers from NAME:VALUE."""
    pairs = []
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise click.UsageError(f"-H {text!r} is not NAME:VALUE")
        pairs.append((name.strip(), value.strip()))
    return pairs


def artifact_directory(options: RunOptions, model: str) -> str:
    """artifacts/MODEL-ENDPOINT-LOAD, as AIPerf names it."""
    if options.request_rate_per_s is not None:
        load = f"request_rate{options.request_rate_per_s:g}"
    elif options.fixed_schedule:
        load = "fixed_schedule"
    else:
        load = f"concurrency{options.concurrency or 1}"
    safe_model = re.sub(r"[^\w.-]+", "_", model).strip("._") or "model"
    return f"artifacts/{safe_model}-openai-{options.endpoint_type or 'chat'}-{load}"
