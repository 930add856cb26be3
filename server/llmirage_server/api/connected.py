"""Work for a client that may leave: in plain tasks, which leave nothing to the collector of cycles."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


async def disconnect(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Carry it out to its end, or until the client has left. Raises what it raises."""
    loop = asyncio.get_running_loop()
    tasks = loop.create_task(work), loop.create_task(disconnect(receive))
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
