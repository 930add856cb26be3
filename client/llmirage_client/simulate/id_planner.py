"""Turns in token counts as prompts of token ids, for runs that go through the server's API."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from llmirage_client.load.calls import Planned
from llmirage_client.load.conversation import Conversation
from llmirage_client.load.options import RunOptions
from llmirage_client.load.planner import CallPlanner
from llmirage_client.load.variation import Variation
from llmirage_client.measure.record import Exchange
from llmirage_client.simulate.token_streams import TokenStreams
from llmirage_client.targets.target import Call
from llmirage_client.workload.session import TokenSpec
from llmirage_shared.tokenizer_loader import load
from llmirage_shared.tokens import Tokenizer


class IdPlanner:
    """Everything else is planned as for any endpoint."""

    def __init__(self, options: RunOptions, variation: Variation | None = None) -> None:
        self._options = options
        self._calls = CallPlanner(options, variation)
        self._streams = TokenStreams(options.session_prefix == "extend")

    def plan(self, conversation: Conversation, turn_index: int) -> Planned:
        turn = conversation.session.turns[turn_index]
        spec = turn.tokens
        if spec is None or not _by_count(spec):
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
        if spec is None or not _by_count(spec):
            self._calls.replied(conversation, planned, exchange)
        elif exchange.error is None:
            self._streams.replied_with(conversation, self._tokenizer.encode(exchange.text))

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return load(self._options.tokenizer)[0]


def _by_count(spec: TokenSpec) -> bool:
    return spec.input_ids is None
