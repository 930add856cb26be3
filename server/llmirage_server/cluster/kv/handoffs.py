"""The way of KV from prefill to decode instances: who keeps it, the memory reserved for it, the transfer.

Until the KV has arrived, the prefill instance keeps it: vLLM's NIXL connector pulls KV into blocks that the decode instance
has allocated; SGLang and TensorRT-LLM allocate there before they send, too. So decode instances that are full make the
prefill instances fill up and wait.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Literal, get_args

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.kv.radix_tree import TOKEN_BYTES
from llmirage_server.cluster.lifecycle.pools import InstancePool
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


def travelling_tokens(request: Request) -> int:
    """Return the tokens of KV that a handed-over request transfers: all but its last token."""
    return request.prompt_tokens + request.produced - 1


class _Room:
    """Requests that wait for room on one decode instance, and the room reserved for transfers. Tokens are in whole pages."""

    def __init__(self) -> None:
        self.waiting: dict[Request, None] = {}
        self._travelling: dict[Request, int] = {}  # and the tokens of each
        self._travelling_tokens = 0
        self._arrived: dict[Request, tuple[int, int]] = {}  # tokens each had produced, and its KV tokens

    def admit(self, instance: InstanceBase, now: float) -> Request | None:
        """Return the next request whose KV may be sent to the instance; None if none waits or the first does not fit."""
        if not self.waiting:
            return None
        request = next(iter(self.waiting))
        page = instance.limits.page_size
        tokens = -(-travelling_tokens(request) // page) * page
        instance.sync_to(now)
        if instance.memory_limits and instance.kv_used_tokens + self._reserved() + tokens > instance.kv_total_tokens:
            return None
        del self.waiting[request]
        self._travelling[request] = tokens
        self._travelling_tokens += tokens
        return request

    def arrive(self, request: Request) -> None:
        """Note that the KV has arrived.

        The instance counts it once it has admitted the request, at the latest with its first token.
        """
        tokens = self._travelling.pop(request)
        self._travelling_tokens -= tokens
        self._arrived[request] = request.produced, tokens

    def drop(self, request: Request) -> None:
        self.waiting.pop(request, None)
        self._travelling_tokens -= self._travelling.pop(request, 0)
        self._arrived.pop(request, None)

    def _reserved(self) -> int:
        """Return the tokens that will be held but are not yet."""
        for request in [each for each, (produced, _) in self._arrived.items() if each.produced > produced or each.cancelled]:
            del self._arrived[request]
        return self._travelling_tokens + sum(tokens for _, tokens in self._arrived.values())


class Handoffs:
    """KV on its way to decode instances, of two kinds of requests.

    A request that the cluster's own router hands over stays with its prefill instance until its KV has arrived. One with
    `kv_from` was sent by an outside router, as was its holder, the request that computes the prompt and keeps its KV: it
    waits for the end of that prefill, takes the KV once, and the holder's instance frees it.

    receives: the instances that KV may be sent to.
    """

    def __init__(
        self,
        instances: Sequence[InstanceBase],
        pool_of: Sequence[InstancePool],
        link: KVLink,
        note: Callable[[int, float], None],
    ) -> None:
        """note: takes the time of the next event of an instance by its number; behind them, of the next arrival of KV."""
        self._instances = instances
        self._pool_of = pool_of
        self._note = note
        self._transfers = KVTransfers(link)
        self._rooms = [_Room() for _ in instances]
        self.receives = [pool.role == "decode" for pool in pool_of]
        self._kept: dict[Request, Request | None] = {}  # holders whose KV is there, and who takes it
        self._awaited: dict[Request, Request] = {}  # holders that compute their prompt, and who will take it
        self._taking: dict[Request, None] = {}  # requests with a holder, until their KV has arrived

    @property
    def snapshot(self) -> TransferSnapshot:
        return self._transfers.snapshot()

    def sending(self, source: int) -> int:
        """Return the number of transfers under way from an instance."""
        return len(self._transfers.sent_by(source))

    def receiving(self, target: int) -> int:
        return len(self._transfers.sent_to(target))

    def busy(self, index: int) -> bool:
        """Return whether an instance has KV to send, to receive, or to keep."""
        return bool(
            self._transfers.sent_by(index)
            or self._transfers.sent_to(index)
            or self._rooms[index].waiting
            or any(request.instance == index for request in (*self._kept, *self._taking))
        )

    # --- on their way ---

    def wait(self, request: Request, target: int, now: float) -> None:
        """Send the KV of a request to an instance as soon as that has room for it."""
        self._rooms[target].waiting[request] = None
        self.send(target, now)

    def send(self, target: int, now: float) -> None:
        """Start the transfers for which an instance has room now."""
        link = self._transfers.link
        while request := self._rooms[target].admit(self._instances[target], now):
            tokens = travelling_tokens(request)
            if link.skip_cached:
                tokens -= self._instances[target].match(request.key[: TOKEN_BYTES * tokens])
            holder, began_s, spent_s = request.kv_from or request, now, 0.0
            if holder.instance >= 0:
                began_s = max(holder.admitted_s, holder.placed_s)
            if holder.finished_s < request.placed_s:
                spent_s = min(request.placed_s - holder.finished_s, link.handoff_s)
            sender = self._pool_of[holder.instance if holder.instance >= 0 else target]
            bytes_ = tokens * sender.kv_bytes_per_token + sender.kv_bytes_per_sequence
            seen_s = self._instances[target].front_end_free_s(now)
            self._transfers.send(request, holder.instance, target, tokens, bytes_, began_s, now, seen_s, spent_s)
            self._note_arrival()

    def send_all(self, now: float) -> None:
        """Start transfers to all instances, after a change that may have freed room on any of them."""
        for target, receives in enumerate(self.receives):
            if receives:
                self.send(target, now)

    def receive(self, now: float) -> None:
        """Complete the next transfer: the holder's instance may free the KV, and the decode instance continues."""
        transfer = self._transfers.take()
        self._note_arrival()
        request, target, source = transfer.request, transfer.target, transfer.source
        holder = request.kv_from or request
        if source >= 0:
            self._instances[source].release_transferred(holder, now)
            self._note_instance(source)
        if request.kv_from is not None:
            del self._taking[request]
            self._kept.pop(holder, None)
            holder.keeps_kv = False
            request.kv_from = None  # computed again from now on, if need be
        self._rooms[target].arrive(request)
        request.instance, request.placed_s = target, now
        self._instances[target].receive(request, now)
        self._note_instance(target)

    def drop(self, request: Request) -> None:
        """Forget the transfer of a request, and the room reserved for it."""
        self._transfers.drop(request)
        self._note_arrival()
        for room in self._rooms:
            room.drop(request)

    def lose_source(self, index: int) -> None:
        """Free the link of an instance that has crashed."""
        self._transfers.lose(index)

    def lose_target(self, index: int) -> list[Request]:
        """Drop and return the requests whose KV was to come to an instance that has crashed. Their holders keep it."""
        room, self._rooms[index] = self._rooms[index], _Room()
        again = [*[transfer.request for transfer in self._transfers.sent_to(index)], *room.waiting]
        again += [request for request in self._awaited.values() if request.instance == index]
        for request in again:
            self.drop(request)
            if request.kv_from is not None:
                self._leave(request)
        return again

    # --- requests with holders ---

    def take(self, request: Request, target: int, now: float) -> bool:
        """Bring the KV of the request's holder to an instance, once it is there; return False if it is lost or taken."""
        holder = request.kv_from
        assert holder is not None
        there = holder.instance < -1 or (holder in self._kept and self._kept[holder] is None)
        over = holder.failed or holder.cancelled or not math.isnan(holder.finished_s)
        if not there and (over or holder in self._awaited):
            return False
        request.instance, request.placed_s = target, now
        self._taking[request] = None
        self.receives[target] = True
        if not there:
            self._awaited[holder] = request
            return True
        if holder.instance >= 0:
            self._kept[holder] = request
        self.wait(request, target, now)
        return True

    def keep(self, holder: Request, now: float) -> None:
        """Keep the KV of a prompt that has been computed."""
        taker = self._kept[holder] = self._awaited.pop(holder, None)
        if taker is not None:
            self.wait(taker, taker.instance, now)

    def stop(self, request: Request, now: float) -> bool:
        """Cancel a request that waits for its holder's KV, which is freed; return False if it does not wait."""
        if request not in self._taking:
            return False
        holder = request.kv_from
        assert holder is not None
        self.drop(request)
        self._leave(request)
        self.release(holder, now)
        return True

    def release(self, holder: Request, now: float) -> None:
        """Free the KV that a holder keeps, if nobody takes it."""
        if self._kept.get(holder, holder) is None:
            del self._kept[holder]
            holder.keeps_kv = False
            self._instances[holder.instance].release_transferred(holder, now)
            self._note_instance(holder.instance)

    def lose(self, holder: Request) -> Request | None:
        """Forget a holder whose KV is lost, or will not come; return the request that was to take it, dropped."""
        taker = self._awaited.get(holder) or self._kept.get(holder)
        if taker is not None:
            self.drop(taker)
            self._leave(taker)
        self._kept.pop(holder, None)
        holder.keeps_kv = False
        return taker

    def keeps(self, request: Request) -> bool:
        """Return whether the request has finished, and its KV is kept."""
        return request in self._kept

    def _leave(self, request: Request) -> None:
        holder = request.kv_from
        assert holder is not None
        del self._taking[request]
        if self._awaited.get(holder) is request:
            del self._awaited[holder]
        elif holder in self._kept:
            self._kept[holder] = None

    def _note_arrival(self) -> None:
        self._note(len(self._instances), self._transfers.next_s)

    def _note_instance(self, index: int) -> None:
        self._note(index, self._instances[index].next_event_s)
