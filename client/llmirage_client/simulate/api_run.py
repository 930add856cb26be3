"""A workload through the API of a server in this process, on an event loop of virtual time."""

from __future__ import annotations

import asyncio
import math
from functools import cached_property, partial
from typing import Any

import numpy as np

from llmirage_client.load.calls import Planned
from llmirage_client.load.conversation import Conversation
from llmirage_client.load.options import RunOptions
from llmirage_client.load.runner import Runner
from llmirage_client.load.turn_calls import CallPlanner
from llmirage_client.load.variation import Variation, variation_of
from llmirage_client.measure.record import Exchange, RunResult
from llmirage_client.simulate.cluster_series import SeriesSampler
from llmirage_client.simulate.token_streams import TokenStreams
from llmirage_client.simulator.engine import ClusterConfig, QueueWait
from llmirage_client.simulator.in_process import InProcessServer
from llmirage_client.targets.target import Call
from llmirage_client.workload.session import Workload
from llmirage_shared import virtual_time
from llmirage_shared.tokenizer_loader import load
from llmirage_shared.tokens import Tokenizer


class ApiRun:
    """A run through the server's API. streamed: by the whole protocol, as over a network.

    Otherwise the server's endpoints are asked for whole replies, and the cluster gives the times of their tokens: for texts,
    which the engine alone could not read.
    """

    rows = None

    def __init__(self, config: ClusterConfig, workload: Workload, options: RunOptions, streamed: bool) -> None:
        """Create the server. Raises ConfigError."""
        self._workload, self._options = workload, options
        self._server = InProcessServer(config, streamed=streamed)
        self.cluster = self._server.cluster
        self._runner: Runner | None = None
        self._cancel_reason: str | None = None

    @property
    def roots_taken(self) -> int:
        return 0 if self._runner is None else self._runner.roots_taken

    @property
    def requests_over(self) -> int:
        return 0 if self._runner is None else self._runner.requests_over

    def cancel(self, reason: str) -> None:
        """Send no further request, and cancel those in flight."""
        self._cancel_reason = self._cancel_reason or reason
        if self._runner is not None:
            self._runner.cancel(reason)

    interrupt = cancel

    @property
    def waits(self) -> list[QueueWait]:
        """Waits of finished requests, in that order."""
        return self._server.waits

    def run(self, observer: SeriesSampler, max_time_s: float | None, reason: str) -> RunResult:
        """Run the workload. Raises VirtualDeadlockError and StandstillError. reason: of the cancellation at max_time_s."""
        return virtual_time.run(self._run(observer, max_time_s, reason))

    async def _run(self, observer: SeriesSampler, max_time_s: float | None, reason: str) -> RunResult:
        loop = asyncio.get_running_loop()
        target = self._server.open(observer)
        planner = IdPlanner(self._options, variation_of(self._workload, self._options))
        self._runner = Runner(self._workload, self._options, target, planner=planner, keep_bodies=False)
        if self._cancel_reason is not None:
            self._runner.cancel(self._cancel_reason)
        if max_time_s is not None:
            loop.call_at(max_time_s, partial(self.cancel, reason))
        try:
            return await self._runner.run()
        finally:
            end_s = loop.time()
            observer.next_s = math.inf  # closing may take time, which is not the run's
            await target.close()
            observer.finish(end_s)


class IdPlanner:
    """A planner of turns in token counts as prompts of token ids; other turns are planned as for any endpoint."""

    def __init__(self, options: RunOptions, variation: Variation | None = None) -> None:
        self._options = options
        self._calls = CallPlanner(options, variation)
        self._streams = TokenStreams(options.session_prefix == "extend")

    def plan(self, conversation: Conversation, turn_index: int) -> Planned:
        turn = conversation.session.turns[turn_index]
        spec = turn.tokens
        if spec is None or spec.input_ids is not None:
            return self._calls.plan(conversation, turn_index)
        prompt = np.frombuffer(self._streams.prompt(conversation, turn_index, spec), dtype=np.int32)
        body: dict[str, Any] = {
            "model": turn.model or self._options.model,
            "max_tokens": spec.output_tokens,
            "stream": True,
            "prompt": prompt.tolist(),
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
        return Planned(Call("/completions", body, api="completions"), spec.input_tokens, spec.output_tokens)

    def replied(self, conversation: Conversation, planned: Planned, exchange: Exchange) -> None:
        assert conversation.turn_index is not None
        spec = conversation.session.turns[conversation.turn_index].tokens
        if spec is None or spec.input_ids is not None:
            self._calls.replied(conversation, planned, exchange)
        elif exchange.error is None:
            self._streams.replied_with(conversation, self._tokenizer.encode(exchange.text))

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return load(self._options.tokenizer)[0]
