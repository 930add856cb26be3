"""Requests for many vectors beside others."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llmirage_server.service import embedding
from llmirage_server.service.text import TextLoader


@pytest.mark.parametrize(("counts", "order"), [((500, 20), [20, 500]), ((20, 500), [20, 500]), ((500, 90), [500, 90])])
def test_few_inputs_do_not_wait_for_the_many_of_another(
    counts: tuple[int, int], order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "_TURN_S", 0.0)
    read: list[Any] = []
    made: list[int] = []
    done: list[int] = []

    async def prefill(service: Any, name: str, prompts: Any, exchange: Any) -> None:
        await asyncio.sleep(0)
        read.append(prompts)

    async def ask(service: Any, exchange: Any, count: int) -> None:
        def work() -> Iterator[int]:
            for _ in range(count):
                assert count <= 64 or count in read  # nothing large waits for the cluster
                made.append(count)
                yield count

        assert await embedding.ReadingHandler(service).computed(exchange, "m", count, ["x"] * count, work) == [count] * count  # type: ignore[arg-type]
        done.append(count)

    async def both() -> None:
        service = SimpleNamespace(text=TextLoader(lambda: None))  # type: ignore[arg-type, return-value]
        exchange = SimpleNamespace(queued=lambda in_thread, work: in_thread(work))
        await asyncio.gather(*[ask(service, exchange, count) for count in counts])

    monkeypatch.setattr(embedding, "prefill", prefill)
    asyncio.run(both())
    assert done == order
    if min(counts) > 64:
        assert made == sorted(made, reverse=True)  # one after the other
