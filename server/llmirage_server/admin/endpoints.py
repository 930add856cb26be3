"""Endpoints of llmirage itself: the description of the API, and everything under /llmirage/."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from llmirage_server.admin.faults import FaultsHandler, InstancesHandler
from llmirage_server.admin.reports import JournalHandler, PacingHandler, VerdictHandler
from llmirage_server.http.endpoints import HttpEndpoint, Methods, get, methods
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.faults import InjectedFaults
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_server.telemetry.journal import Journal
from llmirage_shared.settings import ConfigError
from llmirage_shared.wire.errors import ApiError

if TYPE_CHECKING:
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


if TYPE_CHECKING:
    from llmirage_server.admin.live import LiveHandler
    from llmirage_server.service.scripts import LoadedScripts


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
