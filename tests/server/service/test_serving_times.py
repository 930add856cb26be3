"""Through the whole server, in virtual time: clients see exactly the times that the performance model computes."""

import asyncio
import itertools
import subprocess
import sys
from typing import Any

import pytest
from raw_asgi import RawAnswer

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_shared import virtual_time


async def stream(app: LlmirageApp, prompt: list[int], max_tokens: int) -> list[float]:
    """The times at which the chunks of a streamed completion leave, seconds on the loop's clock."""
    body = {"model": "any", "prompt": prompt, "max_tokens": max_tokens, "stream": True}
    parts = (await RawAnswer().ask(app, "/v1/completions", body)).parts
    return [at_s for at_s, data in parts for _ in range(data.count(b'"text":"'))]


def app_with(**settings: Any) -> LlmirageApp:
    return create_app(ClusterConfig(accept_models="any", **settings))


@pytest.mark.parametrize("speed", [1.0, 8.0])
def test_one_user_gets_the_ttft_and_tpot_that_the_banner_promises(speed: float) -> None:
    app = app_with(speed=speed)
    times = virtual_time.run(stream(app, list(range(1000)), 5))
    ttft_s = app.deployment.engine.front_end_ttft_s + app.deployment.ttft_s(1000)
    assert times[0] == pytest.approx(ttft_s / speed, rel=1e-6)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    expected = [app.deployment.tpot_s(1000 + i) / speed for i in range(1, 5)]
    assert gaps == pytest.approx(expected, rel=1e-3)


async def test_a_cached_prompt_gets_its_first_token_much_sooner() -> None:
    app = app_with()
    loop = asyncio.get_running_loop()
    prompt = list(range(8000))
    ttfts = []
    for _ in range(2):
        start = loop.time()
        ttfts.append((await stream(app, prompt, 2))[0] - start)
    cold_s, warm_s = ttfts[0], ttfts[1]
    assert warm_s < cold_s / 5


def test_two_runs_of_one_load_have_the_same_times_bit_for_bit() -> None:
    async def main() -> list[list[float]]:
        app = app_with()

        async def user(number: int) -> list[float]:
            await asyncio.sleep(number * 0.003)
            return await stream(app, list(range(number, 500 + number * 100)), 20)

        return await asyncio.gather(*(user(number) for number in range(12)))

    assert virtual_time.run(main()) == virtual_time.run(main())


def test_many_users_share_an_instance_and_all_wait_longer_between_tokens() -> None:
    async def main(users: int) -> float:
        app = app_with(instances=1)
        results = await asyncio.gather(*(stream(app, list(range(n, n + 300)), 30) for n in range(users)))
        return max(times[-1] - times[0] for times in results)

    assert virtual_time.run(main(64)) > 1.5 * virtual_time.run(main(1))


PROGRAM = """
import asyncio, sys
from llmirage_server.app import create_app

async def main():
    app = create_app()
    early = "llmirage_shared.wire.schema.responses" in sys.modules
    async with app.router.lifespan_context(app):
        await app.service.text.in_thread(lambda: None)
    print(*sorted({name.rpartition(".")[2] for name in sys.modules if name.startswith("llmirage_shared.wire.schema.")}))
    print(early)

asyncio.run(main())
"""


def test_the_bodies_of_the_large_apis_are_loaded_in_the_background() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    loaded, early = done.stdout.splitlines()
    assert {"chat", "responses", "messages", "embeddings"} <= set(loaded.split())
    assert early == "False"  # the start does not wait for them
