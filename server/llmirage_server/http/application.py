"""The Starlette application of a server: its middleware, and routes that are made once it listens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from llmirage_server.http.access import is_foreign, is_public
from llmirage_server.http.byte_budget import ByteBudget, CountedBodies
from llmirage_server.http.event_stream import SERVER_SEND
from llmirage_server.http.exchange import ENGINE
from llmirage_server.http.turns import turn
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

# Probes, scrapers and browsers that open a page have no key.
OPEN_PATHS = ("/", "/docs", "/health", "/livez", "/ping", "/metrics", "/prometheus/metrics", "/openapi.json")
_OF_BROWSERS = (b"origin", b"sec-fetch-site", b"user-agent")
_THIS_MACHINE = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?"


class CrossOrigin(CORSMiddleware):
    """Lets pages of some origins in a browser call and read; those of others are refused.

    Where no key is needed, so are pages whose server has a public name that may have been made to resolve to this machine.
    Requests that no browser makes pass as they are, and cost nothing here.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str], has_key: bool) -> None:
        """origins: of pages; "*": any; none: those of this machine."""
        any_of = ("*",)
        self._has_key = has_key
        super().__init__(
            app,
            origins,
            allow_methods=any_of,
            allow_headers=any_of,
            allow_origin_regex=None if origins else _THIS_MACHINE,
            expose_headers=any_of,
            max_age=86_400,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            for name, value in scope["headers"]:
                if name in _OF_BROWSERS and (name != b"user-agent" or value.startswith(b"Mozilla/")):
                    await self._of_browser(scope, receive, send)
                    return
        await self.app(scope, receive, send)

    async def _of_browser(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        origin = headers.get(b"origin")
        known = origin is not None and self.is_allowed_origin(origin.decode("latin-1"))
        own = origin is None or not is_foreign(headers)
        preflight = scope.get("method") == "OPTIONS"
        if not known and not preflight and (not own or self._is_rebound(scope["path"], headers)):
            page = origin or b"http://" + headers.get(b"host", b"")
            await _refuse(errors.foreign_page(scope["path"], errors.shorten(page.decode("latin-1"))), scope, receive, send)
        elif scope["type"] == "http" and origin is not None and (known or preflight):
            scope[SERVER_SEND] = send  # tokens need not pass through the `send` that adds the headers
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _is_rebound(self, path: str, headers: Mapping[bytes, bytes]) -> bool:
        if self._has_key or path in OPEN_PATHS or not is_public(headers):
            return False
        host = headers[b"host"].decode("latin-1")
        return not any(self.is_allowed_origin(f"{scheme}://{host}") for scheme in ("http", "https"))


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await WebSocketClose()(scope, receive, send)
    else:
        await JSONResponse(error.body(), error.status)(scope, receive, send)


class LazyRoutes(Starlette):
    """An application whose routes are made once it listens, or with the first request.

    ports: of a fleet, and the instance and the data-parallel rank (-1: all) that each belongs to.
    """

    def __init__(
        self,
        make: Callable[[], Sequence[BaseRoute]],
        unknown: ASGIApp,
        life: Callable[[], AbstractAsyncContextManager[None]],
        unread: ByteBudget,
        *,
        origins: Sequence[str] = (),
        has_key: bool = False,
    ) -> None:
        """unknown: answers all other paths of HTTP. life: of the server. unread: what unread requests may hold.

        origins: of pages that may call, see CrossOrigin. has_key: requests need one.
        """
        middleware = [Middleware(CrossOrigin, origins, has_key), Middleware(CountedBodies, unread)]
        super().__init__(middleware=middleware, lifespan=lambda _: life())
        self.router.redirect_slashes = False
        self.router.default = self._answer_unknown
        self._make: Callable[[], Sequence[BaseRoute]] | None = make
        self._unknown = unknown
        self.ports: dict[int, tuple[int, int]] = {}

    def make_routes(self) -> None:
        """Do what the first request would have to wait for."""
        if self._make is not None:
            self.router.routes += self._make()
            self._make = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            if self._make is not None:
                self.make_routes()
            await turn()
        if self.ports and scope.get("server") is not None and (engine := self.ports.get(scope["server"][1])) is not None:
            scope[ENGINE] = engine
        await super().__call__(scope, receive, send)

    async def _answer_unknown(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (WebSocketClose() if scope["type"] == "websocket" else self._unknown)(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Return the router within the middleware, without Starlette's own two around it.

        An EndpointApp answers its errors itself, in the form of its API; an exception that leaves it is for the HTTP server,
        such as the end of a connection that a fault breaks. Each of the two would wrap `send`, too.
        """
        app: ASGIApp = self.router
        for cls, args, kwargs in reversed(self.user_middleware):
            app = cls(app, *args, **kwargs)
        return app
