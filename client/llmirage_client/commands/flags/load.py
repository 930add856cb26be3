"""Options that say when conversations start, how many, and when the run ends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.flags.sections import flag, together

if TYPE_CHECKING:
    from llmirage_client.workload.session import Workload

_ARRIVALS = "Load"
_STOP = "Stop conditions"
_POSITIVE = click.IntRange(min=1)
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)
_NOT_NEGATIVE = click.FloatRange(min=0)

load_flags = together(
    flag(
        _ARRIVALS,
        "--concurrency",
        "--parallel",
        type=_POSITIVE,
        metavar="N",
        help="Root conversations at a time, each with all its children.  [default: 1, unless a rate or schedule rules]",
    ),
    flag(
        _ARRIVALS,
        "--request-rate",
        type=_ABOVE_ZERO,
        metavar="PER_S",
        help="Turns of root conversations per second.",
    ),
    flag(
        _ARRIVALS,
        "--arrival-pattern",
        "--request-rate-mode",
        type=click.Choice(["poisson", "constant"]),
        default="poisson",
        show_default=True,
        help="Gaps between arrivals at --request-rate.",
    ),
    flag(
        _ARRIVALS,
        "--fixed-schedule/--no-fixed-schedule",
        default=None,
        help="Start conversations at the file's own arrival times.  [default: if it has them and nothing above is given]",
    ),
    flag(
        _ARRIVALS,
        "--inter-turn-delay-cap-seconds",
        type=_NOT_NEGATIVE,
        metavar="S",
        help="The longest a think time or tool wait may be.",
    ),
    flag(
        _ARRIVALS,
        "--speed",
        type=_ABOVE_ZERO,
        default=1.0,
        show_default=True,
        metavar="N",
        help="The server runs N times faster than life (`llmirage serve --speed N`): arrivals and waits are divided by N, "
        "measured times multiplied by it.",
    ),
    flag(
        _ARRIVALS,
        "--random-seed",
        type=int,
        metavar="N",
        help="Same seed: same ids, arrivals and texts.  [default: drawn anew]",
    ),
    flag(
        _ARRIVALS,
        "--warmup-request-count",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help="First send N requests of root conversations that do not count.",
    ),
    flag(
        _STOP,
        "--request-count",
        type=_POSITIVE,
        metavar="N",
        help="Send at most N requests, those of forks and spawns included.",
    ),
    flag(
        _STOP,
        "--num-conversations",
        "--number",
        type=_POSITIVE,
        metavar="N",
        help="Run N root conversations, from the top again when the file has fewer.  [default: each once]",
    ),
    flag(_STOP, "--benchmark-duration", type=_ABOVE_ZERO, metavar="S", help="Send nothing more after S seconds."),
    flag(
        _STOP,
        "--benchmark-grace-period",
        type=_NOT_NEGATIVE,
        default=30.0,
        show_default=True,
        metavar="S",
        help="Wait so long after --benchmark-duration for replies under way.",
    ),
    flag(
        _STOP,
        "--fail-fast",
        is_flag=True,
        envvar="AIPERF_DAG_FAIL_FAST",
        help="Stop at the first failed request of a forked or spawned conversation.",
    ),
)


def load_fields(workload: Workload, settings: dict[str, Any]) -> dict[str, Any]:
    """Fields of RunOptions. Raises click.UsageError for what makes no sense together."""
    rate, concurrency, schedule = settings["request_rate"], settings["concurrency"], settings["fixed_schedule"]
    if schedule is None:
        schedule = workload.timed and rate is None and concurrency is None
    if schedule and not workload.timed:
        raise click.UsageError(f"--fixed-schedule: {workload.path} does not say when its conversations arrive")
    roots, wanted = len(workload.roots), settings["num_conversations"]
    if schedule and wanted is not None and wanted > roots:
        raise click.UsageError(
            f"--num-conversations {wanted}: the schedule of {workload.path} has {roots} conversations; "
            "with --no-fixed-schedule they are repeated"
        )
    if schedule and rate is not None:
        raise click.UsageError("--fixed-schedule and --request-rate both say when conversations start: give one of them")
    if concurrency is None and rate is None and not schedule:
        concurrency = 1
    seed = settings["random_seed"]
    return {
        "concurrency": concurrency,
        "request_rate_per_s": rate,
        "arrival_pattern": settings["arrival_pattern"],
        "fixed_schedule": schedule,
        "num_conversations": settings["num_conversations"],
        "request_count": settings["request_count"],
        "benchmark_duration_s": settings["benchmark_duration"],
        "benchmark_grace_period_s": settings["benchmark_grace_period"],
        "warmup_request_count": settings["warmup_request_count"],
        "inter_turn_delay_cap_s": settings["inter_turn_delay_cap_seconds"],
        "speed": settings["speed"],
        "fail_fast": settings["fail_fast"],
        "seed": int.from_bytes(os.urandom(6)) if seed is None else seed,
    }
