"""The verdict on a run of a scenario: is it a valid submission, and if not, why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from llmirage_shared.plural import plural, rounded
from llmirage_shared.statistics import Floats

COVERAGE = 0.95  # of the duration, up to the last observation
COVERED_FROM_S = 900.0  # shorter durations are not judged
OVERFLOW_SHARE = 0.01


@dataclass(slots=True)
class ReplayCounts:
    """Counts of a run over recorded trees that its records do not have.

    context_overflows: requests of the profile whose prompt was too long for the model.
    prefix_hits, prefix_blocks: by phase, blocks of the completed requests' prompts that an earlier request of the same
        recording began with, and blocks in all.
    skipped_s: idle time that was left out, by whose it was.
    lanes: where each lane began.
    """

    context_overflows: int = 0
    prefix_hits: dict[str, int] = field(default_factory=dict)
    prefix_blocks: dict[str, int] = field(default_factory=dict)
    skipped_s: dict[str, float] = field(default_factory=dict)
    lanes: list[dict[str, Any]] = field(default_factory=list)

    def add_prefix(self, phase: str, hits: int, blocks: int) -> None:
        self.prefix_hits[phase] = self.prefix_hits.get(phase, 0) + hits
        self.prefix_blocks[phase] = self.prefix_blocks.get(phase, 0) + blocks

    def theoretical_prefix_cache_hit(self, phase: str) -> dict[str, Any] | None:
        """Return the metric of that name; None without blocks."""
        blocks, hits = self.prefix_blocks.get(phase, 0), self.prefix_hits.get(phase, 0)
        return {"unit": "%", "avg": 100 * hits / blocks, "count": blocks, "sum": hits} if blocks else None


@dataclass(slots=True)
class PerformanceWindow:
    """The time in which every slot has work, from the first request on.

    end_s: when a conversation finished and no further one was left to begin; None: not yet.
    unsent: turns that were not sent as an earlier one of their conversation had failed in that time.
    """

    end_s: float | None = None
    unsent: int = 0

    def note_unsent(self, turns: int) -> None:
        """Count the turns left of a conversation that has ended with a failure."""
        if self.end_s is None:
            self.unsent += turns


@dataclass(slots=True, frozen=True)
class Coverage:
    """Up to which share of the duration first tokens came, and replies of several tokens ended.

    largest_gap_s: the longest time without either.
    """

    expected_duration_seconds: float
    ttft_ratio: float
    inter_token_latency_ratio: float
    largest_gap_s: float
    required_ratio: float = COVERAGE
    phase_name: str = "profiling"

    @property
    def met(self) -> bool:
        return min(self.ttft_ratio, self.inter_token_latency_ratio) >= self.required_ratio


@dataclass(slots=True, frozen=True)
class Submission:
    """reasons: why the run is no valid submission; none: it is one. violations: of the scenario's rules, overridden.

    performance: figures by the scenario's own definitions, where it has some.
    """

    scenario: str
    reasons: tuple[str, ...]
    violations: tuple[str, ...] = ()
    coverage: Coverage | None = None
    performance: Mapping[str, Any] | None = None

    @property
    def failed(self) -> bool:
        """True if the exit status says so, too."""
        return self.coverage is not None and not self.coverage.met

    def metadata(self) -> dict[str, Any]:
        """Return the verdict for JSON."""
        found: dict[str, Any] = {"scenario": self.scenario, "submission_valid": not self.reasons}
        if self.reasons:
            found["submission_invalid_reasons"] = list(self.reasons)
        if self.coverage is not None:
            known = asdict(self.coverage)
            known.pop("largest_gap_s")
            found["metric_duration_coverage"] = [known]
        if self.performance is not None:
            found["performance"] = dict(self.performance)
        return found

    def notes(self) -> list[str]:
        """Return the verdict in words."""
        said = [f"Scenario {self.scenario}: violated: {violation}" for violation in self.violations]
        if self.coverage is not None:
            said.append(
                f"Scenario {self.scenario}: first tokens came up to {self.coverage.ttft_ratio:.1%} of the duration, replies "
                f"up to {self.coverage.inter_token_latency_ratio:.1%}, of {COVERAGE:.0%} at least; the longest time without "
                f"either was {self.coverage.largest_gap_s:,.1f} s."
            )
        if self.performance is not None:
            found = self.performance
            said.append(
                f"Scenario {self.scenario}: {rounded(found['qps'], 3)} turns/s in {found['duration_ns'] / 1e9:,.1f} s with "
                f"work for all slots, {rounded(found['successful_qps'], 3)} of them successful; "
                f"{found['n_samples_failed']:,} of {plural(found['n_samples_issued'], 'turn')} failed, "
                f"{found['n_samples_unsent']:,} more were not sent."
            )
        if self.reasons:
            said.append(f"Scenario {self.scenario}: no valid submission: {', '.join(self.reasons)}.")
        return said


def submission_of(
    replay: ReplayCounts,
    completed: int,
    first_s: Floats,
    ended_s: Floats,
    *,
    scenario: str,
    violations: tuple[str, ...],
    start_s: float,
    duration_s: float | None,
    speed: float,
    cancelled: bool,
) -> Submission:
    """Judge a run.

    completed: requests of the profile, with those that failed. first_s, ended_s: its first tokens, and the ends of its
        replies of several tokens. start_s: when it began. duration_s: as it was asked for.
    """
    reasons = ["unsafe_override"] if violations else []
    overflows = replay.context_overflows
    if overflows and overflows / (completed + overflows) > OVERFLOW_SHARE:
        reasons.append("context_overflow_rate_exceeded")
    if cancelled:
        reasons.append("run_cancelled")
    coverage = None
    if duration_s is not None and duration_s >= COVERED_FROM_S and not cancelled:
        coverage = _coverage(first_s, ended_s, start_s, duration_s, speed)
        if not coverage.met:
            reasons.append("insufficient_profile_metric_coverage")
    return Submission(scenario, tuple(reasons), violations, coverage)


def _coverage(first_s: Floats, ended_s: Floats, start_s: float, duration_s: float, speed: float) -> Coverage:
    seen_s = np.sort(np.concatenate([[start_s], first_s, ended_s, [start_s + duration_s / speed]]))
    return Coverage(
        expected_duration_seconds=duration_s,
        ttft_ratio=float((first_s.max(initial=start_s) - start_s) * speed / duration_s),
        inter_token_latency_ratio=float((ended_s.max(initial=start_s) - start_s) * speed / duration_s),
        largest_gap_s=float(np.diff(seen_s).max(initial=0.0)) * speed,
    )
