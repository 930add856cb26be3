"""Disaggregated serving: the transfer of KV between prefill and decode instances."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Literal, get_args

from llmirage_server.cluster.request import Request

Scope = Literal["sender", "cluster"]


@dataclass(frozen=True, slots=True)
class KVLink:
    """The link over which KV is sent, from the end of the prefill to the decode instance.

    Transfers that share a link are sequential, in the order in which their prefills end: each occupies it for bytes /
    `bytes_per_s`, and arrives `latency_s` later.

    handoff_s: the part of `latency_s` that is no network: routers, messages between processes. An outside router's own time
        passes in it.
    scope: what shares a link: all transfers of one sender ("sender": a network card each), or all transfers ("cluster").
    layers: number of equal parts in which the KV is sent while the prefill still computes, as layer by layer transfers do.
        The last part cannot leave before the prefill ends, so 1 overlaps nothing, and with the layers of the model only the
        tail of a transfer that is slower than the prefill, and at least its last layer, delays the decode.
    chunk_tokens: instead of layers, parts of this many tokens: a prompt's chunks, each sent when it is computed.
    skip_cached: leave out what the prefix cache of the decode instance has when the transfer starts (vLLM's NIXL connector
        asks for the missing blocks alone).

    Raises ValueError naming every invalid field.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    scope: Scope = "sender"
    layers: int = 1
    chunk_tokens: int = 0
    skip_cached: bool = True
    handoff_s: float = 0.0

    def __post_init__(self) -> None:
        problems = []
        if not self.bytes_per_s > 0:
            problems.append(f"bytes_per_s must be above 0, not {self.bytes_per_s}")
        if not 0 <= self.latency_s < math.inf:
            problems.append(f"latency_s must be a number of seconds from 0 up, not {self.latency_s}")
        if self.scope not in get_args(Scope):
            problems.append(f"unknown scope {self.scope!r}: choose one of {', '.join(get_args(Scope))}")
        if self.layers < 1:
            problems.append(f"layers must be at least 1, not {self.layers}")
        if self.chunk_tokens < 0:
            problems.append(f"chunk_tokens must be at least 0, not {self.chunk_tokens}")
        if problems:
            raise ValueError("KV link: " + "; ".join(problems))


@dataclass(slots=True, eq=False)
class Transfer:
    """The KV of one request in flight between two instances."""

    request: Request
    source: int
    target: int
    tokens: int
    bytes: float
    arrival_s: float


@dataclass(frozen=True, slots=True)
class TransferSnapshot:
    """All KV transfers of a cluster: the number in flight, and counters of those that have arrived."""

    in_flight: int
    done: int
    tokens: int
    bytes: float


class KVTransfers:
    """Transfers in flight. A dropped one keeps its time on the link, since others were scheduled behind it."""

    def __init__(self, link: KVLink) -> None:
        self.link = link
        self._under_way: dict[Request, Transfer] = {}  # in the order in which they were sent
        self._arrivals: list[tuple[float, int, Transfer]] = []  # of some dropped ones too, but never at the head
        self._order = count()
        self._free_s: defaultdict[int, float] = defaultdict(lambda: -math.inf)  # of each link: when it has sent everything
        self._done = 0
        self._tokens = 0
        self._bytes = 0.0

    @property
    def next_s(self) -> float:
        """Arrival time of the next KV; inf if none is in flight."""
        return self._arrivals[0][0] if self._arrivals else math.inf

    def send(
        self,
        request: Request,
        source: int,
        target: int,
        tokens: int,
        bytes_: float,
        began_s: float,
        now: float,
        seen_s: float = -math.inf,
        spent_s: float = 0.0,
    ) -> None:
        """Send the KV of a request whose prefill ran from `began_s` to `now`.

        seen_s: when the front end of the target, told by the router too, gets to it behind the tokens that go out.
        spent_s: how much of the link's latency has passed already.
        """
        link = source if self.link.scope == "sender" else 0
        total_s = bytes_ / self.link.bytes_per_s
        free_s = self._free_s[link]
        streamed_s = max(free_s, began_s) + total_s
        chunk_tokens = self.link.chunk_tokens
        parts = max(1, -(-tokens // chunk_tokens)) if chunk_tokens else self.link.layers
        last_part_s = max(free_s, now) + total_s / parts
        self._free_s[link] = max(streamed_s, last_part_s)
        arrival_s = max(self._free_s[link] + (self.link.latency_s - spent_s), seen_s)
        transfer = Transfer(request, source, target, tokens, bytes_, arrival_s)
        self._under_way[request] = transfer
        heappush(self._arrivals, (transfer.arrival_s, next(self._order), transfer))

    def take(self) -> Transfer:
        """Remove and return the next transfer to arrive; equal times in the order of sending."""
        transfer = heappop(self._arrivals)[2]
        del self._under_way[transfer.request]
        self._done += 1
        self._tokens += transfer.tokens
        self._bytes += transfer.bytes
        self._drop_heads()
        return transfer

    def drop(self, request: Request) -> None:
        """Drop the transfer of a request, if there is one."""
        if self._under_way.pop(request, None) is not None:
            self._drop_heads()

    def lose(self, source: int) -> None:
        """Free the link of an instance that has crashed; the caller drops its transfers."""
        if self.link.scope == "sender":
            self._free_s.pop(source, None)

    def sent_by(self, source: int) -> list[Transfer]:
        return [transfer for transfer in self._under_way.values() if transfer.source == source]

    def sent_to(self, target: int) -> list[Transfer]:
        return [transfer for transfer in self._under_way.values() if transfer.target == target]

    def snapshot(self) -> TransferSnapshot:
        return TransferSnapshot(len(self._under_way), self._done, self._tokens, self._bytes)

    def _drop_heads(self) -> None:
        arrivals, under_way = self._arrivals, self._under_way
        while arrivals and under_way.get(arrivals[0][2].request) is not arrivals[0][2]:
            heappop(arrivals)
