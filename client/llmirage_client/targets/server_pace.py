"""What llmirage servers say of their own pace."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from llmirage_client.targets.endpoint import EndpointSettings
from llmirage_client.targets.fault import Fault
from llmirage_shared.log_histogram import ServedTimes

_PATH = "/llmirage/pacing"
_WITHIN_S = 10.0


@dataclass(slots=True, frozen=True)
class ServerPace:
    """speeds: of each server, inf: without waiting. times: what all of them served so far, or in some time."""

    speeds: tuple[float, ...]
    times: ServedTimes

    def since(self, before: ServerPace) -> ServerPace | None:
        """What was served after `before`; None if a server was started anew or changed its speed in the meantime."""
        if self.speeds != before.speeds:
            return None
        try:
            return ServerPace(self.speeds, self.times.since(before.times))
        except ValueError:
            return None


async def read_pace(endpoint: EndpointSettings, urls: Sequence[str]) -> ServerPace | None:
    """Ask each of these servers; None if there is none, or one does not tell."""
    speeds, times = [], ServedTimes()
    for url in urls:
        target = dataclasses.replace(endpoint, urls=(url,), retries=0, keeps_conversations=False).target()
        try:
            async with asyncio.timeout(_WITHIN_S):
                status, body = await target.get(_PATH, from_root=True)
            told = json.loads(body) if status == 200 else {}
            speeds.append(math.inf if told["speed"] == "max" else float(told["speed"]))
            times = times.merged(ServedTimes.from_dict(told["histograms"]))
        except (TimeoutError, Fault, ValueError, TypeError, KeyError, AttributeError):
            return None
        finally:
            await target.close()
    return ServerPace(tuple(speeds), times) if speeds else None
