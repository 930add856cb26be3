"""Options of the load that cannot be meant together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def load_contradictions(settings: dict[str, Any], schedule: bool) -> Iterator[str]:
    """One sentence for each contradiction. schedule: whether the run keeps to the file's own times."""

    def given(name: str) -> bool:
        return settings[name] is not None

    paces = [name for name in ("request_rate", "request_rate_series", "user_centric_rate") if given(name)]
    words = [*(["--fixed-schedule"] if schedule else []), *(f"--{name.replace('_', '-')}" for name in paces)]
    if len(words) > 1:
        yield f"{' and '.join(words)} each say when requests start: give one of them"
    if given("num_users") != given("user_centric_rate"):
        yield "--user-centric-rate and --num-users go together: the one says how often all users send, the other how many"
    at_a_rate = given("request_rate") or given("request_rate_series")
    for name in ("arrival_pattern", "arrival_smoothness"):
        if given(name) and not at_a_rate:
            yield f"--{name.replace('_', '-')} is about --request-rate or --request-rate-series, and neither is given"
    if given("arrival_smoothness") and settings["arrival_pattern"] not in (None, "gamma"):
        yield f"--arrival-smoothness is the shape of gamma gaps, not of {settings['arrival_pattern']} ones"
    if given("concurrency_ramp_duration") and not given("concurrency"):
        yield "--concurrency-ramp-duration needs --concurrency, where the ramp ends"
    if given("request_rate_ramp_duration") and not given("request_rate"):
        yield "--request-rate-ramp-duration needs --request-rate, where the ramp ends"
    for name in ("speedup", "start_offset", "end_offset", "auto_offset"):
        if settings[f"fixed_schedule_{name}"] not in (None, False) and not schedule:
            yield f"--fixed-schedule-{name.replace('_', '-')} needs a fixed schedule, and this run has none"
    start_ms, end_ms = settings["fixed_schedule_start_offset"], settings["fixed_schedule_end_offset"]
    if start_ms is not None and settings["fixed_schedule_auto_offset"]:
        yield "--fixed-schedule-start-offset and --fixed-schedule-auto-offset both say where the schedule begins"
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        yield f"--fixed-schedule-end-offset {end_ms:g} comes before --fixed-schedule-start-offset {start_ms:g}"
    if schedule and settings["dataset_sampling_strategy"] != "sequential":
        yield f"--dataset-sampling-strategy {settings['dataset_sampling_strategy']}: a fixed schedule has its own order"
    if given("conversation_turn_delay_stddev") and not given("conversation_turn_delay_mean"):
        yield "--conversation-turn-delay-stddev needs --conversation-turn-delay-mean, around which think times are drawn"
    if given("request_cancellation_delay") and not given("request_cancellation_rate"):
        yield "--request-cancellation-delay needs --request-cancellation-rate, which says how many are cancelled"
    if given("benchmark_grace_period") and not given("benchmark_duration"):
        yield "--benchmark-grace-period comes after --benchmark-duration, which is not given (--duration needs none)"
    soft_s, hard_s = settings["duration"], settings["benchmark_duration"]
    if soft_s is not None and hard_s is not None and soft_s >= hard_s:
        yield f"--duration {soft_s:g} would never come: --benchmark-duration {hard_s:g} ends the run before"
