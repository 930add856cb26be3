"""A server in a process of its own, on a free port."""

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import httpx
from warm import llmirage

WITHIN_S = 5.0


@contextmanager
def started(
    *flags: str, log: IO[str] | None = None, program: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `llmirage serve` with these flags; give the process and its URL. log: instead of standard error.

    program: runs the command, instead of a fork of a warm process.
    """
    command = [*(program or llmirage()), "serve", "--port", "0", *flags]
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


def answer(url: str) -> int:
    """Return the status of /health, 0 if the connection is refused, or cut since the port is being closed."""
    try:
        return httpx.get(f"{url}/health").status_code
    except (httpx.NetworkError, httpx.RemoteProtocolError):
        return 0


def comes_to(url: str, status: int) -> bool:
    until_s = time.monotonic() + WITHIN_S
    while time.monotonic() < until_s and answer(url) != status:
        time.sleep(0.02)
    return answer(url) == status
