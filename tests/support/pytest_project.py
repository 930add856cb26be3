"""A project whose tests use the pytest plugin."""

import re
import textwrap

import pytest
from pages import ROOT, blocks

HEAD = """
import asyncio, threading, time
import pytest, llmirage
HELLO = [{"role": "user", "content": "Hello"}]

def ask(server, text="Hello", **more):
    messages = [{"role": "user", "content": text}]
    return server.openai(max_retries=0, timeout=3600).chat.completions.create(model="m", messages=messages, **more)

def said(server, text="Hello"):
    return ask(server, text).choices[0].message.content
"""


_LOADED = "ignore::pytest.PytestAssertRewriteWarning"  # in this process llmirage is loaded already
INI = "[pytest]\nasyncio_default_fixture_loop_scope = function\n"


class Project:
    """A folder with tests/test_it.py."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        self.folder = pytester.path
        (self.folder / "tests").mkdir()
        (self.folder / "pytest.ini").write_text(INI)

    def tests(self, text: str) -> None:
        self._pytester.makepyfile(**{"tests/test_it": HEAD + textwrap.dedent(text)})

    def shown(self, name: str) -> None:
        """What docs/pytest.md shows as this file."""
        [text] = [block.text for block in blocks(ROOT / "docs/pytest.md") if block.text.startswith(f"# {name}\n")]
        (self.folder / name).write_text(text)

    def recordings(self) -> list[str]:
        """Their paths, without the hashes."""
        paths = [path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.yaml")]
        return sorted([re.sub(r"-[0-9a-f]{8}", "", path) for path in paths])

    def run(self, *arguments: str, apart: bool = False, **outcomes: int) -> str:
        """What pytest prints. apart: in a process of its own. outcomes: passed=2, failed=1, errors=1."""
        run = self._pytester.runpytest_subprocess if apart else self._pytester.runpytest_inprocess
        unused = ("-p", "no:anyio", "-p", "no:hypothesispytest") if apart else ()  # which take a second to load
        result = run("-p", "no:cacheprovider", "-p", "no:randomly", *unused, *arguments, "-W", _LOADED)
        found = {kind: count for kind, count in result.parseoutcomes().items() if kind != "deselected"}
        assert found == outcomes
        return str(result.stdout)
