"""The library in fresh interpreters: CPU time of the whole process."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.measurement import Cost, Work, children_cpu_s, measures

_TESTS = """
import pytest

HELLO = [{"role": "user", "content": "Hello"}]

@pytest.mark.parametrize("number", range(%d))
def test_it(llmirage_server, number):
    reply = llmirage_server.openai().chat.completions.create(model="m", messages=HELLO, max_tokens=16)
    assert reply.choices[0].message.content
    llmirage_server.expect(1, user="Hello")
"""
_MANY = 100


def program(code: str) -> Work:
    def work(share: float) -> Cost:
        before_s = children_cpu_s()
        subprocess.run([sys.executable, "-c", code], check=True)
        return Cost(children_cpu_s() - before_s, 1)

    return work


@measures("start")
def server() -> Iterator[Work]:
    """llmirage.Server() in process, and the interpreter that it is in."""
    yield program("import llmirage, os; llmirage.Server().start(); os._exit(0)")


@measures("start", beside="library_server")
def server_on_port() -> Iterator[Work]:
    """llmirage.Server(port=0) until it listens."""
    yield program("import llmirage, os; llmirage.Server(port=0).start(); os._exit(0)")


@measures("start", beside="library_server")
def first_reply() -> Iterator[Work]:
    """The same with a first reply, over httpx."""
    ask = "httpx.Client(transport=server.transport).post('http://x/v1/completions', json={'model': 'm', 'prompt': 'x'})"
    yield program(
        f"import httpx, llmirage, os; server = llmirage.Server(virtual_time=True); assert {ask}.is_success; os._exit(0)"
    )


@measures("test")
def fixture() -> Iterator[Work]:
    """100 tests with a server each, which they ask once by the client of openai."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "test_many.py")

        def work(share: float) -> Cost:
            count = max(1, int(_MANY * share))
            file.write_text(_TESTS % count)
            before_s = children_cpu_s()
            pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
            subprocess.run(pytest, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            return Cost(children_cpu_s() - before_s, count)

        yield work
