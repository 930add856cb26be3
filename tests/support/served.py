"""A server in a process of its own, on a free port."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from warm import llmirage


@contextmanager
def started(*flags: str, log: IO[str] | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `llmirage serve` with these flags; give the process and its URL. log: instead of standard error."""
    command = [*llmirage(), "serve", "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"(https?://\S+)/v1$", line):
                yield process, found[1]
                break
    finally:
        process.terminate()
        process.communicate(timeout=10)


@contextmanager
def serving(*flags: str, log: IO[str] | None = None) -> Iterator[str]:
    """Give the server's /v1 URL alone."""
    with started(*flags, log=log) as (_, url):
        yield f"{url}/v1"
