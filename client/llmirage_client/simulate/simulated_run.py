"""The runner of a simulation: that of every run, but turns in token counts become ids instead of text."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from llmirage_client.load.conversation import Conversation
from llmirage_client.load.identifiers import Identifiers
from llmirage_client.load.options import RunOptions
from llmirage_client.load.planner import Planner
from llmirage_client.load.recorder import Planned, Recorder
from llmirage_client.load.runner import Runner
from llmirage_client.measure.record import Exchange
from llmirage_client.simulate.token_run import TokenPlanner, TokenRecorder
from llmirage_client.simulate.token_streams import TokenIds, TokenStreams
from llmirage_client.simulator.direct import OUTPUT_IDS
from llmirage_client.simulator.engine import VirtualDriver
from llmirage_client.targets.target import Call, Target
from llmirage_client.workload.session import Workload
from llmirage_shared.tokenizer_loader import load
from llmirage_shared.tokens import Tokenizer


class SimulatedRunner(Runner):
    """as_text: the target speaks the protocol, so that replies come as text and prompts go as lists of ids."""

    def __init__(self, workload: Workload, options: RunOptions, target: Target, as_text: bool) -> None:
        super().__init__(workload, options, target)
        streams = TokenStreams(options.session_prefix == "extend")
        self._planner = _Planner(options, streams, as_text)
        self._recorder = _Recorder(target, options, Identifiers(options.seed), streams)

    def over(self) -> int:
        """Requests that are over."""
        return len(self._recorder.records)

    async def close(self) -> None:
        await self._target.close()


class TokenRunner(SimulatedRunner):
    """For workloads in token counts alone, straight to the cluster: see token_run. `recorder` keeps the rows."""

    def __init__(self, workload: Workload, options: RunOptions, target: Target, driver: VirtualDriver) -> None:
        super().__init__(workload, options, target, as_text=False)
        streams = TokenStreams(options.session_prefix == "extend")
        self.recorder = TokenRecorder(driver, streams, Identifiers(options.seed))
        # A phase asks no more of either than these can do.
        self._planner = TokenPlanner(streams)  # type: ignore[assignment]
        self._recorder = self.recorder  # type: ignore[assignment]

    def over(self) -> int:
        return len(self.recorder.rows)


class _Planner(Planner):
    def __init__(self, options: RunOptions, streams: TokenStreams, as_text: bool) -> None:
        super().__init__(options)
        self._streams = streams
        self._as_text = as_text
        self._model = options.model

    def plan(self, conversation: Conversation, turn_index: int) -> Planned:
        turn = conversation.session.turns[turn_index]
        spec = turn.tokens
        if spec is None or spec.input_ids is not None:
            return super().plan(conversation, turn_index)
        body: dict[str, Any] = {"model": turn.model or self._model, "max_tokens": spec.output_tokens, "stream": True}
        if self._as_text:
            prompt = np.frombuffer(self._streams.prompt(conversation, turn_index, spec), dtype=np.int32)
            body |= {"prompt": prompt.tolist(), "ignore_eos": True, "stream_options": {"include_usage": True}}
        else:
            ids = np.frombuffer(self._streams.call(conversation, turn_index, spec), dtype=np.int32)
            body |= {"prompt": ids[: spec.input_tokens], OUTPUT_IDS: ids[spec.input_tokens :]}
        return Planned(Call("/completions", body, api="completions"), spec.input_tokens, spec.output_tokens)


class _Recorder(Recorder):
    """Keeps no bodies, and tells the streams what was answered."""

    def __init__(self, target: Target, options: RunOptions, identifiers: Identifiers, streams: TokenStreams) -> None:
        super().__init__(target, options, identifiers, None, None)
        self._streams = streams

    async def send(
        self, conversation: Conversation, turn_index: int, planned: Planned, issued_s: float, phase: str
    ) -> Exchange:
        exchange = await super().send(conversation, turn_index, planned, issued_s, phase)
        if conversation.session.mode == "tokens" and exchange.error is None:
            body = planned.call.body
            ids: TokenIds = body[OUTPUT_IDS] if OUTPUT_IDS in body else self._tokenizer.encode(exchange.text)
            self._streams.replied_with(conversation, ids)
            exchange.message = None
        return exchange

    def inputs(self) -> list[dict[str, Any]]:
        return []

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return load(self._options.tokenizer)[0]
