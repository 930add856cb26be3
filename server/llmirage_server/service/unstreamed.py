"""Responses in one piece: wait until the cluster is done, or the client has gone.

Requests that only read (embeddings, scores and moderation) cost the cluster the prefill of their prompts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from starlette.requests import ClientDisconnect

from llmirage_server.cluster.request import Request
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.turns import turn
from llmirage_server.replies.reply import Reply
from llmirage_server.service.generation import SLICE, Choice, Generation
from llmirage_server.service.service import Service
from llmirage_shared.tokens import TokenIds
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError


async def finish(generation: Generation, exchange: HttpExchange) -> None:
    """Start a generation, and wait until its last token is due.

    Raises ClientDisconnect if the client leaves first (the cluster's memory is free then), and ApiError at shutdown.
    """
    waiter = _Waiter(generation)
    for choice in generation.choices:
        choice.request.tag = waiter
    generation.responses.open.add(waiter)
    watch = asyncio.ensure_future(exchange.client_left())
    watch.add_done_callback(waiter.client_left)
    try:
        await generation.start_in_slices(waiter.done.done)
        await waiter.done
    finally:
        watch.cancel()
        generation.responses.open.discard(waiter)
        generation.stop()
        waiter.forget()


class _Waiter:
    """Receives the tokens of all choices."""

    def __init__(self, generation: Generation) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unfinished = len(generation.choices)
        self._over = False

    def tokens_due(self, request: Request) -> None:
        if request.failed:
            self.abort(errors.lost(request.dropped))
        elif request.produced >= request.output_tokens:
            self._unfinished -= 1
            if not self._unfinished and not self.done.done():
                self.done.set_result(None)

    def forget(self) -> None:
        """Mark an error that came after the end as retrieved, so that asyncio does not log it; and keep no cycle of it."""
        if self.done.done() and not self.done.cancelled():
            self.done.exception()
        self._over = True
        del self.done

    def client_left(self, watch: asyncio.Future[None]) -> None:
        if not watch.cancelled() and not self._over and not self.done.done():
            self.done.set_exception(ClientDisconnect())

    def abort(self, error: ApiError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


_ONE_TOKEN = np.zeros(1, dtype=np.int32)  # a prefill ends with one token
_EMPTY_REPLY = Reply(_ONE_TOKEN, [""], "stop")


async def prefill(service: Service, model: str, prompts: Sequence[TokenIds], exchange: HttpExchange) -> list[Request]:
    """Wait until the cluster has read these prompts, of which each is a request there unless it is empty.

    A model that is not served stands for the first one.

    A prompt longer than the context window costs as much as the longest that fits. Raises ClientDisconnect if the client
    leaves first (the cluster's memory is free then), and ApiError while the server refuses requests.
    """
    service.responses.check_open()
    entry = exchange.entry
    entry.model = errors.shorten(model, 200)
    served = service.models.meant(model, exchange)
    entry.served = served.model
    longest = max(1, served.max_model_len - 1)
    choices: list[Choice] = []
    for first in range(0, len(prompts), SLICE):
        if first:
            await turn()
        choices += [
            Choice(
                _EMPTY_REPLY,
                service.new_request(
                    prompt[:longest],
                    _ONE_TOKEN,
                    served.model,
                    max_tokens=1,
                    priority=exchange.priority,
                    only_instance=exchange.instance,
                ),
                "",
            )
            for prompt in prompts[first : first + SLICE]
            if len(prompt)
        ]
    if choices:
        await finish(Generation(service.responses, choices, 1, exchange.submitted_s, entry), exchange)
        entry.output_tokens, entry.finish_reason = 0, None  # the token that ends a prefill is no output
    return [choice.request for choice in choices]
