"""A workload in token counts on a simulated cluster alone: no event loop, no tasks, no protocol."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from llmirage_client.load.any_runner import AnyRunner
from llmirage_client.load.options import RunOptions
from llmirage_client.load.variation import variation_of
from llmirage_client.measure.record import RunResult
from llmirage_client.simulate.cluster_sender import ClusterSender, TokenPrompts
from llmirage_client.simulate.cluster_series import SeriesSampler
from llmirage_client.simulate.event_queue import EventQueue
from llmirage_client.simulate.token_rows import TokenRows
from llmirage_client.simulate.token_streams import TokenStreams
from llmirage_client.simulator.engine import ClusterConfig, ClusterRun, QueueWait, ServedPool, new_cluster, plan_of
from llmirage_client.workload.session import Workload

_OF_ENGINE = {"priority"}  # fields of a body that the cluster itself reads
# Routers that do not ask which conversation a request is of.
NAMELESS = (
    "round_robin", "random", "least_loaded", "power_of_two", "prefix", "kv_aware", "llm-d:default",
    "llm-d:predicted-latency", "dynamo:kv", "sglang:cache_aware", "production-stack:prefixaware",
)  # fmt: skip


class EngineRun(AnyRunner):
    """A run on the cluster alone. rows: its requests."""

    def __init__(
        self,
        config: ClusterConfig,
        workload: Workload,
        options: RunOptions,
        prompts: TokenPrompts | None = None,
        by_endpoint: bool = False,
    ) -> None:
        """Create the cluster. prompts None: of token counts. by_endpoint: see ClusterSender. Raises ConfigError."""
        super().__init__(workload, options)
        self.cluster = new_cluster(config)
        self._adapters = {adapter.name: adapter for pool in plan_of(config) for adapter in pool.adapters}
        self.rows = TokenRows(self._identifiers, self._branching, lengths_known=prompts is None)
        self._named = config.router not in NAMELESS
        prioritised = all(pool.schedule_policy == "priority" for pool in config.all_pools)
        self._class_priorities = dict(config.class_priorities) if prioritised else {}
        self._gateway_queue = config.gateway_queue
        self._prompts = prompts or TokenStreams(options.session_prefix == "extend", variation_of(workload, options))
        self._by_endpoint = by_endpoint
        self._api = "completions" if prompts is None else "chat"
        self._queue: EventQueue | None = None
        self.waits: list[QueueWait] = []  # of requests that are over, in that order

    @property
    def requests_over(self) -> int:
        return self.rows.forgotten + len(self.rows.rows)

    def interrupt(self, reason: str) -> None:
        """Cancel from a signal handler: as soon as the present callback has returned."""
        if self._queue is None:
            self.cancel(reason)
        else:
            self._queue.interrupt(partial(self.cancel, reason))

    def run(self, observer: SeriesSampler, max_time_s: float | None, reason: str) -> RunResult:
        """Run the workload. Raises VirtualDeadlockError and StandstillError. reason: of the cancellation at max_time_s."""
        cluster = ClusterRun(self.cluster, observer)
        self.waits = cluster.waits
        self._queue = queue = EventQueue(cluster)
        sender = ClusterSender(
            queue,
            self.rows,
            self._prompts,
            self._options,
            self._identifiers,
            self._named,
            self._by_endpoint,
            self._class_priorities,
            self._gateway_queue,
            self._adapters,
        )
        if max_time_s is not None:
            queue.call_at(max_time_s, partial(self.cancel, reason))
        for name, options, rng in self._phases():
            start_s, start_unix_s = queue.time_s, time.time()
            phase = self._begin(name, options, rng, queue)
            sender.begin_phase(phase)
            phase.begin(queue.stop)
            queue.run()
        queue.close()
        observer.finish(queue.time_s)
        return self._result(phase, (start_s, start_unix_s, queue.time_s), [], {self._api}, [])


def engine_run(
    config: ClusterConfig, workload: Workload, options: RunOptions, pools: Sequence[ServedPool]
) -> EngineRun | None:
    """Return a run for requests in token counts, token ids or hash blocks; None: only the server's endpoints can read them.

    These workloads' prompts are known as token ids without writing their text. Ids and blocks have to reach the cluster with
    nothing added, and any instance may serve them. Raises ConfigError, and TokenizerError where blocks cannot be written in
    the vocabulary.
    """
    as_they_are = options.streaming and not options.extra_inputs and len({pool.model for pool in pools}) == 1
    kind = _kind(workload)
    if kind == "counts":
        return EngineRun(config, workload, options)
    if kind == "ids" and as_they_are and options.endpoint_type in (None, "completions"):
        return EngineRun(config, workload, options, by_endpoint=True)
    plain = config.replies == "prose" and config.tokenizer == options.tokenizer
    if kind == "messages" and as_they_are and plain and options.endpoint_type in (None, "chat"):
        from llmirage_client.simulate.block_prompts import block_prompts

        prompts = block_prompts(workload, options)
        return None if prompts is None else EngineRun(config, workload, options, prompts, by_endpoint=True)
    return None


def _kind(workload: Workload) -> str:
    """Return the kind of prompts.

    counts: of tokens alone; ids: also token ids; messages: none of either; mixed: only the endpoints can read it.
    """
    kind = "counts"
    for session in workload.sessions.values():
        if session.mode != "tokens":
            return "mixed" if any(turn.tokens for turn in session.turns) else "messages"
        for turn in session.turns:
            if turn.tokens is None or (turn.tokens.input_ids is not None and (turn.extra.keys() - _OF_ENGINE or turn.model)):
                return "mixed"
            if turn.tokens.input_ids is not None:
                kind = "ids"
    return kind
