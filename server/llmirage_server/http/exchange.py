"""One HTTP request and its response, and the ASGI application around a handler: keys, methods, headers, errors."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from llmirage_server.http import bodies, json_pieces
from llmirage_server.http.absent import absent_at
from llmirage_server.http.byte_budget import HELD, Held
from llmirage_server.http.dialect import ASKED_PATH, DIALECT, OPENAI, Dialect
from llmirage_server.http.fault_hooks import FaultOfRequest, Faults, Limits
from llmirage_server.http.turns import turn
from llmirage_server.replies.structured.budget import (
    BRIEF,
    BRIEF_TOKENS,
    CURRENT,
    FULL,
    Budget,
    BudgetError,
    InThread,
    limited,
)
from llmirage_server.telemetry.journal import CONNECTION, Journal, JournalEntry, Outcome, cut
from llmirage_shared.virtual_time import precise_clock
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import json_text

logger = logging.getLogger("llmirage")

T = TypeVar("T")

MOST_BODY_BYTES = 32 << 20
MOST_ANSWER_BYTES = 64 << 20  # of log probabilities in one piece, about
_MOST_AT_ONCE_BYTES = 1 << 20  # that are written while nothing else runs
_MOST_PLAN_BYTES = 96 << 20
TOKEN_BYTES = 16  # of a planned reply: its id, in the request to the cluster, too, and the place of its text
LOGPROB_BYTES = 72  # a token with its log probability and its bytes, in JSON
LARGE_BYTES = 100_000  # to read, check and write such a body as JSON takes some milliseconds each
_SMALL_BYTES = 16_000  # all of this together takes a turn of the loop for such a body
ARRIVED = "llmirage.arrived_s"  # key in a scope's state: when the HTTP server had the whole request
IS_TEXT = "llmirage.is_text"  # key in a message of a WebSocket: its bytes are a text, which nobody need decode as a whole
ENGINE = "llmirage.engine"  # key in a scope: the instance, and the rank or -1, whose port of a fleet got the request
FAULT_HEADER = b"x-llmirage-fault"
Header = tuple[bytes, bytes]
_MOST_UNREAD_BYTES = _MAPPED_BYTES = 1 << 20
_REQUEST_ID = re.compile(rb"[!-~]{1,256}")
_UNLIMITED = (  # the rate limits of a server without limits, as if this request were the only one
    (b"x-ratelimit-limit-requests", b"30000"),
    (b"x-ratelimit-limit-tokens", b"180000000"),
    (b"x-ratelimit-remaining-requests", b"29999"),
    (b"x-ratelimit-remaining-tokens", b"179999999"),
    (b"x-ratelimit-reset-requests", b"2ms"),
    (b"x-ratelimit-reset-tokens", b"0s"),
)


class _JSONResponse(JSONResponse):
    """Half of a surrogate pair, which a JSON text may name and UTF-8 cannot write, becomes a question mark."""

    media_type = None  # type: ignore[assignment]  # as Response has it: the type is among `response_headers`

    def render(self, content: Any) -> bytes:
        return json_text(content).encode("utf-8", "replace")


class AnsweredElsewhereError(Exception):
    """Another server has answered in this one's place."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class HttpExchange:
    """A request and the means to answer it: the argument of every handler.

    headers: by name in lower case, as bytes; Starlette's would search and decode them anew for each of the eight that are
    looked up for every request.
    arrived_s: when the whole request had arrived, seconds on `precise_clock`. A slow body is the client's or the network's
    time: no server can begin before it has it. more_headers: of the response, beside those that every response has.
    entry: what the journal says of the request. body: its JSON object, empty until it has been read. fault: what goes wrong
    with it on purpose; None: nothing. held: of the bytes that unread requests may hold; None: nobody counts them.
    limits: the rate limits of the server.
    engine: the only instance, and its only data-parallel rank, that may serve it; -1: any.
    held_s: for how long a fault or a script kept it from the cluster. steps_left: of what planning its reply may take.
    most_bytes: of the body, decompressed, too. priority: above 0 gives way to others.
    is_large: what it brings, or refers to, takes some milliseconds each to read, check and write; see `apart`.
    """

    __slots__ = (
        "_answer_bytes", "_clock", "_in_thread", "_plan_bytes", "_prompt_bytes", "_whole", "arrived_s", "body", "dialect",
        "engine", "entry", "fault", "headers", "held", "held_s", "is_large", "limits", "more_headers", "most_bytes",
        "receive", "request_id", "scope", "steps_left",
    )  # fmt: skip

    priority: ClassVar[int] = 0

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        most_bytes: int = MOST_BODY_BYTES,
        dialect: Dialect = OPENAI,
        in_thread: InThread | None = None,
    ) -> None:
        """in_thread: where long work is done. None: at once."""
        self.most_bytes = most_bytes
        self._in_thread = in_thread
        self.dialect: Dialect = scope.get(DIALECT, dialect)
        self._clock = precise_clock()
        self.scope = scope
        self.receive = receive
        self.engine: tuple[int, int] = scope.get(ENGINE, (-1, -1))
        state = scope.get("state", {})
        self._whole = ARRIVED in state  # before it had its turn
        self.arrived_s = self._arrival()
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.body: Mapping[str, Any] = {}
        path = scope.get(ASKED_PATH, scope["path"])
        self.entry = entry = JournalEntry(scope["method"], path, scope.get("client"), scope["headers"])
        entry.arrived_s = self.arrived_s
        entry.connection = state.get(CONNECTION)
        self.held: Held | None = state.get(HELD)
        self.fault: FaultOfRequest | None = None
        self.limits: Limits | None = None
        self.held_s = 0.0
        self.steps_left = FULL
        self._plan_bytes = self._answer_bytes = self._prompt_bytes = 0
        self.is_large = False
        self.more_headers: Sequence[Header] = _UNLIMITED if scope["method"] == "POST" else ()
        given = self.headers.get(b"x-request-id", b"")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else b"req_" + os.urandom(12).hex().encode()

    async def json_object(self, empty: dict[str, Any] | None = None) -> dict[str, Any]:
        """Read the JSON object in the body. Raises ClientDisconnect, and ApiError for a body that is none.

        empty: what an empty body stands for; None: it is refused.
        """
        body = await self.full_body()
        if not self._whole:
            await turn()
        is_empty = empty is not None and bodies.is_blank(body)
        return await self.has_read(empty or {} if is_empty else await self.read(body), len(body))

    async def has_read(self, value: dict[str, Any], size: int) -> dict[str, Any]:
        """Store the parsed body of `size` bytes. Raises ApiError for a fault that refuses it."""
        if self.dialect.vendor.own_body is not None:
            value = self.dialect.vendor.own_body(value, self.scope)
        self.body = value
        self.is_large = size > LARGE_BYTES
        self._prompt_bytes = size
        if self.fault is not None:
            await self.fault.parsed(value)
        return value

    async def kept(self, data: bytes | None, in_prompt: bool = False) -> dict[str, Any] | None:
        """Read an object that this server keeps as JSON: a large one counts until the answer to the request is complete.

        in_prompt: with the body it is at most as large as a body. Raises ApiError (413, and 503 without room for it).
        """
        size = len(data or b"")
        self._prompt_bytes += size if in_prompt else 0
        if in_prompt and self._prompt_bytes > self.most_bytes:
            problem = f"A request, with the items that it refers to, has at most {self.most_bytes} bytes (max_body_mib)"
            raise ApiError(f"{problem}; these are {self._prompt_bytes}.", status=413, code="request_too_large")
        if data is None or size <= LARGE_BYTES:
            return None if data is None else json.loads(data)
        self.is_large = True
        self._expect_answer(size)
        return await self.apart(partial(bodies.kept_object, data))

    def _expect_answer(self, size: int) -> None:
        """Let bytes count that the answer, or what it is made of, takes. Raises ApiError (503)."""
        self._answer_bytes += size
        if self.held is not None:
            self.held.take(size)

    async def read(self, body: bytes) -> dict[str, Any]:
        """Parse the JSON object in the body. Raises ApiError."""
        if len(body) <= bodies.MOST_OBJECTS and b"\\ud" not in body and b"\\uD" not in body:
            with contextlib.suppress(ValueError, RecursionError):  # what is wrong with others is said below
                if isinstance(value := bodies.DECODER.decode(body.decode("utf-8-sig")), dict):
                    return value
        if len(body) > bodies.MOST_VALUES:  # no value has fewer bytes than it counts
            await bodies.check_values(body)
        return await self.apart(lambda: bodies.json_object(body))

    async def full_body(self) -> bytes:
        """As `body_of_any_type`, of JSON's type."""
        kind = self.headers.get(b"content-type")
        if kind is not None and b"json" not in kind.lower():
            raise errors.unsupported_content_type(kind.decode("latin-1"))
        return await self.body_of_any_type()

    async def body_of_any_type(self) -> bytes:
        """Read the complete body, decompressed. Raises ClientDisconnect, and ApiError for one too large."""
        body = await self._received_body()
        self.entry.digest = hash(body) if len(body) <= LARGE_BYTES else await bodies.digest(body)
        if not self._whole:
            self.arrived_s = self.entry.arrived_s = self._arrival()
        if (encoding := self.headers.get(b"content-encoding")) is not None:
            self.is_large = True  # maybe a thousand times as long
            body = await self.apart(partial(bodies.decompressed, body, encoding.strip().lower(), self.most_bytes, self.held))
        self.is_large = len(body) > LARGE_BYTES
        return self.entry.kept(body)

    async def kept_body(self) -> bytes:
        """As `full_body`, which can be read once more."""
        body = await self.full_body()
        self.headers.pop(b"content-encoding", None)
        later = self.receive
        messages: list[Message] = [{"type": "http.request", "body": body}]

        async def again() -> Message:
            return messages.pop() if messages else await later()

        self.receive = again
        return body

    async def note_refusal(self, headers: Sequence[Header]) -> None:
        """Let the journal know what the client was advised, and which body it sent if that has not been read."""
        self.entry.advice = [header for header in headers if header[0].lower().startswith(b"retry-after")]
        length = self.headers.get(b"content-length", b"")
        sent = self.scope["method"] in ("POST", "PUT", "PATCH") and length.isdigit() and len(length) < 20
        if not self.entry.digest and sent and 0 < int(length) <= min(_MOST_UNREAD_BYTES, self.most_bytes):
            with contextlib.suppress(ClientDisconnect, ApiError):
                self.entry.digest = await bodies.digest(body := self.entry.kept(await self._received_body()))
                model = bodies.json_object(body).get("model")
                self.entry.model = errors.shorten(model, 200) if isinstance(model, str) else ""

    async def _received_body(self) -> bytes:
        length = self.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self.most_bytes:
            raise errors.body_too_large(self.most_bytes)
        message = await self.receive()
        body: bytes = _body_of(message)
        if not message.get("more_body"):
            return body
        whole = io.BytesIO()  # is not copied at the end, as a list of parts would be
        parts = [body]  # until the whole has a mapping of its own: growing in the heap, it would leave holes
        size = len(body)
        while message.get("more_body"):
            message = await self.receive()
            parts.append(_body_of(message))
            if (size := size + len(parts[-1])) > self.most_bytes:
                raise errors.body_too_large(self.most_bytes)
            if size > _MAPPED_BYTES:
                whole.write(b"".join(parts))
                parts.clear()
        whole.write(b"".join(parts))
        return whole.getvalue()

    async def apart(self, work: Callable[[], T]) -> T:
        """Do work whose duration grows with the body: for a large body in a thread, else in a turn of the loop."""
        if self._in_thread is not None and self.is_large:
            return await self.queued(self._in_thread, work)
        if self._prompt_bytes > _SMALL_BYTES:
            await turn()
        return work()

    async def queued(self, in_thread: InThread, work: Callable[[], T]) -> T:
        """Do the work in a thread. Raises ClientDisconnect if the client has left before it begins: others wait for it."""
        held = self.held

        def begun() -> T:
            if held is not None and held.abandoned:
                raise ClientDisconnect
            return work()

        return await in_thread(begun)

    async def checked(self, check: Callable[..., T], *more: object) -> T:
        """Read the body's JSON object and check it. more: other arguments of `check`. Raises as both do."""
        return await self.apart(partial(check, await self.json_object(), *more))

    async def planned(self, work: Callable[[], T], part: str, in_thread: InThread) -> T:
        """Do the work, a pure function: at once if it is brief, else anew in a thread.

        part: the field that decides how long it is. Raises ApiError (400) for more steps than the request has left.
        """
        if not self.is_large:
            if self._prompt_bytes > _SMALL_BYTES:
                await turn()
            brief = Budget(steps := min(BRIEF, self.steps_left), part, BRIEF_TOKENS)
            token = CURRENT.set(brief)
            try:
                result = work()
                self.steps_left -= steps - brief.left
                return result
            except (BudgetError, RecursionError):
                pass
            finally:
                CURRENT.reset(token)
        full = Budget(self.steps_left, part)
        try:
            return await self.queued(in_thread, lambda: limited(work, full))
        except BudgetError as error:
            raise errors.too_much_to_plan(error.part) from None
        finally:
            self.steps_left = full.left

    def _arrival(self) -> float:
        """Return the HTTP server's stamp, else now."""
        arrived_s: float | None = self.scope.get("state", {}).get(ARRIVED)
        return self._clock() if arrived_s is None else arrived_s

    @property
    def instance(self) -> int:
        """The only instance that may serve the request; -1: any."""
        return self.engine[0]

    @property
    def submitted_s(self) -> float:
        """The time at which the cluster gets the request: its arrival, plus the time for which a fault held it."""
        return self.arrived_s + self.held_s

    def elapsed_s(self) -> float:
        """Seconds since the request arrived."""
        return self._clock() - self.arrived_s

    def header(self, name: bytes) -> str | None:
        """Return a header's value; None if it is absent or empty. name: in lower case."""
        return self.headers.get(name, b"").decode("latin-1") or None

    @property
    def request(self) -> Request:
        """Starlette's view of the request: its URL, parameters, cookies. Made when asked for; few handlers do."""
        return Request(self.scope, self.receive)

    def path_id(self, name: str = "id") -> str:
        """Return an id in the URL's path."""
        value: str = self.request.path_params[name]
        return value

    def query(self, name: str) -> str | None:
        """Return the last value of a URL parameter, None if it is absent."""
        return self.request.query_params.get(name)

    async def client_left(self) -> None:
        """Return when the client has left. The body must have been read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def download(self, file: Mapping[str, Any], data: AsyncIterator[bytes], content_type: bytes) -> Response:
        """Return a response of a file, for a browser to save. file: its object in the API of OpenAI."""
        response = StreamingResponse(data)
        name = quote(file["filename"], safe="", errors="replace").encode()
        response.raw_headers = [
            *self.response_headers(content_type),
            (b"content-length", b"%d" % file["bytes"]),
            (b"content-disposition", b"attachment; filename*=UTF-8''" + name),
        ]
        return response

    def response_headers(self, content_type: bytes) -> list[Header]:
        """Return the headers that every response has."""
        elapsed_ms = int(self.elapsed_s() * 1000)
        return [
            (b"content-type", content_type),
            (b"x-request-id", self.request_id),
            (b"openai-processing-ms", b"%d" % elapsed_ms),
            (b"openai-version", b"2020-10-01"),
            (b"openai-organization", b"llmirage"),
            *self.more_headers,
            *self.api_headers(),
        ]

    def api_headers(self) -> Sequence[Header]:
        """Headers that only one API has."""
        return ()

    def expect_logprobs(self, entries: int, at_once: bool = False) -> None:
        """Note that the answer will have as many log probabilities. at_once: in one event of a stream, or a stored record.

        Raises ApiError (400) for too large an answer, and (503) without room for it.
        """
        size = entries * LOGPROB_BYTES
        if size > (most := _MOST_AT_ONCE_BYTES if at_once else MOST_ANSWER_BYTES):
            raise errors.answer_too_large(most, size)
        if size > LARGE_BYTES:
            self.is_large = True
            self._expect_answer(size)

    def expect_tokens(self, planned: int) -> None:
        """Note that the replies planned so far have as many tokens, with those of each prompt that choices repeat.

        Raises ApiError (400) for more than one request may hold until it is answered, and (503) without room for them.
        """
        more = planned * TOKEN_BYTES - self._plan_bytes
        self._plan_bytes += more
        if self._plan_bytes > _MOST_PLAN_BYTES:
            raise errors.plan_too_large(_MOST_PLAN_BYTES // TOKEN_BYTES)
        if self.held is not None:
            self.held.take(more)

    def admit(self, model: str, tokens: int) -> None:
        """Count the request where there are rate limits. Batches have none. Raises ApiError (429) for one over them."""
        if self.priority:
            return
        ordered = None if self.fault is None else self.fault.limits
        if (limits := ordered or self.limits) is not None:
            limits.admit(self, model, tokens)

    def json(self, value: Any, status: int = 200) -> Response:
        response = _JSONResponse(value, status)
        response.raw_headers += self.response_headers(b"application/json")
        return response

    async def large_json(self, value: Mapping[str, Any] | Sequence[Any]) -> Response:
        """As `json`; of a large request or answer written in a thread, in pieces, between which others run."""
        if not self.is_large:
            return self.json(value)
        return self.pieces(await self.apart(lambda: json_pieces.written(value)), b"application/json")

    def text(self, text: str = "", status: int = 200) -> Response:
        """Return a response of plain text."""
        return self.content(text.encode(), b"text/plain; charset=utf-8", status)

    def content(self, body: bytes, content_type: bytes, status: int = 200) -> Response:
        """Return a response of bytes."""
        return self.pieces([body], content_type, status)

    def pieces(self, body: Sequence[bytes], content_type: bytes, status: int = 200) -> Response:
        """Return a response of pieces of bytes: joined, the connection would copy a large one several times at once.

        What waits for a client to read it counts. Raises ApiError (503) without room for it.
        """
        size = sum(map(len, body))
        if size <= json_pieces.SENT_BYTES:
            response = Response(b"".join(body), status)
        else:
            self._expect_answer(max(0, size - self._answer_bytes))
            response = StreamingResponse(json_pieces.larger(body), status)
            response.raw_headers.append((b"content-length", b"%d" % size))
        response.raw_headers += self.response_headers(content_type)
        return response

    def error(self, error: ApiError) -> Response:
        """Return a refusal in the API's own form."""
        self.entry.error = cut(error.message)
        return self.refusal(error, self.error_body(error))

    def error_body(self, error: ApiError) -> dict[str, Any]:
        """Return the object of an error response."""
        return self.dialect.error(error, self.scope["path"])

    def refusal(self, error: ApiError, body: dict[str, Any]) -> Response:
        self.more_headers = error.headers
        return self.json(body, error.status)


