"""Turns in token counts, straight to the cluster, by the same phases that drive every run: for workloads with branches.

A request is a row; see token_rows. What has no branches goes without asyncio: see walk_run.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

from llmirage_client.load.conversation import Conversation
from llmirage_client.load.identifiers import Identifiers
from llmirage_client.load.stop import wake
from llmirage_client.measure.record import Record
from llmirage_client.simulate.token_rows import CANCELLED_BY_RUN, LOST, NO_INSTANCE, TokenRow, TokenRows, refusal
from llmirage_client.simulate.token_streams import TokenStreams
from llmirage_client.simulator.engine import Request, RouterError, VirtualDriver
from llmirage_client.workload.session import TokenSpec


class _Row(TokenRow):
    """With what a phase asks of an exchange."""

    __slots__ = ()
    message = None
    items = None
    response_id = None


class TokenPlanner:
    """Plans a turn as a request to the cluster; see TokenStreams."""

    def __init__(self, streams: TokenStreams) -> None:
        self._streams = streams
        self._ids = count()

    def plan(self, conversation: Conversation, turn_index: int) -> Request:
        spec = conversation.session.turns[turn_index].tokens
        assert isinstance(spec, TokenSpec)
        key = self._streams.call(conversation, turn_index, spec)
        return Request.of_key(next(self._ids), key, spec.input_tokens, conversation.affinity_id)


class TokenRecorder(TokenRows):
    """Sends requests to a simulated cluster and keeps their rows."""

    def __init__(self, driver: VirtualDriver, streams: TokenStreams, identifiers: Identifiers) -> None:
        super().__init__(identifiers)
        self._driver = driver
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self.apis = {"completions"}

    async def send(
        self, conversation: Conversation, turn_index: int, request: Request, issued_s: float, phase: str
    ) -> TokenRow:
        """Sends one request and keeps its row, also when the task is cancelled meanwhile."""
        loop = self._loop
        measured = phase == "profiling" and (self.counted is None or request.id in self.counted)
        row = _Row(conversation, turn_index, request, issued_s, loop.time(), measured)
        row.joined = [child.correlation_id for child in conversation.gates.get(turn_index, ())]
        conversation.last_turn_index = turn_index
        done: asyncio.Future[None] = loop.create_future()
        try:
            row.token_s = self._driver.submit(request, lambda _: wake(done)).token_s
        except (ValueError, RouterError) as error:
            row.error = refusal(error)
        if row.error is None:
            if request.failed:
                row.error = NO_INSTANCE
            else:
                await self._wait(row, done)
        if row.error is not None:
            self._streams.failed(conversation)
        request.forget_tokens()
        row.end_s = loop.time()
        self.rows.append(row)
        if self.on_row is not None:
            self.on_row(row)
        return row

    async def _wait(self, row: TokenRow, done: asyncio.Future[None]) -> None:
        request = row.request
        try:
            await done
        except asyncio.CancelledError:
            self._driver.cancel(request)
            row.error = CANCELLED_BY_RUN
            row.end_s = self._loop.time()
            self.rows.append(row)
            raise
        if request.failed:
            row.error = LOST

    @property
    def records(self) -> list[Record]:
        """None yet: see `made_records`."""
        return []

    def inputs(self) -> list[dict[str, Any]]:
        """There are no bodies."""
        return []

    def show_progress(self) -> None: ...
