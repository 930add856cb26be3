"""Settings of the endpoint under test, the target made of them, of one or several servers, and what these report."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import random
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from llmirage_client.measure.record import Exchange
from llmirage_client.settings import EndpointName, UrlStrategy
from llmirage_client.targets.endpoints import endpoint_named
from llmirage_client.targets.endpoints.protocol import ReplyReader
from llmirage_client.targets.fault import Fault, FaultKind
from llmirage_client.targets.http import HttpTarget
from llmirage_client.targets.httpx_transport import httpx_transport
from llmirage_client.targets.target import Call, EndpointTarget, TransportUse
from llmirage_client.targets.timed_stream import MOST_REPLY_BYTES
from llmirage_client.targets.timed_transport import TimedTransport
from llmirage_client.targets.wire_json import parse
from llmirage_shared.statistics import ServedTimes


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files. ca: authorities to trust instead of the system's. insecure: any certificate will do.

    cert, key: ours, for endpoints that want one; key is not needed where the file of cert has both.
    """

    ca: str | None = None
    insecure: bool = False
    cert: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context; None for the system's defaults, which are then loaded only if TLS is spoken.

        Raises ValueError.
        """
        if self == Tls():
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"tls_ca {self.ca}: {_reason(error)}") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key, password="")
            except (OSError, ssl.SSLError) as error:
                files = f"tls_cert {self.cert}" + (f" with tls_key {self.key}" if self.key else "")
                raise ValueError(f"{files}: {_reason(error)}") from None
        return context


def _reason(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    if error.reason in (None, "PEM_LIB"):
        return "it has no certificate with a matching key"
    return error.reason.lower().replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """urls: at least one. api: says where the key goes, and which headers it wants besides.

    keeps_conversations: bodies name conversations that are to be made on the server. preflight: ask it before the load.
    deployment: what it runs, as RunResult has it, where it was asked. simulated: of its servers, those of llmirage,
    if all are, likewise. proxies: of each URL that is behind one; they may have credentials.
    """

    urls: tuple[str, ...]
    api_key: str | None = None
    api: EndpointName = "chat"
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float | None = None
    connect_timeout_s: float | None = None
    most_reply_bytes: int = MOST_REPLY_BYTES
    retries: int = 0
    url_strategy: UrlStrategy = "round_robin"
    keeps_conversations: bool = False
    preflight: bool = False
    deployment: tuple[dict[str, Any], ...] = ()
    simulated: tuple[str, ...] = ()
    tls: Tls = field(default_factory=Tls)
    http2: bool = False
    proxies: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def url(self) -> str:
        """For people to read."""
        return ", ".join(self.urls)

    def target(self) -> EndpointTarget:
        """Make the target of these settings. Raises ValueError for an impossible endpoint."""
        api = endpoint_named(self.api)
        targets: list[tuple[str, EndpointTarget]] = []
        for url in self.urls:
            target_of_url = HttpTarget(
                url,
                self.api_key,
                (*api.headers.items(), *self.headers),
                self.timeout_s,
                transport=self._transport(url),
                connect_timeout_s=self.connect_timeout_s,
                key_header=api.key_header,
                most_reply_bytes=self.most_reply_bytes,
            )
            targets.append((url, target_of_url))
        if len(targets) == 1 and not self.retries and not self.keeps_conversations:
            return targets[0][1]
        return ServersTarget(targets, self.url_strategy, self.retries, self.keeps_conversations)

    def _transport(self, url: str) -> httpx.AsyncBaseTransport:
        """Return httpx's own transport, only where direct connections of HTTP/1.1 do not do.

        It takes several times the CPU.
        """
        context, proxy = self.tls.context(), self.proxies.get(url)
        if proxy is None and not self.http2:
            return TimedTransport(context)
        context = context or ssl.create_default_context()
        if proxy is not None and proxy.startswith("https:"):  # our certificate is for the endpoint
            return httpx_transport(url, proxy, self.http2, context, Tls(self.tls.ca, self.tls.insecure).context())
        return httpx_transport(url, proxy, self.http2, context)


_WITHIN_S = 10.0


@dataclass(slots=True, frozen=True)
class ServerPace:
    """speeds: of each server, inf: without waiting. times: what all of them served so far, or in some time."""

    speeds: tuple[float, ...]
    times: ServedTimes

    def since(self, before: ServerPace) -> ServerPace | None:
        """Return the times served after `before`; None if a server restarted or changed its speed since."""
        if self.speeds != before.speeds:
            return None
        try:
            return ServerPace(self.speeds, self.times.since(before.times))
        except ValueError:
            return None


async def read_pace(endpoint: EndpointSettings, urls: Sequence[str]) -> ServerPace | None:
    """Ask each of these servers; None if there is none, or one does not tell."""
    speeds, times = [], ServedTimes()
    for url in urls:
        try:
            told = parse(await _page(endpoint, url, "/llmirage/pacing"))
            speeds.append(math.inf if told["speed"] == "max" else float(told["speed"]))
            times = times.merged(ServedTimes.from_dict(told["histograms"]))
        except (TimeoutError, Fault, ValueError, TypeError, KeyError, AttributeError):
            return None
    return ServerPace(tuple(speeds), times) if speeds else None


_HITS = re.compile(  # of vLLM, SGLang and TensorRT-LLM
    r"^(?:vllm:prefix_cache_hits_total|sglang:cached_tokens_total|trtllm_prompt_cached_tokens_total)(?:\{[^}\n]*\})? (\S+)",
    re.MULTILINE,
)


async def read_cache_hits(endpoint: EndpointSettings) -> int | None:
    """Return the prompt tokens that the prefix caches have had so far, by /metrics; None if one server does not tell."""
    total = 0.0
    for url in endpoint.urls:
        try:
            found = _HITS.findall((await _page(endpoint, url, "/metrics")).decode("utf-8", "replace"))
            total += sum(map(float, found))
        except (TimeoutError, Fault, ValueError):
            return None
        if not found:
            return None
    return int(total)


async def _page(endpoint: EndpointSettings, url: str, path: str) -> bytes:
    """Ask one of the servers for a path below its root; b"" for another status than 200. Raises TimeoutError, Fault."""
    target = dataclasses.replace(endpoint, urls=(url,), retries=0, keeps_conversations=False).target()
    try:
        async with asyncio.timeout(_WITHIN_S):
            status, body = await target.get(path, from_root=True)
    finally:
        await target.close()
    return body if status == 200 else b""


# The statuses, the first pause and its limit are those of the OpenAI SDK.
_STATUSES = frozenset({408, 409, 429})
_SERVER_ERRORS = 500
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
_LONGEST_ASKED_S = 60.0  # a server that asks for a longer pause does not want us back in this run

_FAULTS = frozenset({
    FaultKind.REFUSED, FaultKind.CONNECT, FaultKind.CONNECT_TIMEOUT, FaultKind.RESET, FaultKind.CLOSED,
})  # fmt: skip

KEY = "conversation"  # of a body: our name for the conversation until it has the server's


class ServersTarget:
    """Servers of one kind, as one target.

    round_robin: each call to the next. sticky: all calls of a conversation, and
    of its forks, to one; the conversations take turns. exchange.url says which of several servers it was.

    A call is sent up to `retries` more times: after a failed connection and after HTTP 408, 409, 429 or 5xx. Nothing is sent
    again once a token of the reply came. Between two attempts lies what the server asked for (Retry-After), or half a
    second, doubled each time up to 8 s, less up to a quarter by lot. The exchange is the last attempt's, but starts with the
    first: time lost by failures is in all its latencies.

    keeps_conversations: the server's id of a conversation takes the place of ours. Making a conversation is no part of the
    request that is measured; where it fails, its failure is the request's.
    """

    def __init__(
        self,
        targets: Sequence[tuple[str, EndpointTarget]],
        strategy: UrlStrategy = "round_robin",
        retries: int = 0,
        keeps_conversations: bool = False,
    ) -> None:
        """targets: with their URLs, at least one."""
        self._targets = targets
        self._turns = itertools.cycle(range(len(targets)))
        self._sticky = strategy == "sticky"
        self._place_of: dict[str, int] = {}  # by affinity
        self._retries = retries
        self._keeps_conversations = keeps_conversations
        self._ids: dict[str, str] = {}  # the server's, by ours

    def now(self) -> float:
        return self._targets[0][1].now()

    async def send(self, call: Call) -> Exchange:
        own_id = call.body.get(KEY) if self._keeps_conversations else None
        if isinstance(own_id, str) and isinstance(call.body, dict):
            if own_id not in self._ids:
                made = await self._tried(_creation(call))
                if made.error is not None or made.response_id is None:
                    return made
                self._ids[own_id] = made.response_id
            call.body[KEY] = self._ids[own_id]
        return await self._tried(call)

    async def get(self, path: str, from_root: bool = False) -> tuple[int, bytes]:
        """Ask the first server: they are of the same kind."""
        return await self._targets[0][1].get(path, from_root)

    def uses(self) -> list[TransportUse]:
        return [use for _, target in self._targets for use in target.uses()]

    async def close(self) -> None:
        for _, target in self._targets:
            await target.close()

    async def _tried(self, call: Call) -> Exchange:
        first = exchange = await self._sent(call)
        lots: random.Random | None = None
        for attempt in range(1, self._retries + 1):
            if not worth_retrying(exchange):
                break
            lots = lots or random.Random(call.headers.get("X-Request-ID"))
            await asyncio.sleep(_pause_s(exchange, attempt, lots))
            if exchange.status is None and not self._keeps_conversations:
                self._place_of.pop(call.affinity_id, None)  # it cannot be reached: perhaps another one can
            exchange = await self._sent(call)
            exchange.retries = attempt
        exchange.start_s = first.start_s
        return exchange

    async def _sent(self, call: Call) -> Exchange:
        url, target = self._targets[self._place(call)]
        exchange = await target.send(call)
        if len(self._targets) > 1:
            exchange.url = url
        return exchange

    def _place(self, call: Call) -> int:
        if not self._sticky:
            return next(self._turns)
        place = self._place_of.get(call.affinity_id)
        if place is None:
            place = self._place_of[call.affinity_id] = next(self._turns)
        return place


def worth_retrying(exchange: Exchange) -> bool:
    """Return whether another attempt may succeed."""
    error = exchange.error
    if error is None or exchange.token_s or (exchange.retry_after_s or 0.0) > _LONGEST_ASKED_S:
        return False
    status = exchange.status
    if status is None or status == 200:
        return status is None and error.type in _FAULTS
    return status in _STATUSES or status >= _SERVER_ERRORS


def _pause_s(exchange: Exchange, attempt: int, lots: random.Random) -> float:
    if exchange.retry_after_s is not None:
        return exchange.retry_after_s
    return min(_FIRST_PAUSE_S * 2.0 ** (attempt - 1), _LONGEST_PAUSE_S) * lots.uniform(0.75, 1.0)


class _Created(ReplyReader):
    may_be_empty = True

    def _read_whole(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        self.response_id = value.get("id")
        self._note_arrival(stamp_s, True)


def _creation(call: Call) -> Call:
    headers = {**call.headers, "Accept": "application/json"}
    return Call("/conversations", {}, headers, stream=False, new_reply=_Created, api=call.api, affinity_id=call.affinity_id)
