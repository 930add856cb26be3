"""GET /llmirage/pacing: how exactly this server keeps the times of the cluster that it simulates."""

from __future__ import annotations

import dataclasses
import math

from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.service import ServiceHandler
from llmirage_shared.log_histogram import LogHistogram

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class PacingHandler(ServiceHandler):
    """Times as simulated, times as sent, and what the server itself took."""

    async def show(self, exchange: HttpExchange) -> Response:
        """Show the speed, percentiles in ms, and the histograms, whose differences are those of a part of the time."""
        driver = self._service.driver
        times = dataclasses.replace(
            self._service.responses.served, front_end=driver.pacing.front_end, tokens_late=driver.pacing.lags
        )
        names = [one.name for one in dataclasses.fields(times)]
        return exchange.json(
            {
                "speed": "max" if driver.speed == math.inf else driver.speed,
                "streams": times.streams,
                "ms": {name: _percentiles(getattr(times, name)) for name in names},
                "histograms": times.as_dict(),
            }
        )


def _percentiles(histogram: LogHistogram) -> dict[str, float]:
    return {name: round(histogram.quantile(share) * 1e3, 4) for name, share in _QUANTILES.items()}
