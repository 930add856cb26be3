"""Endpoints of llmirage itself: the description of the API, and everything under /llmirage/ but the live page."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from llmirage_server.faults.kinds import FAULTS
from llmirage_server.faults.rule import Conditions, FaultRule, described, parameter_texts, read_rules
from llmirage_server.http.endpoints import HttpEndpoint, Methods, get, methods
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.faults import InjectedFaults
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_server.telemetry.journal import FILTERS, MOST_ENTRIES, Journal
from llmirage_server.telemetry.verdict import UNUSED_S, judge
from llmirage_shared.settings import ConfigError, did_you_mean
from llmirage_shared.statistics import LogHistogram
from llmirage_shared.virtual_time import precise_clock
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.yaml_lines import node_of, parse_mapping

if TYPE_CHECKING:
    from llmirage_server.admin.live import LiveHandler
    from llmirage_server.service.scripts import LoadedScripts

_NONE = {"files": [], "rules": [], "fallback": "generated", "misses": 0}


class ScriptHandler(ServiceHandler):
    """Shows and changes the scripts of the server."""

    def __init__(self, service: Service, new_scripts: Callable[[], LoadedScripts]) -> None:
        """Keep what has the scripts. new_scripts: makes those of a server that has none."""
        super().__init__(service)
        self._new_scripts = new_scripts

    async def show(self, exchange: HttpExchange) -> Response:
        return self._shown(exchange)

    async def add(self, exchange: HttpExchange) -> Response:
        """Put the rules of a script before all others."""
        scripts = self._service.scripts or self._new_scripts()
        return await self._changed(exchange, scripts, scripts.add)

    async def replace(self, exchange: HttpExchange) -> Response:
        """Drop all rules for those of a script; files are not read any more."""
        scripts = self._service.scripts or self._new_scripts()
        return await self._changed(exchange, scripts, scripts.replace)

    async def clear(self, exchange: HttpExchange) -> Response:
        """Drop all rules; files are not read any more."""
        self._service.scripts = None
        return self._shown(exchange)

    async def _changed(
        self, exchange: HttpExchange, scripts: LoadedScripts, change: Callable[[Mapping[str, Any]], None]
    ) -> Response:
        data = await exchange.json_object()
        try:
            await exchange.apart(lambda: change(data))
        except ConfigError as error:
            raise ApiError("\n".join(error.problems), param="rules", code="invalid_script") from None
        self._service.scripts = scripts
        return self._shown(exchange)

    def _shown(self, exchange: HttpExchange) -> Response:
        scripts = self._service.scripts
        return exchange.json(_NONE if scripts is None else scripts.shown())


class OpenApiHandler(ServiceHandler):
    """GET /openapi.json and GET /docs."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._made: tuple[bytes, bytes] | None = None

    async def document(self, exchange: HttpExchange) -> Response:
        return exchange.content((await self._both())[0], b"application/json")

    async def page(self, exchange: HttpExchange) -> Response:
        """Answer with the page of the document."""
        return exchange.content((await self._both())[1], b"text/html; charset=utf-8")

    async def _both(self) -> tuple[bytes, bytes]:
        if self._made is None:
            service = self._service
            self._made = await asyncio.to_thread(_made, service.models.served[0], service.documented_only)
        return self._made


def _made(model: str, documented_only: bool) -> tuple[bytes, bytes]:
    # Here, in a thread: it needs pydantic's models of all requests and responses, which take 120 ms to import.
    from llmirage_server.admin.openapi import openapi_document, reference_page

    document = openapi_document(model, documented_only)
    return json.dumps(document).encode(), reference_page(document)


class FaultsHandler:
    """Lists, adds and removes faults."""

    def __init__(self, faults: InjectedFaults) -> None:
        self._faults = faults

    async def list(self, exchange: HttpExchange) -> Response:
        """List the faults in force, all kinds of faults, and the conditions that go with each."""
        conditions = _texts(parameter_texts(Conditions))
        return self._shown(exchange, self._faults.rules, kinds=_kinds(), conditions=conditions)

    async def add(self, exchange: HttpExchange) -> Response:
        """Add the fault in the body, or the list under `faults`. Raises ApiError that tells of all problems."""
        body = await exchange.json_object()
        given = body.get("faults", [body])
        problems: list[str] = []
        try:
            node = await exchange.apart(lambda: node_of(given))
        except ConfigError as error:
            raise ApiError(f"faults: {error}", param="faults", code="invalid_fault") from None
        rules = await exchange.apart(
            lambda: read_rules(
                node, "faults", lambda _, place, problem: problems.append(f"{place}: {problem}"), "POST /llmirage/faults"
            )
        )
        if "faults" in body and len(body) > 1:
            problems.append(f"unknown keys beside faults: {', '.join(sorted(body.keys() - {'faults'}))}")
        if problems:
            raise ApiError("; ".join(problems), param="faults", code="invalid_fault")
        try:
            self._faults.add(rules)
        except ConfigError as error:
            raise ApiError("; ".join(error.problems), param="faults", code="invalid_fault") from None
        return self._shown(exchange, rules)

    async def remove(self, exchange: HttpExchange) -> Response:
        """Remove one fault by its id. Raises ApiError (404)."""
        given = exchange.path_id()
        number = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else 0
        if not self._faults.remove(number):
            raise ApiError(f"There is no fault {given!r} in force.", status=404, param="id", code="fault_not_found")
        return self._shown(exchange, self._faults.rules)

    async def clear(self, exchange: HttpExchange) -> Response:
        """Remove all."""
        self._faults.clear()
        return self._shown(exchange, ())

    def _shown(self, exchange: HttpExchange, rules: Iterable[FaultRule], **more: Any) -> Response:
        return exchange.json({"faults": [rule.shown() for rule in rules], **more})


