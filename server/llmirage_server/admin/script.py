"""/llmirage/script: GET shows the rules in force, POST adds some, PUT replaces all, DELETE drops all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.service import Service, ServiceHandler
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
