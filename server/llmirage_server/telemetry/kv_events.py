"""Changes of the KV caches of instances, published over ZeroMQ as vLLM publishes them (distributed/kv_events.py).

A message has three frames: the topic, a sequence number of 8 bytes (big-endian), and a batch as msgpack. A subscriber that
misses some sends the first number that it wants to the replay socket, gets all from there on that are kept, and then -1.

Beside them the registrations by which a router learns of prefill and decode engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import zmq
import zmq.asyncio

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.kv.recorded_tree import BlockHasher, BlocksStored, EventFormat, KVChange

MOST_BATCHES = 10_000  # that are kept for replays, of each engine
MOST_BYTES = 8 << 20  # the same
_MOST_QUEUED = 1_000  # batches for a subscriber that does not read; it misses the next ones
_MOST_REQUEST_BYTES = 64
_REGISTER_EVERY_S = 3.0
_END = (-1).to_bytes(8, "big", signed=True)
_MASK = (1 << 64) - 1


@dataclass(slots=True)
class _Engine:
    """One rank of one instance. kept: batches by number, the oldest first. pending: changes that are not published yet."""

    rank: int
    block_tokens: int
    publisher: zmq.Socket[bytes]
    replays: zmq.asyncio.Socket | None
    number: int = 0
    kept: deque[tuple[int, bytes]] = field(default_factory=deque)
    kept_bytes: int = 0
    pending: list[KVChange] = field(default_factory=list)


class KVEvents:
    """Publishes the changes of all KV caches of a cluster: those of each rank of each instance at a port of its own."""

    def __init__(
        self,
        cluster: Cluster,
        hasher: BlockHasher,
        address: str,
        port: int,
        replay_port: int | None = None,
        topic: str = "",
        form: EventFormat = "map",
    ) -> None:
        """Bind the sockets.

        Args:
            cluster: The cluster, without any request so far.
            hasher: Its caches' hashes of blocks.
            address: Where to listen.
            port: Of the first rank of the first instance; the others follow in order.
            replay_port: The same for replays; None: there are none.
            topic: The first frame of each message.
            form: Events as maps, as vLLM has them since 0.24, or as arrays.

        Raises OSError for an address that cannot be bound.
        """
        self._publishers = zmq.Context()  # which never wait
        self._context = zmq.asyncio.Context()
        self._topic = topic.encode()
        self._form = form
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self._tasks: list[asyncio.Task[None]] = []
        self._engines: list[_Engine] = []
        try:
            for caches in cluster.kv_caches():
                for rank, cache in enumerate(caches):
                    number = len(self._engines)
                    publisher = self._bound(self._publishers.socket(zmq.PUB), address, port + number)
                    replays = None
                    if replay_port is not None:
                        replays = self._bound(self._context.socket(zmq.ROUTER), address, replay_port + number)
                    engine = _Engine(rank, cache.page_size, publisher, replays)
                    self._engines.append(engine)
                    cache.record(hasher, lambda change, engine=engine: self._changed(engine, change))  # type: ignore[misc]
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"{address}: {error}") from None

    def start(self) -> None:
        """Publish on the running loop from now on."""
        self._loop = asyncio.get_running_loop()
        self._tasks = [self._loop.create_task(self._replay(each)) for each in self._engines if each.replays is not None]
        self._schedule()

    def close(self) -> None:
        """Close the sockets; what subscribers have not read is lost."""
        for task in self._tasks:
            task.cancel()
        self._publishers.destroy(linger=0)
        self._context.destroy(linger=0)

    def bytes_kept(self) -> int:
        """Return the bytes that are kept for replays."""
        return sum([engine.kept_bytes for engine in self._engines])

    def _bound(self, opened: Any, address: str, port: int) -> Any:
        opened.set(zmq.SNDHWM, _MOST_QUEUED if opened.type == zmq.PUB else MOST_BATCHES + 1)
        opened.set(zmq.MAXMSGSIZE, _MOST_REQUEST_BYTES)  # of what clients send
        opened.set(zmq.IPV6, ":" in address)
        opened.bind(f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}")
        return opened

    def _changed(self, engine: _Engine, change: KVChange) -> None:
        engine.pending.append(change)
        self._schedule()

    def _schedule(self) -> None:
        if self._loop is not None and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._publish)

    def _publish(self) -> None:
        """Publish what has changed in one turn of the loop, which is a step or a few."""
        self._scheduled = False
        for engine in self._engines:
            if not engine.pending or engine.publisher.closed:
                continue
            events = [event_of(change, engine.block_tokens, self._form) for change in engine.pending]
            engine.pending.clear()
            batch: bytes = msgpack.packb([time.time(), events, engine.rank])
            engine.publisher.send_multipart((self._topic, engine.number.to_bytes(8, "big"), batch))
            if engine.replays is not None:
                engine.kept.append((engine.number, batch))
                engine.kept_bytes += len(batch)
                while len(engine.kept) > MOST_BATCHES or engine.kept_bytes > MOST_BYTES:
                    engine.kept_bytes -= len(engine.kept.popleft()[1])
            engine.number += 1

    async def _replay(self, engine: _Engine) -> None:
        """Answer those who missed batches."""
        assert engine.replays is not None
        while True:
            frames = await engine.replays.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            client, first = frames[0], int.from_bytes(frames[2], "big")
            for number, batch in [kept for kept in engine.kept if kept[0] >= first]:
                await engine.replays.send_multipart((client, b"", number.to_bytes(8, "big"), batch))
            await engine.replays.send_multipart((client, b"", _END, b""))


class Registrations:
    """Tells a router every few seconds which engines there are, as vLLM's P2pNcclConnector tells its proxy."""

    def __init__(self, router: str, engines: Sequence[tuple[str, str]], there: Callable[[], Sequence[bool]]) -> None:
        """router: its HOST:PORT. engines: the role and the HOST:PORT of each. there: tells which of them are up."""
        self._context = zmq.Context()
        self._there = there
        self._sent: list[tuple[zmq.Socket[bytes], bytes]] = []
        for role, address in engines:
            sender = self._context.socket(zmq.DEALER)
            sender.setsockopt(zmq.IDENTITY, address.encode())
            sender.setsockopt(zmq.SNDHWM, 1)  # for a router that is not there
            sender.connect(f"tcp://{router}")
            said = {"type": role[0].upper(), "http_address": address, "zmq_address": address}
            self._sent.append((sender, msgpack.packb(said)))

    def start(self) -> None:
        """Register on the running loop from now on."""
        for (sender, message), there in zip(self._sent, self._there(), strict=False):
            if there and not sender.closed:
                with contextlib.suppress(zmq.Again):
                    sender.send(message, zmq.DONTWAIT)
        asyncio.get_running_loop().call_later(_REGISTER_EVERY_S, self.start)

    def close(self) -> None:
        self._context.destroy(linger=0)


def event_of(change: KVChange, block_tokens: int, form: EventFormat) -> Any:
    """Return an event as vLLM writes it to msgpack; hashes are the last 8 bytes of the whole ones, as numbers."""
    if isinstance(change, BlocksStored):
        lora_id, lora_name = change.adapter or (None, None)
        fields = {
            "type": "BlockStored",
            "block_hashes": _numbers(change.hashes),
            "parent_block_hash": None if change.parent is None else _numbers([change.parent])[0],
            "token_ids": np.frombuffer(change.tokens, np.int32).tolist(),
            "block_size": block_tokens,
            "lora_id": lora_id,
            "medium": "GPU",
            "lora_name": lora_name,
        }
        extra = None if lora_name is None else [lora_name]
        more = {"extra_keys": [extra] * len(change.hashes), "group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    elif change.hashes is None:
        fields, more = {"type": "AllBlocksCleared"}, {}
    else:
        fields = {"type": "BlockRemoved", "block_hashes": _numbers(change.hashes), "medium": "GPU"}
        more = {"group_idx": 0}
    return list(fields.values()) if form == "array" else fields | more


def _numbers(hashes: Sequence[bytes]) -> list[int]:
    return [int.from_bytes(each, "big") & _MASK for each in hashes]