class InstancesHandler:
    """GET and POST /llmirage/instances."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, exchange: HttpExchange) -> Response:
        """List the instances: the number of each, what it is (up, starting, draining, down), its requests, its port."""
        ports = {instance: port for port, (instance, rank) in exchange.scope["app"].ports.items() if rank < 1}
        listed = [
            {
                "instance": one.index,
                "pool": one.pool,
                "state": one.state,
                "running": one.running,
                "waiting": one.waiting,
                "port": ports.get(one.index),
            }
            for one in self._service.driver.snapshot()
        ]
        return exchange.json({"instances": listed})

    async def decisions(self, exchange: HttpExchange) -> Response:
        """List the last decisions of autoscaling, the newest last."""
        log = self._service.driver.cluster.scaling.log
        return exchange.json({"decisions": [decision._asdict() for decision in log]})

    async def act(self, exchange: HttpExchange) -> Response:
        """Let an instance start, stop (it finishes what it has) or crash. Raises ApiError for what cannot be."""
        asked = await exchange.checked(schema.engines.InstanceAction.check)
        try:
            self._service.driver.act(asked.action, asked.instance, asked.restart_after_s)
        except ValueError as error:
            raise errors.invalid_value("instance", f"{error}.") from None
        return await self.list(exchange)


@cache
def _kinds() -> list[dict[str, Any]]:
    """Return all kinds of faults with their parameters and an example, as JSON data."""
    examples = "".join([f"- {kind.example}\n" for kind in FAULTS.values()])
    [entry] = parse_mapping("faults:\n" + examples, "examples", "a file of faults")
    assert entry.node.items is not None
    return [
        {
            "name": fault.kind,
            "help": fault.summary,
            "streams_only": fault.streams_only,
            "parameters": _texts(fault.parameters),
            "example": example.value,
        }
        for fault, example in zip(map(described, FAULTS.values()), entry.node.items, strict=True)
    ]


def _texts(texts: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "help": text} for name, text in texts]


_LIMIT = 100
_AT_ONCE = 8  # entries, with texts of 200 kB each at most: more are written in a thread
_LARGE_BYTES = 65_536
_MOST_UNUSED_S = 86_400.0
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class JournalHandler:
    """Lists the journal's entries, and clears it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def list(self, exchange: HttpExchange) -> Response:
        """Entries, oldest first: the last ones, or with `since` those after that number, from the first on."""
        _check_query(exchange, ("since", "limit", *FILTERS), "the journal has no such filter")
        wanted = {name: value for name in FILTERS if (value := exchange.query(name)) is not None}
        since = _number_in_query(exchange, "since", 2**63)
        limit = _number_in_query(exchange, "limit", MOST_ENTRIES)
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


def _check_query(exchange: HttpExchange, known: Sequence[str], problem: str) -> None:
    """Raise ApiError for a parameter of the URL that is not known."""
    for name in exchange.request.query_params:
        if name not in known:
            hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
            raise errors.invalid_value(name, f"{problem}{hint}.")


def _number_in_query(exchange: HttpExchange, name: str, most: int) -> int | None:
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
        _check_query(exchange, ("since", "unused_s"), "the verdict has no such parameter")
        journal = self._journal
        since = max(_number_in_query(exchange, "since", 2**63) or 0, journal.cleared)
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


def endpoints(
    service: Service,
    journal: Journal,
    faults: InjectedFaults,
    new_scripts: Callable[[], LoadedScripts],
    live: LiveHandler | None,
) -> Sequence[HttpEndpoint]:
    """Return the endpoints.

    Args:
        service: The service that they show.
        journal: The record of requests.
        faults: The injected faults.
        new_scripts: Makes scripts for a server that has none yet.
        live: The live page, None without one.
    """
    openapi, instances = OpenApiHandler(service), InstancesHandler(service)
    shown, injected, script = JournalHandler(journal), FaultsHandler(faults), ScriptHandler(service, new_scripts)

    def own(name: str, handlers: Methods) -> HttpEndpoint:
        return HttpEndpoint(f"/llmirage/{name}", handlers, "own")

    found = [
        HttpEndpoint("/openapi.json", get(openapi.document), "probe"),
        HttpEndpoint("/docs", get(openapi.page), "probe"),
        own("journal", methods(GET=shown.list, DELETE=shown.clear)),
        own("journal/{id}", get(shown.show)),
        own("faults", methods(GET=injected.list, POST=injected.add, DELETE=injected.clear)),
        own("instances", methods(GET=instances.list, POST=instances.act)),
        own("autoscaling", get(instances.decisions)),
        own("pacing", get(PacingHandler(service).show)),
        own("faults/{id}", {"DELETE": injected.remove}),
        own("verdict", get(VerdictHandler(journal).judge)),
        own("script", methods(GET=script.show, POST=script.add, PUT=script.replace, DELETE=script.clear)),
    ]
    if live is not None:
        found += [
            HttpEndpoint("/", get(live.page), "probe"),
            own("live", get(live.live)),
            own("speed", methods(GET=live.show_speed, POST=live.speed)),
        ]
    return found
