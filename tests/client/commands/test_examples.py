"""The examples in the help of every command do what they say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from examples import SERVERS, command_of, commands, first_line_of, furnish, typed
from served import serving

EXAMPLES = [(words, line) for words in commands() for line in command_of(words).examples]
IN_DOUBT = {"compare": (0, 1), "run": (0, 3), "verdict": (0, 3)}  # statuses that are answers, too


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server; the current folder has what the examples name."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("examples")
    os.chdir(folder)
    try:
        furnish(folder)
        with serving("--speed", "50") as url:
            yield str(urlsplit(url).port)
    finally:
        os.chdir(before)


@pytest.mark.parametrize(("words", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_an_example_works(words: tuple[str, ...], line: str, port: str) -> None:
    if words[0] in SERVERS and len(words) == 1:
        assert "llmirage" in first_line_of(line)
        return
    if "init" in line:
        Path("replies.yaml").unlink(missing_ok=True)
    done = typed(line, port=port)
    assert done.exit_code in IN_DOUBT.get(words[0], (0,)), done.output
    assert done.output
