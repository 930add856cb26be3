"""GET and DELETE /llmirage/journal: the last requests, and how they were answered."""

from __future__ import annotations

from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.telemetry.journal import FILTERS, MOST_ENTRIES, Journal
from llmirage_shared.settings import did_you_mean
from llmirage_shared.wire import errors

_LIMIT = 100
_PARAMETERS = ("since", "limit", *FILTERS)


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
        exchange.is_large = len(entries) > _LIMIT
        return await exchange.large_json({"entries": [entry.shown() for entry in entries], "last": journal.last})

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
