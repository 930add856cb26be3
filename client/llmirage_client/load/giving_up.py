"""Requests to an endpoint whose users give up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from llmirage_client.measure.record import Exchange

if TYPE_CHECKING:
    from llmirage_client.targets.target import Call, Target


class GaveUp(Exception):
    """The request was cancelled on purpose before its reply was complete."""


async def send_for_a_time(target: Target, call: Call, delay_s: float) -> Exchange:
    """Sends the call; raises GaveUp when the reply was not complete in time.

    delay_s: after the whole request is out, on the run's clock.
    """
    loop = asyncio.get_running_loop()
    sending = loop.create_task(_to(target, call))
    timer: asyncio.TimerHandle | None = None
    gave_up = False

    def give_up() -> None:
        nonlocal gave_up
        gave_up = sending.cancel()

    def sent() -> None:
        nonlocal timer
        if timer is not None:  # it had to be sent again
            timer.cancel()
        timer = loop.call_at(target.now() + delay_s, give_up)

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


async def _to(target: Target, call: Call) -> Exchange:
    return await target.send(call)
