"""The examples in the help of every command do what they say."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from examples import ONE_OF_MANY, SERVERS, command_of, commands, first_line_of, served_beside, typed

EXAMPLES = [(words, line) for words in commands() for line in command_of(words).examples]
IN_DOUBT = {"compare": (0, 1), "run": (0, 3), "sweep": (0, 1), "verdict": (0, 3)}  # statuses that are answers, too


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server; the current folder has what the examples name."""
    with served_beside(tmp_path_factory.mktemp("examples")) as found:
        yield found


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
    assert not ONE_OF_MANY.search(done.output), done.output
