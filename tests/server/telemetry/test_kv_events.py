"""KV events over ZeroMQ: vLLM's frames and events, in order, and replays of those that were missed."""

import asyncio
import contextlib
import hashlib
import pickle
import socket
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import httpx
import numpy as np
import pytest

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.kv.recorded_tree import BlockHasher, BlocksRemoved, BlocksStored
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Adapter, token_bytes
from llmirage_server.cluster.routers.builtin import RoundRobin

zmq = pytest.importorskip("zmq")
msgpack = pytest.importorskip("msgpack")
kv_events = pytest.importorskip("llmirage_server.telemetry.kv_events")

END = b"\xff" * 8


def key(*tokens: int) -> bytes:
    return token_bytes(np.array(tokens, np.int32))


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port: int = opened.getsockname()[1]
        return port


class Subscriber:
    """A subscriber to one engine, with ports of its own for events and replays."""

    def __init__(self, context: Any, port: int, replay_port: int, topic: str = "") -> None:
        self.events = context.socket(zmq.SUB)
        self.events.subscribe(topic)
        self.port = port
        self.replays = context.socket(zmq.DEALER)
        self.replays.connect(f"tcp://127.0.0.1:{replay_port}")

    def subscribe(self) -> None:
        self.events.connect(f"tcp://127.0.0.1:{self.port}")

    async def next(self) -> tuple[int, list[Any]]:
        _, number, batch = await asyncio.wait_for(self.events.recv_multipart(), 5)
        return int.from_bytes(number, "big"), msgpack.unpackb(batch)

    async def missed(self, first: int) -> list[tuple[int, list[Any]]]:
        await self.replays.send_multipart((b"", first.to_bytes(8, "big")))
        found = []
        while (frames := await asyncio.wait_for(self.replays.recv_multipart(), 5))[1] != END:
            found.append((int.from_bytes(frames[1], "big"), msgpack.unpackb(frames[2])))
        return found


@contextlib.contextmanager
def published(
    cluster: Cluster, adapters: Mapping[int, str] = MappingProxyType({}), **more: Any
) -> Iterator[tuple[Any, Subscriber]]:
    """Events of a cluster, which begin now, and a subscriber to its first instance."""
    port, replay_port = free_port(), free_port()
    hasher = BlockHasher("sha256_cbor", "0", adapters)
    events = kv_events.KVEvents(cluster, hasher, "127.0.0.1", port, replay_port, **more)
    context = zmq.asyncio.Context()
    try:
        events.start()
        yield events, Subscriber(context, port, replay_port, more.get("topic", ""))
    finally:
        context.destroy(linger=0)
        events.close()


@pytest.fixture
def cluster() -> Cluster:
    limits = EngineLimits(kv_tokens=4096, max_num_seqs=8, max_num_batched_tokens=512, page_size=4)
    return Cluster([FixedInstance(0, 0.0, 0.0, limits)], RoundRobin())


