"""Options that say when conversations start, which, how many, and when the run ends."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.flags.contradictions import load_contradictions
from llmirage_client.commands.flags.lists import NumberList, only
from llmirage_client.commands.flags.sections import flag, together

if TYPE_CHECKING:
    from llmirage_client.load.options import RunOptions
    from llmirage_client.load.rates import RateSeries
    from llmirage_client.workload.session import Workload

_LOAD = "Load"
_STOP = "Stop conditions"
_POSITIVE = click.IntRange(min=1)
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)
_NOT_NEGATIVE = click.FloatRange(min=0)
_GRACE_S = 30.0

load_flags = together(
    flag(
        _LOAD,
        "--concurrency",
        "--parallel",
        type=NumberList(whole=True),
        metavar="N[,N...]",
        help="Root conversations at a time, each with all its children; several numbers make a sweep.  [default: 1, unless "
        "a rate or schedule rules]",
    ),
    flag(
        _LOAD,
        "--concurrency-ramp-duration",
        type=_ABOVE_ZERO,
        metavar="S",
        help="From 1 to --concurrency by ones over S seconds.",
    ),
    flag(
        _LOAD,
        "--request-rate",
        "--rate",
        type=NumberList(whole=False),
        metavar="R[,R...]",
        help="Turns of root conversations per second; several numbers make a sweep.",
    ),
    flag(
        _LOAD,
        "--request-rate-ramp-duration",
        type=_ABOVE_ZERO,
        metavar="S",
        help="From 0 to --request-rate along a line over S seconds.",
    ),
    flag(
        _LOAD,
        "--request-rate-series",
        metavar="S:R,...|FILE",
        help="A rate along straight lines between points, such as 0:1,60:10,120:10 or a file of them; then the last holds.",
    ),
    flag(
        _LOAD,
        "--arrival-pattern",
        "--request-rate-mode",
        type=click.Choice(["poisson", "constant", "gamma"]),
        help="Gaps between arrivals at a rate.  [default: poisson; gamma with --arrival-smoothness]",
    ),
    flag(
        _LOAD,
        "--arrival-smoothness",
        "--vllm-burstiness",
        "--burstiness",
        type=_ABOVE_ZERO,
        metavar="K",
        help="Shape of gamma gaps: below 1 bursts, 1 is poisson, above 1 more regular.",
    ),
    flag(
        _LOAD,
        "--user-centric-rate",
        type=_ABOVE_ZERO,
        metavar="R",
        help="Turns per second of --num-users together: each user sends one every num-users / R seconds.",
    ),
    flag(_LOAD, "--num-users", type=_POSITIVE, metavar="N", help="Users of --user-centric-rate."),
    flag(
        _LOAD,
        "--fixed-schedule/--no-fixed-schedule",
        default=None,
        help="Start conversations at the file's own arrival times.  [default: if it has them and nothing above is given]",
    ),
    flag(
        _LOAD,
        "--fixed-schedule-speedup",
        type=_ABOVE_ZERO,
        metavar="N",
        help="Arrivals N times as fast as in the file; think times and tool waits stay.",
    ),
    flag(
        _LOAD,
        "--fixed-schedule-start-offset",
        type=_NOT_NEGATIVE,
        metavar="MS",
        help="Leave out what arrives before MS milliseconds of the schedule, and begin there.",
    ),
    flag(
        _LOAD,
        "--fixed-schedule-end-offset",
        type=_NOT_NEGATIVE,
        metavar="MS",
        help="Leave out what arrives after MS milliseconds of the schedule.",
    ),
    flag(
        _LOAD,
        "--fixed-schedule-auto-offset",
        is_flag=True,
        help="Begin with the first arrival, whatever its time.  [traces do so by themselves]",
    ),
    flag(
        _LOAD,
        "--conversation-turn-delay-mean",
        "--session-turn-delay-mean",
        type=_NOT_NEGATIVE,
        metavar="MS",
        help="Think times before further turns, normal around MS milliseconds, instead of the file's own.",
    ),
    flag(
        _LOAD,
        "--conversation-turn-delay-stddev",
        "--session-turn-delay-stddev",
        type=_NOT_NEGATIVE,
        metavar="MS",
        help="Their standard deviation.  [default: 0]",
    ),
    flag(
        _LOAD,
        "--inter-turn-delay-cap-seconds",
        type=_NOT_NEGATIVE,
        metavar="S",
        help="The longest a think time or tool wait may be.",
    ),
    flag(
        _LOAD,
        "--conversation-turn-delay-ratio",
        "--session-delay-ratio",
        type=_NOT_NEGATIVE,
        default=1.0,
        show_default=True,
        metavar="N",
        help="Think times and tool waits N times as long as in the file.",
    ),
    flag(
        _LOAD,
        "--dataset-sampling-strategy",
        type=click.Choice(["sequential", "shuffle", "random"]),
        default="sequential",
        show_default=True,
        help="Order of the conversations: the file's; all in a random order, then all in another; or drawn with "
        "replacement. By --random-seed.",
    ),
    flag(
        _LOAD,
        "--request-cancellation-rate",
        type=click.FloatRange(min=0, max=100),
        metavar="PERCENT",
        help="Cancel so many of the requests; they are recorded as cancelled, and their conversations go on.",
    ),
    flag(
        _LOAD,
        "--request-cancellation-delay",
        type=_NOT_NEGATIVE,
        metavar="S",
        help="Cancel S seconds after the whole request is out, unless the reply is complete.  [default: 0]",
    ),
    flag(
        _LOAD,
        "--speed",
        type=_ABOVE_ZERO,
        default=1.0,
        show_default=True,
        metavar="N",
        help="The server runs N times faster than life (`llmirage serve --speed N`): arrivals and waits are divided by N, "
        "measured times multiplied by it.",
    ),
    flag(
        _LOAD,
        "--random-seed",
        type=int,
        metavar="N",
        help="Same seed: same ids, order, arrivals, cancellations and texts.  [default: drawn anew]",
    ),
    flag(
        _STOP,
        "--request-count",
        "--num-requests",
        type=NumberList(whole=True),
        metavar="N[,N...]",
        help="Send at most N requests, those of forks and spawns included; what is cut short is counted in branch_stats.",
    ),
    flag(
        _STOP,
        "--num-conversations",
        "--num-sessions",
        "--number",
        type=NumberList(whole=True),
        metavar="N[,N...]",
        help="Run N root conversations with all their children, from the top again when the file has fewer.  [default: "
        "each once]",
    ),
    flag(
        _STOP,
        "--duration",
        type=_ABOVE_ZERO,
        metavar="S",
        help="Begin no conversation after S seconds; each one that began sends all its turns.",
    ),
    flag(
        _STOP,
        "--benchmark-duration",
        type=_ABOVE_ZERO,
        metavar="S",
        help="Send nothing more after S seconds, in the middle of conversations too.",
    ),
    flag(
        _STOP,
        "--benchmark-grace-period",
        type=_NOT_NEGATIVE,
        metavar="S",
        help=f"Wait so long after --benchmark-duration for replies under way; inf waits for all.  [default: {_GRACE_S:g}]",
    ),
    flag(_STOP, "--fail-fast", is_flag=True, help="Stop at the first failed request, with exit status 1."),
)


def load_fields(workload: Workload, settings: dict[str, Any]) -> dict[str, Any]:
    """Fields of RunOptions for one point of load. Raises click.UsageError for what makes no sense together."""
    series = _series(settings["request_rate_series"])
    rate, concurrency, schedule = only(settings["request_rate"]), only(settings["concurrency"]), settings["fixed_schedule"]
    paced = any(value is not None for value in (rate, series, settings["user_centric_rate"]))
    if schedule is None:
        schedule = workload.timed and not paced and concurrency is None
    if problems := list(load_contradictions(settings, schedule)):
        raise click.UsageError("\n".join(problems))
    if schedule and not workload.timed:
        raise click.UsageError(f"--fixed-schedule: {workload.path} does not say when its conversations arrive")
    if concurrency is None and not paced and not schedule:
        concurrency = 1
    seed, grace_s = settings["random_seed"], settings["benchmark_grace_period"]
    smoothness, delay_ms = settings["arrival_smoothness"], settings["conversation_turn_delay_mean"]
    start_ms, end_ms = settings["fixed_schedule_start_offset"], settings["fixed_schedule_end_offset"]
    return {
        "concurrency": concurrency,
        "concurrency_ramp_s": settings["concurrency_ramp_duration"] or 0.0,
        "request_rate_per_s": rate,
        "request_rate_ramp_s": settings["request_rate_ramp_duration"] or 0.0,
        "request_rate_series": series,
        "arrival_pattern": settings["arrival_pattern"] or ("poisson" if smoothness is None else "gamma"),
        "arrival_smoothness": 1.0 if smoothness is None else smoothness,
        "user_rate_per_s": settings["user_centric_rate"],
        "num_users": settings["num_users"] or 0,
        "fixed_schedule": schedule,
        "schedule_speedup": settings["fixed_schedule_speedup"] or 1.0,
        "schedule_start_s": (start_ms or 0.0) / 1e3,
        "schedule_end_s": math.inf if end_ms is None else end_ms / 1e3,
        "schedule_auto_offset": settings["fixed_schedule_auto_offset"],
        "inter_turn_delay_mean_s": None if delay_ms is None else delay_ms / 1e3,
        "inter_turn_delay_std_s": (settings["conversation_turn_delay_stddev"] or 0.0) / 1e3,
        "inter_turn_delay_cap_s": settings["inter_turn_delay_cap_seconds"],
        "inter_turn_delay_factor": settings["conversation_turn_delay_ratio"],
        "sampling": settings["dataset_sampling_strategy"],
        "cancellation_share": (settings["request_cancellation_rate"] or 0.0) / 100,
        "cancellation_delay_s": settings["request_cancellation_delay"] or 0.0,
        "num_conversations": only(settings["num_conversations"]),
        "request_count": only(settings["request_count"]),
        "soft_duration_s": settings["duration"],
        "benchmark_duration_s": settings["benchmark_duration"],
        "benchmark_grace_period_s": _GRACE_S if grace_s is None else grace_s,
        "speed": settings["speed"],
        "fail_fast": settings["fail_fast"],
        "fail_fast_children": os.environ.get("AIPERF_DAG_FAIL_FAST", "").lower() in ("1", "true", "yes", "on"),
        "seed": int.from_bytes(os.urandom(6)) if seed is None else seed,
    }


def check_schedule(workload: Workload, options: RunOptions) -> None:
    """Raises click.UsageError when a fixed schedule has not the conversations that are asked for."""
    from llmirage_client.load.plan import scheduled_roots

    if not options.fixed_schedule:
        return
    roots, wanted = scheduled_roots(workload, options), options.num_conversations
    if not roots:
        times = [workload.sessions[root].arrival_s or 0.0 for root in workload.roots]
        raise click.UsageError(
            "no conversation arrives between --fixed-schedule-start-offset and --fixed-schedule-end-offset: the schedule of "
            f"{workload.path} runs from {min(times) * 1e3:,.0f} to {max(times) * 1e3:,.0f} ms"
        )
    if wanted is not None and wanted > roots:
        raise click.UsageError(
            f"--num-conversations {wanted}: the schedule of {workload.path} has {roots} conversations; "
            "with --no-fixed-schedule they are repeated"
        )


def _series(text: str | None) -> RateSeries | None:
    from llmirage_client.load.rate_series import RateSeriesError, read_rate_series

    try:
        return None if text is None else read_rate_series(text)
    except RateSeriesError as error:
        raise click.UsageError(f"--request-rate-series: {error}") from None
