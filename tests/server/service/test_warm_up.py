"""A server loads what requests need before they come: the event loop must not stand still for the first of each kind."""

import subprocess
import sys

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
    assert {"chat", "completions", "responses", "messages", "embeddings"} <= set(loaded.split())
    assert early == "False"  # the start does not wait for them
