"""The part of a run that both interpreters share: its phases, and its result."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from random import Random
from typing import Any, Literal

from llmirage_client.load.conversation import Conversation, Family, Identifiers
from llmirage_client.load.lanes import Lanes
from llmirage_client.load.options import RunOptions
from llmirage_client.load.phase import Interpreter, Phase
from llmirage_client.load.plan import Sampler
from llmirage_client.load.plays import known_prefixes, streams_of
from llmirage_client.load.saturation import rate_note
from llmirage_client.measure.record import Record, RunResult
from llmirage_client.measure.submission import ReplayCounts
from llmirage_client.workload.session import Workload
from llmirage_shared.plural import plural

PhaseName = Literal["warmup", "profiling"]


_RECENT_TREES = 256


class WarmUpError(Exception):
    """A failed warm-up, after which nothing may be measured; the message is for the user."""


class AnyRunner:
    """The base of load.runner.Runner (an event loop) and simulate.simulation.EngineRun (virtual time)."""

    def __init__(self, workload: Workload, options: RunOptions) -> None:
        self._branching = workload.branching
        self._workload = workload
        self._options = options
        self._sampler = Sampler(workload, options.sampling, options.seed, options.first_root, options.share, options.vary)
        self._warmed_roots = 0
        self._identifiers = Identifiers(options.seed)
        self._family = Family(workload, self._identifiers, options.share)
        self._lanes = None if options.lanes is None else Lanes(workload, options, self._sampler)
        self._replay = ReplayCounts() if self._lanes is None else self._lanes.replay
        first = next((turn for session in workload.sample for turn in session.turns), None)
        recorded = first is not None and first.recorded_s is not None and first.synthetic is not None
        self._known = lru_cache(_RECENT_TREES)(partial(_known_prefixes, workload)) if recorded else None
        self._phase: Phase | None = None
        self._cancel_reason: str | None = None

    def cancel(self, reason: str) -> None:
        """Send no further request; cancel those in flight and record them as cancelled. Idempotent."""
        self._cancel_reason = self._cancel_reason or reason
        if self._phase is not None:
            self._phase.cancel()

    @property
    def roots_taken(self) -> int:
        """Number of roots taken in their order, from which a following run finds new conversations."""
        return self._sampler.taken

    def _phases(self) -> Iterator[tuple[PhaseName, RunOptions, Random]]:
        """Yield the phases to run one after the other, with their options and their random generator."""
        seed = self._options.seed
        warm_up = self._options.of_warm_up()
        if warm_up is not None and any(self._workload.sessions[root].turns for root in self._workload.roots):
            yield "warmup", warm_up, Random(seed if seed is None else f"warmup {seed}")
            self._warmed_roots = self._sampler.taken - self._options.first_root
        if self._lanes is not None and self._lanes.failed_roots:
            raise WarmUpError(self._lanes.problem)
        yield "profiling", self._options, Random(seed)

    def _begin(self, name: PhaseName, options: RunOptions, rng: Random, interpreter: Interpreter) -> Phase:
        """Return the phase that runs now; in a run that was cancelled before, it sends nothing."""
        succeeded = None if self._known is None else partial(self._count_prefix, name)
        self._phase = Phase(
            name, self._workload, options, self._sampler, self._family, interpreter, rng, self._lanes, succeeded
        )
        if self._cancel_reason is not None:
            self._phase.cancel()
        return self._phase

    def _count_prefix(self, phase: PhaseName, conversation: Conversation) -> None:
        """Count how much of the prompt of a request that has succeeded was in the recording before."""
        assert self._known is not None
        assert conversation.turn_index is not None
        root = conversation
        while root.parent is not None:
            root = root.parent
        counts = self._known(root.session.id).get((conversation.session.id, conversation.turn_index), (0, 0))
        self._replay.add_prefix(phase, *counts)

    def _result(
        self,
        phase: Phase,
        times: tuple[float, float, float],
        records: list[Record],
        apis: set[str],
        inputs: list[dict[str, Any]],
    ) -> RunResult:
        """Return the result. times: when the last phase began, by the run's clock and in Unix time, and when it ended."""
        if phase.failed_fast is not None:
            self._cancel_reason = f"a request of conversation {phase.failed_fast!r} failed, and --fail-fast is set"
        if self._lanes is not None and self._lanes.problem is not None:
            self._cancel_reason = self._cancel_reason or self._lanes.problem
        options = self._options
        start_s, start_unix_s, end_s = times
        return RunResult(
            records=records,
            branch_stats=phase.stats if self._branching else None,
            start_s=start_s,
            end_s=end_s,
            start_unix_s=start_unix_s,
            cancelled=self._cancel_reason is not None,
            cancel_reason=self._cancel_reason,
            speed=options.speed,
            model=options.model,
            endpoint=" and ".join(sorted(apis)) or "chat",
            streaming=options.streaming,
            workload_format=self._workload.format,
            workload_path=self._workload.path,
            inputs=inputs,
            replay=None if self._lanes is None and self._known is None else self._replay,
            window=phase.window,
            notes=[*self._workload.notes, *self._notes(phase, records)],
        )

    def _notes(self, phase: Phase, records: list[Record]) -> Iterator[str]:
        if phase.left_unfinished:
            left = "1 conversation was" if phase.left_unfinished == 1 else f"{phase.left_unfinished} conversations were"
            why = "nothing waits for pre_session_spawns, and all that the run does wait for was done"
            yield f"{left} left unfinished: {why}."
        options = self._options
        refusals = (record.exchange.error for record in records)
        if options.tool_results is None and any(e and e.code == 400 and "tool_call" in e.message for e in refusals):
            yield (
                "The endpoint refused tool results that answer no call of its model: a file cannot know the ids of live "
                "calls. --set tool_results=matched (or fitted) gives them these ids."
            )
        if options.share.of > 1:  # the other notes are about all shares together
            return
        fresh = options.fixed_schedule or options.vary or self._lanes is not None
        if self._warmed_roots and self._sampler.used_up and not fresh:
            roots, warmed = len(self._workload.roots), self._warmed_roots
            yield (
                f"The workload has {plural(roots, 'conversation')}, and the warm-up ran {warmed:,} of them: some were "
                "measured that the endpoint had seen before."
            )
        if self._cancel_reason is None and (note := rate_note(records, options)):
            yield note


def _known_prefixes(workload: Workload, root: str) -> dict[tuple[str, int], tuple[int, int]]:
    return known_prefixes(streams_of(workload, workload.sessions[root]))
