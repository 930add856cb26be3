"""Reports on requests under /llmirage/: the journal, the verdict on the clients in it, and the pacing of replies."""

from __future__ import annotations

import dataclasses
import math

from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.service import ServiceHandler
from llmirage_server.telemetry.journal import FILTERS, MOST_ENTRIES, Journal
from llmirage_server.telemetry.verdict import UNUSED_S, judge
from llmirage_shared.log_histogram import LogHistogram
from llmirage_shared.settings import did_you_mean
from llmirage_shared.virtual_time import precise_clock
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

_LIMIT = 100
_AT_ONCE = 8  # entries, with texts of 200 kB each at most: more are written in a thread
_PARAMETERS = ("since", "limit", *FILTERS)
_LARGE_BYTES = 65_536
_VERDICT_PARAMETERS = ("since", "unused_s")
_MOST_UNUSED_S = 86_400.0
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class JournalHandler:
    """Lists the journal's entries, and clears it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def list(self, exchange: HttpExchange) -> Response:
        """Entries, oldest first: the last ones, or with `since` those after that number, from the first on."""
        for name in exchange.request.query_params:
            if name not in _PARAMETERS:
                hint = did_you_mean(name, _PARAMETERS) or f"; known: {', '.join(_PARAMETERS)}"
                raise errors.invalid_value(name, f"the journal has no such filter{hint}.")
        wanted = {name: value for name in FILTERS if (value := exchange.query(name)) is not None}
        since = number_in_query(exchange, "since", 2**63)
        limit = number_in_query(exchange, "limit", MOST_ENTRIES)
        journal = self._journal
        entries = journal.found(wanted, since, _LIMIT if limit is None else limit)
        exchange.is_large = len(entries) > _AT_ONCE
        return await exchange.large_json({"entries": [entry.shown() for entry in entries], "last": journal.last})

    async def show(self, exchange: HttpExchange) -> Response:
        """One entry with the whole request, the whole reply and a curl command that repeats the request."""
        given = exchange.path_id()
        entry = self._journal.numbered(int(given)) if given.isascii() and given.isdigit() and len(given) < 19 else None
        if entry is None:
            raise ApiError(
                f"The journal has no request {errors.shorten(given, 40)} (any more).", status=404, code="not_found"
            )
        exchange.is_large = entry.held_bytes > _LARGE_BYTES
        url = str(exchange.request.base_url).rstrip("/")
        return await exchange.large_json(await exchange.apart(lambda: entry.shown_whole(url)))

    async def clear(self, exchange: HttpExchange) -> Response:
        """Forget all entries; numbers go on, so that `since` stays good."""
        self._journal.clear()
        return exchange.json({"last": self._journal.last})


def number_in_query(exchange: HttpExchange, name: str, most: int) -> int | None:
    """Return a whole number among the URL's parameters, None if it is absent. Raises ApiError."""
    given = exchange.query(name)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit()) or len(given) > 19 or int(given) > most:
        raise errors.invalid_value(name, f"expected a whole number from 0 to {most}, but got '{errors.shorten(given, 40)}'.")
    return int(given)


class VerdictHandler:
    """Judges the clients of the requests in the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def judge(self, exchange: HttpExchange) -> Response:
        """One verdict for each rule; with `since` from the requests after that number."""
        for name in exchange.request.query_params:
            if name not in _VERDICT_PARAMETERS:
                hint = did_you_mean(name, _VERDICT_PARAMETERS) or f"; known: {', '.join(_VERDICT_PARAMETERS)}"
                raise errors.invalid_value(name, f"the verdict has no such parameter{hint}.")
        journal = self._journal
        since = max(number_in_query(exchange, "since", 2**63) or 0, journal.cleared)
        entries = [entry for entry in journal.entries if entry.number > since]
        oldest = journal.entries[0].number if journal.entries else journal.last + 1
        rules = judge(entries, precise_clock()(), _unused_s(exchange))
        return exchange.json(
            {
                "passed": all(rule.verdict != "fail" for rule in rules),
                "requests": len(entries),
                "forgotten": max(0, oldest - 1 - since),
                "rules": [rule.shown() for rule in rules],
            }
        )


def _unused_s(exchange: HttpExchange) -> float:
    given = exchange.query("unused_s")
    if given is None:
        return UNUSED_S
    try:
        value = float(given) if given.isascii() and len(given) < 20 else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value <= _MOST_UNUSED_S:
        raise errors.invalid_value("unused_s", f"expected seconds above 0, at most {_MOST_UNUSED_S:g}.")
    return value


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