def test_a_thousand_batches_come_in_order_and_gaps_are_replayed(cluster: Cluster, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        [[cache]] = cluster.kv_caches()
        with published(cluster) as (events, subscriber):

            async def store(number: int) -> None:
                cache.tree.finish(cache.tree.lock(key(number) * 4)[0], key(number) * 4, 0, 4)
                await asyncio.sleep(0)

            for number in range(50):
                await store(number)
            subscriber.subscribe()
            stored = 50
            while not await subscriber.events.poll(20):
                await store(stored)
                stored += 1
            for number in range(stored, 1100):
                await store(number)
            live = [await subscriber.next()]
            while live[-1][0] < 1099:
                live.append(await subscriber.next())
            first = live[0][0]
            assert first >= 50
            assert [number for number, _ in live] == list(range(first, 1100))
            replayed = await subscriber.missed(0)
            assert [number for number, _ in replayed] == list(range(1100))
            assert replayed[first:] == live
            assert await subscriber.missed(1098) == live[-2:]
            assert [batch[1][0]["token_ids"] for _, batch in replayed] == [[number] * 4 for number in range(1100)]
            assert events.bytes_kept() > 0
            await subscriber.replays.send_multipart((b"", b"nonsense!"))  # no answer, no harm
            assert len(await subscriber.missed(1099)) == 1

    runner.run(scenario())


def test_replays_are_bounded(cluster: Cluster, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "MOST_BYTES", 5_000)

    async def scenario() -> None:
        [[cache]] = cluster.kv_caches()
        with published(cluster) as (events, subscriber):
            for number in range(200):
                cache.tree.finish(cache.tree.lock(key(number) * 4)[0], key(number) * 4, 0, 4)
                await asyncio.sleep(0)
            assert 4_000 < events.bytes_kept() <= 5_000
            assert [number for number, _ in await subscriber.missed(0)][-1] == 199

    runner.run(scenario())


def test_computed_blocks_are_told_with_hashes_of_their_tokens(make_api: Callable[..., Any], runner: asyncio.Runner) -> None:
    async def scenario(app: Any) -> tuple[list[Any], list[Any], int]:
        with published(app.driver.cluster) as (_, subscriber):
            body = {"model": "x", "prompt": list(range(1000, 1100)), "max_tokens": 40, "ignore_eos": True}
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                await client.post("/v1/completions", json=body)
                first = [event for _, batch in await subscriber.missed(0) for event in batch[1]]
                await client.post("/reset_prefix_cache")
                await asyncio.sleep(0)
                then = [event for _, batch in await subscriber.missed(0) for event in batch[1]][len(first) :]
        return first, then, app.limits.page_size

    api = make_api(dialect="vllm", engine="vllm", ttft_ms=None, itl_ms=None, speed=float("inf"), instances=1)
    first, then, page = runner.run(scenario(api.app))
    assert {event["type"] for event in first} == {"BlockStored"}
    tokens = [token for event in first for token in event["token_ids"]]
    assert tokens[:100] == list(range(1000, 1100))
    assert len(tokens) == 140 - 140 % page
    hashes = [one for event in first for one in event["block_hashes"]]
    whole = BlockHasher("sha256_cbor", "0").hashes(None, key(*tokens), page)
    assert hashes == [int.from_bytes(each[-8:], "big") for each in whole]
    assert [event["parent_block_hash"] for event in first][:2] == [None, first[0]["block_hashes"][-1]]
    removed = [one for event in then for one in event["block_hashes"]]
    assert ({event["type"] for event in then}, sorted(removed)) == ({"BlockRemoved"}, sorted(hashes))


def test_the_name_of_an_adapter_is_in_the_hash_and_the_event(cluster: Cluster, runner: asyncio.Runner) -> None:
    """vLLM 0.24: hash_block_tokens(sha256_cbor, NONE_HASH of seed "0", (1, 2, 3, 4), ("mine",))."""

    async def scenario() -> Any:
        [[cache]] = cluster.kv_caches()
        with published(cluster, adapters={3: "mine"}) as (_, subscriber):
            own = Adapter("mine", 3, 16).own_ids(key(1, 2, 3, 4))
            cache.tree.finish(cache.tree.lock(own)[0], own, 0, 4)
            await asyncio.sleep(0)
            [(_, batch)] = await subscriber.missed(0)
            return batch[1][0]

    event = runner.run(scenario())
    before = hashlib.sha256(b"\x610").digest()  # the seed "0" as CBOR
    whole = hashlib.sha256(b"\x83\x58\x20" + before + b"\x84\1\2\3\4" + b"\x81\x64mine").digest()
    assert event["block_hashes"] == [int.from_bytes(whole[-8:], "big")]
    shown = [event[name] for name in ("token_ids", "lora_id", "lora_name", "extra_keys")]
    assert shown == [[1, 2, 3, 4], 3, "mine", [["mine"]]]
    pickled = BlockHasher(seed="0").hashes(None, key(1), 1, "mine")
    first = hashlib.sha256(pickle.dumps("0", pickle.HIGHEST_PROTOCOL)).digest()
    assert pickled == [hashlib.sha256(pickle.dumps((first, (1,), ("mine",)), pickle.HIGHEST_PROTOCOL)).digest()]


def test_a_crash_clears_all_blocks(cluster: Cluster, runner: asyncio.Runner) -> None:
    async def scenario() -> list[Any]:
        [[cache]] = cluster.kv_caches()
        with published(cluster) as (_, subscriber):
            cache.tree.finish(cache.tree.lock(key(1, 2, 3, 4))[0], key(1, 2, 3, 4), 0, 4)
            cluster.act("crash", 0, 1.0)
            await asyncio.sleep(0.01)
            return [event["type"] for _, batch in await subscriber.missed(0) for event in batch[1]]

    assert runner.run(scenario()) == ["BlockStored", "AllBlocksCleared"]


def test_events_have_the_forms_of_vllm_before_and_since_0_24() -> None:
    stored, number = BlocksStored([b"\1" * 32], None, key(1, 2)), 0x0101010101010101
    assert kv_events.event_of(stored, 2, "map") == {
        "type": "BlockStored", "block_hashes": [number], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2,
        "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": [None], "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }  # fmt: skip
    assert kv_events.event_of(stored, 2, "array") == ["BlockStored", [number], None, [1, 2], 2, None, "GPU", None]
    removed = BlocksRemoved([b"\1" * 32])
    assert kv_events.event_of(removed, 2, "array") == ["BlockRemoved", [number], "GPU"]
    assert kv_events.event_of(BlocksRemoved(None), 2, "array") == ["AllBlocksCleared"]
    assert kv_events.event_of(BlocksRemoved(None), 2, "map") == {"type": "AllBlocksCleared"}


def test_a_router_is_told_which_engines_there_are(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "_REGISTER_EVERY_S", 0.01)

    async def heard() -> list[tuple[str, dict[str, str]]]:
        context, there = zmq.asyncio.Context(), [True, True]
        router = context.socket(zmq.ROUTER)
        address = f"127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
        registrations = kv_events.Registrations(address, [("prefill", "h:1"), ("decode", "h:2")], lambda: there)
        try:
            registrations.start()
            found = [await router.recv_multipart() for _ in range(2)]
            there[0] = False
            await asyncio.sleep(0.1)
            while await router.poll(0):
                await router.recv_multipart()  # from when both were there
            found += [await router.recv_multipart() for _ in range(2)]
            return [(name.decode(), msgpack.unpackb(message)) for name, message in found]
        finally:
            registrations.close()
            context.destroy(linger=0)

    both = [
        (address, {"type": role, "http_address": address, "zmq_address": address})
        for role, address in (("P", "h:1"), ("D", "h:2"))
    ]
    found = runner.run(asyncio.wait_for(heard(), 10))
    assert sorted(found[:2]) == sorted(both)
    assert found[2:] == [both[1]] * 2
