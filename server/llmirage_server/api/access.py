"""Who may ask, and how often: API keys and rate limits, where the server is started with them."""

from __future__ import annotations

import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from llmirage_server.api.exchange import Exchange
from llmirage_shared.wire import errors

_OPEN = ("/health", "/ping", "/metrics")  # for probes and scrapers, which have no key
_REMEMBERED_KEYS = 10_000
Header = tuple[bytes, bytes]


class KeyGuard:
    """An ASGI application in front of another: who has no key gets no further."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN or scope["method"] == "OPTIONS":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, receive)
        given = given_key(exchange)
        if given and any(hmac.compare_digest(given.encode("latin-1"), key) for key in self._keys):
            await self._app(scope, receive, send)
            return
        error = errors.wrong_api_key(given) if given else errors.no_api_key()
        if scope["path"].startswith("/v1/messages"):
            from llmirage_server.api.messages.endpoint import error_body

            response = exchange.refusal(error_body(error), error)
        else:
            response = exchange.error(error)
        await response(scope, receive, send)


def given_key(exchange: Exchange) -> str:
    """The key of a request: of OpenAI's header, or of Anthropic's and Azure's. "" without one."""
    scheme, _, key = (exchange.header(b"authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return exchange.header(b"x-api-key") or exchange.header(b"api-key") or ""


class Bucket:
    """So much a minute: what was used comes back evenly. Times are seconds on any clock."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.left = float(limit)
        self._then_s = -math.inf

    def look(self, now_s: float) -> None:
        """Let what has come back by now count."""
        if self._then_s > -math.inf:
            self.left = min(self.limit, self.left + (now_s - self._then_s) * self.limit / 60)
        self._then_s = now_s

    def wait_s(self, wanted: float) -> float:
        """How long until there is so much left."""
        return max(0.0, wanted - self.left) * 60 / self.limit


@dataclass(slots=True)
class _Account:
    requests: Bucket | None
    tokens: Bucket | None


class RateLimits:
    """Requests and tokens a minute, of each API key; those without one share an account."""

    def __init__(self, requests: int | None, tokens: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = requests
        self._tokens = tokens
        self._clock = clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()  # least recently used first

    def admit(self, exchange: Exchange, model: str, tokens: int) -> None:
        """Count a request, and tell its response what is left. Raises ApiError (429) where it is too much."""
        account = self._account(given_key(exchange))
        now_s = self._clock()
        for bucket in (account.requests, account.tokens):
            if bucket is not None:
                bucket.look(now_s)
        if account.tokens is not None and tokens > account.tokens.limit:
            raise errors.larger_than_limit(model, account.tokens.limit, tokens)
        self._check(account.requests, account, model, "requests", 1)
        self._check(account.tokens, account, model, "tokens", tokens)
        if account.requests is not None:
            account.requests.left -= 1
        if account.tokens is not None:
            account.tokens.left -= tokens
        exchange.more_headers = _headers(account)

    def _check(self, bucket: Bucket | None, account: _Account, model: str, kind: str, wanted: int) -> None:
        if bucket is None or bucket.left >= wanted:
            return
        wait_s = bucket.wait_s(wanted)
        used = bucket.limit - math.floor(bucket.left)
        headers = [
            *_headers(account),
            (b"retry-after", b"%d" % max(1, math.ceil(wait_s))),
            (b"retry-after-ms", b"%d" % max(1, math.ceil(wait_s * 1000))),
        ]
        raise errors.rate_limited(model, kind, bucket.limit, used, wanted, go_duration(wait_s), headers)

    def _account(self, key: str) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account(
                None if self._requests is None else Bucket(self._requests),
                None if self._tokens is None else Bucket(self._tokens),
            )
            if len(self._accounts) > _REMEMBERED_KEYS:
                self._accounts.popitem(last=False)
        self._accounts.move_to_end(key)
        return account


def rate_limits(requests: int | None, tokens: int | None) -> RateLimits | None:
    """None where there is no limit."""
    return None if requests is None and tokens is None else RateLimits(requests, tokens)


def _headers(account: _Account) -> list[Header]:
    headers = []
    for kind, bucket in ((b"requests", account.requests), (b"tokens", account.tokens)):
        if bucket is not None:
            headers += [
                (b"x-ratelimit-limit-" + kind, b"%d" % bucket.limit),
                (b"x-ratelimit-remaining-" + kind, b"%d" % max(0, math.floor(bucket.left))),
                (b"x-ratelimit-reset-" + kind, go_duration(bucket.wait_s(bucket.limit)).encode()),
            ]
    return headers


def go_duration(seconds: float) -> str:
    """As Go writes durations: 6ms, 1.5s, 1m0s, 2h3m0s."""
    ms = math.ceil(seconds * 1000)
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    minutes, ms = divmod(ms, 60_000)
    rest = f"{ms / 1000:g}s"
    if not minutes:
        return rest
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}" if hours else f"{minutes}m{rest}"