Handler = Callable[[HttpExchange], Awaitable[Response]]
Guard = Callable[[HttpExchange], None]


@dataclass(eq=False, slots=True)
class EndpointApp:
    """The ASGI application of one path. Whatever happens, the client gets a response in the API's own form.

    handlers: by method. guard: raises ApiError for a request that may not be served. journal: where requests go.
    on_error: is called for each error of the server itself, which is a fault of its code. most_bytes: of a body.
    """

    handlers: Mapping[str, Handler]
    guard: Guard | None = None
    exchange: type[HttpExchange] = HttpExchange
    journal: Journal | None = None
    faults: Faults | None = None
    on_error: Callable[[], None] = lambda: None
    most_bytes: int = MOST_BODY_BYTES
    dialect: Dialect = OPENAI
    in_thread: InThread | None = None
    limits: Limits | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = self.exchange(scope, receive, self.most_bytes, self.dialect, self.in_thread)
        exchange.limits = self.limits
        if self.journal is not None:
            self.journal.begin(exchange.entry)
        status: int | None = None
        outcome: Outcome = "client_left"
        try:
            if (response := await self._response(exchange)) is not None:
                status, outcome = response.status_code, "failed"
                if status >= 400:
                    await exchange.note_refusal(response.raw_headers)
                if exchange.fault is None:
                    await response(scope, receive, send)
                else:
                    await exchange.fault.respond(response, receive, send)
                status, outcome = response.status_code, getattr(response, "outcome", "complete")
        finally:
            if exchange.fault is not None:
                status, outcome = exchange.fault.ended(status, outcome)
            if exchange.entry.number:
                assert self.journal is not None
                self.journal.end(exchange.entry, status, outcome, exchange.elapsed_s())

    async def _response(self, exchange: HttpExchange) -> Response | None:
        """Return the response of the request's handler, None for a client that has gone."""
        method = exchange.scope["method"]
        handler = self.handlers.get(method)
        try:
            if self.guard is not None:
                self.guard(exchange)
            url_refused = exchange.dialect.vendor.refused
            if url_refused is not None and (of_url := url_refused(exchange.scope)) is not None:
                raise of_url
            faults = self.faults
            if faults is not None and (faults.rules or faults.cuts or FAULT_HEADER in exchange.headers):
                await faults.arrived(exchange)
            if handler is not None:
                return await handler(exchange)
            path = exchange.scope["path"]
            if (absent := absent_at(path)) is not None:  # another API has something else at this path
                raise absent.error(method, path)
            refused = errors.method_not_supported(method, path, list(self.handlers))
            if exchange.headers.get(b"upgrade", b"").lower() == b"websocket":
                refused = errors.no_websocket()
            response = exchange.error(refused)
            response.raw_headers.append((b"allow", ", ".join(self.handlers).encode()))
            return response
        except ApiError as error:
            return exchange.error(error)
        except AnsweredElsewhereError as elsewhere:
            return elsewhere.response
        except ClientDisconnect:
            return None
        except Exception:
            logger.exception("A request failed inside the server; please report this")
            self.on_error()
            return exchange.error(errors.internal_error())


def _body_of(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    body: bytes = message.get("body", b"")
    return body
