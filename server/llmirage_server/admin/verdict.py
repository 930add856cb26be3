"""GET /llmirage/verdict: what the journal tells of the client that sent the requests in it."""

from __future__ import annotations

import math

from starlette.responses import Response

from llmirage_server.admin.journal import number_in_query
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.telemetry.journal import Journal
from llmirage_server.telemetry.verdict import UNUSED_S, judge
from llmirage_shared.settings import did_you_mean
from llmirage_shared.virtual_time import precise_clock
from llmirage_shared.wire import errors

_PARAMETERS = ("since", "unused_s")
_MOST_UNUSED_S = 86_400.0


class VerdictHandler:
    """Judges the clients of the requests in the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def judge(self, exchange: HttpExchange) -> Response:
        """One verdict for each rule; with `since` from the requests after that number."""
        for name in exchange.request.query_params:
            if name not in _PARAMETERS:
                hint = did_you_mean(name, _PARAMETERS) or f"; known: {', '.join(_PARAMETERS)}"
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
