"""Endpoints: a path, what answers it and who may ask, declared by the families of endpoints; and the routes made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from llmirage_server.http.absent import absent_at
from llmirage_server.http.access import RateLimits, own_pages_only
from llmirage_server.http.application import OPEN_PATHS
from llmirage_server.http.dialect import ASKED_PATH, OPENAI, Dialect
from llmirage_server.http.exchange import MOST_BODY_BYTES, EndpointApp, Guard, Handler, HttpExchange
from llmirage_server.http.fault_hooks import Faults
from llmirage_server.replies.structured.budget import InThread
from llmirage_server.telemetry.journal import Journal
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

Methods = Mapping[str, Handler]
Wrapper = Callable[[Handler], Handler]
Access = Literal["api", "probe", "own"]


def get(handler: Handler) -> Methods:
    """Return the methods of an endpoint that is only read."""
    return {"GET": handler, "HEAD": handler}


def post(handler: Handler) -> Methods:
    """Return the methods of an endpoint that takes POST alone."""
    return {"POST": handler}


def methods(**handlers: Handler) -> Methods:
    """Return handlers by method; HEAD is answered as GET."""
    return {**handlers, "HEAD": handlers["GET"]}


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """A path of a family of endpoints.

    Attributes:
        path: The path, as Starlette's routes have it.
        handlers: The handler of each method.
        access: "api": requests need a key, meet rate limits and faults, and are in the journal; "probe": they need a
            key unless the path is one of `OPEN_PATHS`; "own": they come from this machine, or have a key.
        exchange: The class of its exchanges: the form of its errors.
        line: The class of the exchange of a batch's line, None where batches cannot name the path.
        headers: A request with any of them is for this endpoint where another family has the path, too.
    """

    path: str
    handlers: Methods
    access: Access = "api"
    exchange: type[HttpExchange] = HttpExchange
    line: type[HttpExchange] | None = None
    headers: tuple[bytes, ...] = ()


@dataclass(kw_only=True)
class HttpFace:
    """Everything that the endpoints of one server have in common, and the routes made of it.

    Attributes:
        dialect: The API imitated where APIs differ.
        guard: Raises ApiError for requests without a valid key; None: no key is needed.
        limits: Rate limits; None: there are none.
        journal: The record of requests.
        faults: The injected faults.
        on_error: Called for each error of the server's own code.
        most_bytes: The largest body, decompressed.
        open_admin: Other machines may change the server without a key.
        in_thread: Runs the long work of large requests.
        before: Wraps the handlers that make replies, as recordings have them.
        stateless: Wraps others that need no state of the server, unless a body names something.
    """

    dialect: Dialect = OPENAI
    guard: Guard | None = None
    limits: RateLimits | None = None
    journal: Journal | None = None
    faults: Faults | None = None
    on_error: Callable[[], None] = lambda: None
    most_bytes: int = MOST_BODY_BYTES
    open_admin: bool = False
    in_thread: InThread | None = None
    before: Wrapper = lambda handler: handler
    stateless: Wrapper = lambda handler: handler

    def __post_init__(self) -> None:
        self._app = partial(
            EndpointApp, on_error=self.on_error, most_bytes=self.most_bytes, dialect=self.dialect, in_thread=self.in_thread
        )

    def app(self, endpoint: HttpEndpoint) -> EndpointApp:
        """Return the ASGI application of an endpoint."""
        if endpoint.access == "own":
            return self._app(endpoint.handlers, own_pages_only(self.guard, self.open_admin))
        if endpoint.access == "probe":
            return self._app(endpoint.handlers, None if endpoint.path in OPEN_PATHS else self.guard, faults=self.faults)
        return self._app(
            endpoint.handlers, self.guard, endpoint.exchange, journal=self.journal, faults=self.faults, limits=self.limits
        )

    def lines(self, endpoints: Iterable[HttpEndpoint | BaseRoute]) -> dict[str, ASGIApp]:
        """Return the applications that answer lines of batches, by path: without key and journal, which the batch has."""
        found = (each for each in endpoints if isinstance(each, HttpEndpoint))
        return {
            each.path: self._app(each.handlers, exchange=each.line, faults=self.faults)
            for each in found
            if each.line is not None
        }

    def routes(self, endpoints: Sequence[HttpEndpoint | BaseRoute]) -> list[BaseRoute]:
        """Return the routes in the given order. Of two endpoints at one path the headers of the request choose."""
        found: list[BaseRoute] = []
        places: dict[str, int] = {}
        for each in endpoints:
            if isinstance(each, BaseRoute):
                found.append(each)
            elif each.path in places:
                place = places[each.path]
                other = found[place]
                assert isinstance(other, Route)
                found[place] = Route(each.path, _ByHeader(self.app(each), each.headers, other.app))
            else:
                places[each.path] = len(found)
                found.append(Route(each.path, self.app(each)))
        return found


class _ByHeader:
    """A path that two APIs have: the headers that clients of one send of themselves decide."""

    def __init__(self, app: EndpointApp, headers: tuple[bytes, ...], other: ASGIApp) -> None:
        """Take requests with any of the headers for the first application; both have the same methods."""
        self._app = app
        self._headers = headers
        self._other = other
        self.handlers = app.handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = any(name in self._headers for name, _ in scope["headers"])
        await (self._app if named else self._other)(scope, receive, send)


def unknown_url(exchange: HttpExchange) -> ApiError:
    """Return the error of a path that is not an endpoint, in the words of the API that has one there."""
    method, asked = exchange.scope["method"], exchange.scope.get(ASKED_PATH, exchange.scope["path"])
    absent = absent_at(exchange.scope["path"])
    return errors.unknown_url(method, asked) if absent is None else absent.error(method, asked)
