"""Users who give up: requests that are cancelled on purpose, some time after they went out."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from llmirage_client.measure.record import CANCELLED, Exchange, RequestError

if TYPE_CHECKING:
    from llmirage_client.targets.target import Call, Target

ON_PURPOSE = RequestError(499, CANCELLED, "cancelled on purpose (--request-cancellation-rate)")
BY_RUN = RequestError(499, CANCELLED, "cancelled by the client before the reply was complete")


class GaveUp(Exception):
    """The request was cancelled on purpose before its reply was complete."""


class Cancellation:
    """Cancels a share of the requests. Which ones depends on their ids alone, and so on the seed and not on timing."""

    def __init__(self, share: float, delay_s: float) -> None:
        """share: 0 to 1. delay_s: after the whole request is out, on the run's clock."""
        self._share = share
        self.delay_s = delay_s

    def meets(self, request_id: str) -> bool:
        return Random(f"cancel {request_id}").random() < self._share

    async def send(self, target: Target, call: Call) -> Exchange:
        """Sends the call; raises GaveUp when the reply was not complete in time."""
        loop = asyncio.get_running_loop()
        sending = loop.create_task(self._to(target, call))
        timer: asyncio.TimerHandle | None = None
        gave_up = False

        def give_up() -> None:
            nonlocal gave_up
            gave_up = sending.cancel()

        def sent() -> None:
            nonlocal timer
            if timer is not None:  # it had to be sent again
                timer.cancel()
            timer = loop.call_at(target.now() + self.delay_s, give_up)

        call.on_sent = sent
        try:
            return await sending
        except asyncio.CancelledError:
            if gave_up:
                raise GaveUp from None
            raise
        finally:
            if timer is not None:
                timer.cancel()

    async def _to(self, target: Target, call: Call) -> Exchange:
        return await target.send(call)
