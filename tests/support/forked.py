"""Command lines of llmirage, each in a fork of a process that has imported everything: a second each at most.

Run as a program it reads command lines from standard input, one JSON list a line, and answers each with one line of JSON: a
traceback, "" if there was none, null if the command was ended because it took too long.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Forks:
    """The process that forks."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, words: Sequence[str]) -> str | None:
        """The traceback of a command, "" if it had none, None if it took too long to tell."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(list(words)) + "\n")
        self._process.stdin.flush()
        answer: str | None = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def forking(longest_s: float) -> Iterator[Forks]:
    command = [sys.executable, __file__, str(longest_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Forks(process)
        assert process.stdin is not None
        process.stdin.close()


def _main(longest_s: float) -> None:
    import llmirage_client.operations.run
    import llmirage_client.operations.size  # noqa: F401

    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.close(reading)
            _answer(json.loads(line), writing)
        os.close(writing)
        os.setpgid(child, child)
        found = b""
        while select.select([reading], [], [], longest_s)[0] and (data := os.read(reading, 65536)):
            found += data
        os.close(reading)
        os.killpg(child, signal.SIGKILL)  # which has answered, or takes too long
        os.waitpid(child, 0)
        print(found.decode() or "null", flush=True)


def _answer(words: list[str], to: int) -> None:
    """Run a command, and end the process."""
    import traceback

    from click.testing import CliRunner

    from llmirage_client.cli import main

    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    try:
        if words[0] == "serve":
            _serve(words[1:])
            said = ""
        else:
            result = CliRunner().invoke(main, words)
            said = result.output if "Traceback" in result.output else ""
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                said = "".join(traceback.format_exception(result.exception))
    except Exception:
        said = traceback.format_exc()
    os.write(to, json.dumps(said[-5000:]).encode())
    os._exit(0)


def _serve(words: list[str]) -> None:
    """Do what `llmirage serve` does before it listens."""
    import click

    from llmirage_server.app import create_app
    from llmirage_server.commands.serve import ServeSettings, serve
    from llmirage_server.config import ConfigError
    from llmirage_server.config.file import make_config
    from llmirage_shared.settings import settings_of

    try:
        given = serve.make_context("serve", words).params
        config = {name: value for name, value in given.items() if name not in settings_of(ServeSettings)}
        config.pop("cluster_file", None)
        create_app(make_config(None, config)).make_routes()
    except (ConfigError, click.ClickException):
        pass


if __name__ == "__main__":
    _main(float(sys.argv[1]))
