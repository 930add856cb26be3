"""Plays the conversations of a run on an asyncio event loop: against real endpoints, and through an API in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llmirage_client.load.conversation import NOTHING, REPLY, Conversation, Timer
from llmirage_client.load.http_sender import HttpSender
from llmirage_client.load.phase import Phase
from llmirage_shared.virtual_time import precise_clock


class AsyncioInterpreter:
    """A conversation that goes on is a task, which sends its requests; one that waits for something else is none.

    Make it on the running loop.
    """

    def __init__(self, sender: HttpSender) -> None:
        self.now = precise_clock()
        self._sender = sender
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, phase: Phase) -> None:
        """Returns when the phase is over. Raises what planning a request raises, after all requests have ended."""
        self._phase = phase
        self._sender.begin(phase.name)
        self._over = over = self._loop.create_future()
        try:
            self._guarded(lambda: phase.begin(self._end))
            await over
        except BaseException:  # an error, or the task of the run is cancelled
            phase.cancel()
            while self._tasks:
                await asyncio.wait(self._tasks)
            raise

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._loop.call_soon(self._guarded, callback)

    def call_at(self, when_s: float, callback: Callable[[], object]) -> Timer:
        return self._loop.call_at(when_s, self._guarded, callback)

    def play(self, conversation: Conversation) -> None:
        task = self._loop.create_task(self._play(conversation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def send(self, conversation: Conversation) -> bool:
        """The task of the conversation does it, which has just played its rules."""
        conversation.waits = REPLY
        return True

    def end(self, conversation: Conversation, cut: bool) -> bool:
        """Requests have ended before their conversation goes on."""
        return True

    async def _play(self, conversation: Conversation) -> None:
        task = asyncio.current_task()
        try:
            self._phase.resume(conversation)
            while conversation.waits is REPLY:
                cut = False
                conversation.in_flight = task
                try:
                    await self._sender.send(conversation)
                except asyncio.CancelledError:
                    cut = conversation.cancelled
                    if not cut:
                        raise
                finally:
                    conversation.in_flight = None
                    conversation.waits = NOTHING
                self._phase.resume(conversation, cut)
        except Exception as error:
            self._fail(error)

    def _guarded(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception as error:
            self._fail(error)

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)
