"""MLPerf's audit of output caching (TEST04): distinct samples, then one of them again and again, which must not be faster.

As mlcommons/endpoints has it (compliance/audit_test), with its files; only successful requests count as completed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmirage_client.load.plan import run_name
from llmirage_client.load.runner import run_on_best_loop
from llmirage_client.operations.one_run import INTERRUPTED, OneRun, Outcome, RunWatch
from llmirage_client.operations.run import RequestedRun
from llmirage_client.report.output_files import new_folder, write_json, write_text
from llmirage_client.report.screen import Block, ScreenTable, count, number
from llmirage_client.settings.run import RunSettings
from llmirage_client.workload.session import Workload
from llmirage_shared.plural import plural
from llmirage_shared.settings import ConfigError

TEST = "output_caching_test"
FAILED = 1  # the exit status, as MLPerf's
_LENGTHS = ("input_sequence_length", "output_sequence_length")


@dataclass(frozen=True, slots=True)
class AuditPhase:
    """One of the two runs. requested, completed: samples; qps: completed ones a second of the cluster's time.

    lengths: mean tokens of prompts and of replies, where they are known.
    """

    requested: int
    completed: int
    qps: float
    lengths: tuple[float | None, float | None]

    @classmethod
    def of(cls, outcome: Outcome, requested: int) -> AuditPhase:
        metrics = outcome.metrics
        found = [metrics.per_request.get(tag) for tag in _LENGTHS]
        lengths = tuple(None if one is None else one.avg for one in found)
        completed = sum(record.ok and record.phase == "profiling" for record in outcome.result.records)
        return cls(requested, completed, metrics.whole_run.get("request_throughput", 0.0), (lengths[0], lengths[1]))


@dataclass(frozen=True, slots=True)
class Audit:
    """The verdict. files: of both phases, of the verdict, and its one-line form for MLPerf's checkers."""

    reference: AuditPhase
    repeated: AuditPhase
    threshold: float
    files: tuple[Path, ...] = ()

    @property
    def is_complete(self) -> bool:
        return all(one.completed >= one.requested * (1 - self.threshold) > 0 for one in (self.reference, self.repeated))

    @property
    def passed(self) -> bool:
        return self.is_complete and self.repeated.qps < self._limit

    @property
    def _limit(self) -> float:
        return self.reference.qps * (1 + self.threshold)

    @property
    def reason(self) -> str:
        one, other = self.reference, self.repeated
        if not self.is_complete:
            return (
                f"Phase incomplete: reference {one.completed}/{one.requested}, audit {other.completed}/{other.requested} "
                f"(threshold {self.threshold:.0%})"
            )
        sign = "<" if self.passed else ">="
        return f"audit_qps={other.qps:.4f} {sign} ref_qps * (1 + {self.threshold:.0%}) = {self._limit:.4f}"

    def as_dict(self) -> dict[str, Any]:
        """Return the content of audit_output_caching_test.json."""
        return {
            "test": TEST,
            "passed": self.passed,
            "ref_qps": self.reference.qps,
            "audit_qps": self.repeated.qps,
            "threshold": self.threshold,
            "ref_completed": self.reference.completed,
            "ref_requested": self.reference.requested,
            "audit_completed": self.repeated.completed,
            "audit_requested": self.repeated.requested,
            "reason": self.reason,
        }

    def blocks(self) -> list[Block]:
        """Return the report for a screen."""
        table = ScreenTable(("phase", "samples", "completed", "per second", "prompt tokens", "reply tokens"))
        for name, phase in (("distinct samples", self.reference), ("one sample repeated", self.repeated)):
            means = ["-" if mean is None else number(mean) for mean in (phase.qps, *phase.lengths)]
            table.add_row(name, count(phase.requested), count(phase.completed), *means)
        verdict = "passed: the repeated sample was not faster" if self.passed else "FAILED"
        lines: list[Block] = [f"Output caching (MLPerf TEST04): {verdict}. {self.reason}", "", table]
        if self.is_complete and not self.passed:
            lines += [
                "",
                "Replies may be cached; so may prompts (a prefix cache), or the sample is shorter than others "
                "(--set audit_sample_index=N repeats another).",
            ]
        return [*lines, "", f"Files: {self.files[-1].parent}"] if self.files else lines


def audit_output_caching(requested: RequestedRun, settings: RunSettings, watch: RunWatch) -> tuple[Audit | None, int]:
    """Run both phases; return the verdict, None if the user stopped one, and the exit status.

    Raises ConfigError for a workload that cannot be audited, RefusedError as a run does, OSError for files.
    """
    samples = _samples(requested, settings)
    given = settings.artifact_dir
    folder = (new_folder(run_name(requested.options, requested.workload, TEST)) if given is None else Path(given)) / "audit"
    phases, files = [], []
    for name, workload in (
        ("reference", requested.workload),
        ("output_caching", _repeated(requested.workload, settings.audit_sample_index)),
    ):
        outcome = _phase(replace(requested, workload=workload), samples, folder / name, watch)
        if outcome.interrupted or outcome.result.cancelled:
            return None, INTERRUPTED if outcome.interrupted else FAILED
        phases.append(AuditPhase.of(outcome, samples))
        files += outcome.files
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f"audit_{TEST}.json", folder / f"verify_{TEST.upper()}.txt"
    audit = Audit(phases[0], phases[1], settings.audit_threshold, (*files, *written))
    write_json(written[0], audit.as_dict())
    write_text(written[1], f"Performance check pass: {audit.passed}\n")
    return audit, 0 if audit.passed else FAILED


def _phase(requested: RequestedRun, samples: int, folder: Path, watch: RunWatch) -> Outcome:
    options = replace(requested.options, num_conversations=samples, request_count=None, vary=False, sampling="sequential")
    shown: Mapping[str, Any] = {**requested.shown, "concurrency": options.concurrency, "num_conversations": samples}
    run = OneRun(replace(requested, options=options, shown=shown), lambda _: folder, watch)
    return run.outcome(run_on_best_loop(run))


def _samples(requested: RequestedRun, settings: RunSettings) -> int:
    """Return how many samples each phase has. Raises ConfigError for what MLPerf refuses, too."""
    workload, options = requested.workload, requested.options
    there = len(workload.roots) - workload.skipped
    samples = options.request_count or options.num_conversations or there
    problems = []
    if any(len(session.turns) != 1 for session in workload.sample) or len(workload.sessions) != len(workload.roots):
        problems.append(f"audit: {workload.path} has conversations of several requests; samples are single ones")
    if samples > there:
        problems.append(f"audit: {samples:,} distinct samples were asked for, and {workload.path} has {there:,}")
    if settings.audit_sample_index >= there:
        problems.append(f"audit_sample_index: {workload.path} has {plural(there, 'sample')}, from 0 to {there - 1}")
    if problems:
        raise ConfigError(problems)
    return samples


def _repeated(workload: Workload, index: int) -> Workload:
    name = workload.roots[index]
    return replace(workload, sessions={name: workload.sessions[name]}, roots=(name,), skipped=0)
