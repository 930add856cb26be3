"""Access: API keys and rate limits, where the server is started with them."""

from __future__ import annotations

import hmac
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from ipaddress import ip_address
from socket import gethostname

from llmirage_server.http.exchange import Guard, Header, HttpExchange
from llmirage_shared.texts import PIECE
from llmirage_shared.virtual_time import precise_clock
from llmirage_shared.wire import errors

_REMEMBERED_KEYS = 10_000
_ACCOUNT_BYTES = 1024  # of memory, its key included
_LONGEST_NAME = 128  # characters


class ApiKeys:
    """The guard of endpoints that need a key."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def __call__(self, exchange: HttpExchange) -> None:
        """Raise ApiError (401) for a request without one of the keys."""
        given = given_key(exchange)
        if not given:
            raise errors.no_api_key()
        if not any(hmac.compare_digest(given.encode("latin-1"), key) for key in self._keys):
            raise errors.wrong_api_key(given)


def own_pages_only(guard: Guard | None, is_open: bool) -> Guard:
    """`guard`, or where there is none, this machine; and no page of another server.

    What changes this server must not be at the command of any page in a browser, nor of the whole network unless `is_open`.
    """

    def check(exchange: HttpExchange) -> None:
        if is_foreign(exchange.headers):
            page = exchange.header(b"origin") or exchange.header(b"referer") or "another server"
            raise errors.foreign_page(exchange.scope["path"], errors.shorten(page))
        if guard is not None:
            guard(exchange)
        elif not is_open and (not _is_local(exchange.scope.get("client")) or is_public(exchange.headers)):
            raise errors.not_local(exchange.scope["path"])

    return check


def is_foreign(headers: Mapping[bytes, bytes]) -> bool:
    """Return True for a request that a page of another server makes, or may make, in a browser.

    Browsers send Sec-Fetch-Site to https and to this machine only. Elsewhere they are known by their name, and their pages
    by Origin or Referer, which a page may leave out.
    """
    origin = headers.get(b"origin")
    if origin is not None:
        return not _is_at(origin, headers)
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in (b"same-origin", b"none")
    return is_browser(headers) and not _is_at(headers.get(b"referer", b""), headers)


def is_browser(headers: Mapping[bytes, bytes]) -> bool:
    """Return True for a request that may come from a browser."""
    return b"origin" in headers or b"sec-fetch-site" in headers or headers.get(b"user-agent", b"").startswith(b"Mozilla/")


def _is_at(page: bytes, headers: Mapping[bytes, bytes]) -> bool:
    return page.partition(b"://")[2].partition(b"/")[0] == headers.get(b"host")


def _is_local(client: Sequence[object] | None) -> bool:
    """Tell whether a request comes from this machine; a caller without an address is one in this process."""
    if client is None:
        return True
    try:
        return ip_address(str(client[0]).removeprefix("::ffff:")).is_loopback
    except ValueError:  # a name that a transport in this process made up
        return True


def is_public(headers: Mapping[bytes, bytes]) -> bool:
    """Return True where Host may be a foreign name that resolves to this machine, or a proxy's."""
    host = headers.get(b"host", b"").decode("latin-1")
    name = host.partition(":")[0].rstrip(".").lower()  # "" or a bracket of an address of IPv6
    own = (gethostname().lower(), "localhost", "local", "internal", "test", "localdomain", "home.arpa")
    if "." not in name or name.endswith(tuple(f".{end}" for end in own)) or name == own[0]:
        return False
    try:
        ip_address(name)
    except ValueError:
        return True
    return False


def short_name(name: str) -> str:
    """Return a client's name for something, such as a session, or the digest of a long one: what is kept by it is small."""
    if len(name) <= _LONGEST_NAME:
        return name
    digest = blake2b(digest_size=16)
    for start in range(0, len(name), PIECE):
        digest.update(name[start : start + PIECE].encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def given_key(exchange: HttpExchange) -> str:
    """Return the key in OpenAI's header, or in Anthropic's or Azure's; "" without one."""
    scheme, _, key = (exchange.header(b"authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return exchange.header(b"x-api-key") or exchange.header(b"api-key") or ""


class Bucket:
    """A token bucket: `limit` per minute, refilled evenly. Times are seconds on any clock."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.left = float(limit)
        self._then_s = -math.inf

    def refill(self, now_s: float) -> None:
        """Add what has been refilled by now."""
        if self._then_s > -math.inf:
            self.left = min(self.limit, self.left + (now_s - self._then_s) * self.limit / 60)
        self._then_s = now_s

    def wait_s(self, wanted: float) -> float:
        """Seconds until `wanted` are left."""
        return max(0.0, wanted - self.left) * 60 / self.limit


@dataclass(slots=True)
class _Account:
    requests: Bucket | None
    tokens: Bucket | None


class RateLimits:
    """Requests and tokens per minute of each API key. Requests without a key share an account."""

    def __init__(self, requests: int | None, tokens: int | None, clock: Callable[[], float] | None = None) -> None:
        """clock: seconds; None: that of the running loop."""
        self._requests = requests
        self._tokens = tokens
        self._clock = clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()  # least recently used first

    def admit(self, exchange: HttpExchange, model: str, tokens: int) -> None:
        """Count a request and add what is left to its response's headers. Raises ApiError (429) for one over the limit."""
        account = self._account(short_name(given_key(exchange)))
        now_s = (self._clock or precise_clock())()
        for bucket in (account.requests, account.tokens):
            if bucket is not None:
                bucket.refill(now_s)
        if account.tokens is not None and tokens > account.tokens.limit:
            raise errors.larger_than_limit(model, account.tokens.limit, tokens)
        self._check(account.requests, account, model, "requests", 1)
        self._check(account.tokens, account, model, "tokens", tokens)
        if account.requests is not None:
            account.requests.left -= 1
        if account.tokens is not None:
            account.tokens.left -= tokens
        exchange.more_headers = _headers(account)

    def bytes_kept(self) -> int:
        """Return what all accounts take."""
        return len(self._accounts) * _ACCOUNT_BYTES

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
    """Return a duration in Go's format: 6ms, 1.5s, 1m0s, 2h3m0s."""
    ms = math.ceil(seconds * 1000)
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    minutes, ms = divmod(ms, 60_000)
    rest = f"{ms / 1000:g}s"
    if not minutes:
        return rest
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}" if hours else f"{minutes}m{rest}"
