"""Options of the phase before the measured one."""

from __future__ import annotations

import math
from typing import Any

import click

from llmirage_client.commands.flags.lists import only
from llmirage_client.commands.flags.sections import flag, together

_SECTION = "Warm-up (turns of root conversations, sent before and not counted)"
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)

warmup_flags = together(
    flag(
        _SECTION,
        "--warmup-request-count",
        "--num-warmup-requests",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Send N requests.",
    ),
    flag(
        _SECTION,
        "--num-warmup-sessions",
        "--warmup-num",
        type=_ABOVE_ZERO,
        metavar="N|SHARE",
        help="Run N conversations; below 1, that share of --num-conversations. The measured ones follow after them.",
    ),
    flag(_SECTION, "--warmup-duration", type=_ABOVE_ZERO, metavar="S", help="Send for S seconds."),
    flag(
        _SECTION,
        "--warmup-grace-period",
        type=click.FloatRange(min=0),
        metavar="S",
        help="Wait so long after --warmup-duration for replies under way.  [default: for all]",
    ),
    flag(
        _SECTION,
        "--warmup-concurrency",
        type=click.IntRange(min=1),
        metavar="N",
        help="Conversations at a time.  [default: the load of the run]",
    ),
    flag(_SECTION, "--warmup-concurrency-ramp-duration", type=_ABOVE_ZERO, metavar="S", help="From 1 up to that."),
    flag(
        _SECTION,
        "--warmup-request-rate",
        type=_ABOVE_ZERO,
        metavar="R",
        help="Turns per second.  [default: the load of the run]",
    ),
    flag(_SECTION, "--warmup-request-rate-ramp-duration", type=_ABOVE_ZERO, metavar="S", help="From 0 up to that."),
    flag(
        _SECTION,
        "--warmup-arrival-pattern",
        type=click.Choice(["poisson", "constant", "gamma"]),
        help="Gaps between arrivals at a rate.  [default: those of the run]",
    ),
)


def warmup_fields(settings: dict[str, Any]) -> dict[str, Any]:
    """Fields of RunOptions. Raises click.UsageError for what makes no sense together."""
    count, duration_s = settings["warmup_request_count"], settings["warmup_duration"]
    sessions, conversations = settings["num_warmup_sessions"], only(settings["num_conversations"])
    if sessions is not None and sessions < 1:
        if conversations is None:
            raise click.UsageError(
                f"--num-warmup-sessions {sessions:g} is a share of --num-conversations, which is not given"
            )
        sessions = max(round(sessions * conversations), 1)
    if sessions is not None and sessions != int(sessions):
        raise click.UsageError(f"--num-warmup-sessions {sessions:g} is neither a whole number nor a share below 1")
    if not count and sessions is None and duration_s is None:
        for name in _LOAD_NAMES:
            if settings[name] is not None:
                word = name.replace("_", "-")
                raise click.UsageError(
                    f"--{word}: there is no warm-up; give it a --warmup-request-count, a --num-warmup-sessions or a "
                    "--warmup-duration"
                )
    if settings["warmup_grace_period"] is not None and duration_s is None:
        raise click.UsageError("--warmup-grace-period comes after --warmup-duration, which is not given")
    if settings["warmup_concurrency_ramp_duration"] is not None and settings["warmup_concurrency"] is None:
        raise click.UsageError("--warmup-concurrency-ramp-duration needs --warmup-concurrency, where the ramp ends")
    if settings["warmup_request_rate_ramp_duration"] is not None and settings["warmup_request_rate"] is None:
        raise click.UsageError("--warmup-request-rate-ramp-duration needs --warmup-request-rate, where the ramp ends")
    grace_s = settings["warmup_grace_period"]
    return {
        "warmup_request_count": count,
        "warmup_num_conversations": None if sessions is None else int(sessions),
        "warmup_duration_s": duration_s,
        "warmup_grace_period_s": math.inf if grace_s is None else grace_s,
        "warmup_concurrency": settings["warmup_concurrency"],
        "warmup_concurrency_ramp_s": settings["warmup_concurrency_ramp_duration"],
        "warmup_request_rate_per_s": settings["warmup_request_rate"],
        "warmup_request_rate_ramp_s": settings["warmup_request_rate_ramp_duration"],
        "warmup_arrival_pattern": settings["warmup_arrival_pattern"],
    }


_LOAD_NAMES = (
    "warmup_grace_period",
    "warmup_concurrency",
    "warmup_concurrency_ramp_duration",
    "warmup_request_rate",
    "warmup_request_rate_ramp_duration",
    "warmup_arrival_pattern",
)
