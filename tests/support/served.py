"""A server in a process of its own."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


@contextmanager
def serving(*flags: str, log: IO[str] | None = None) -> Iterator[str]:
    """Run `llmirage serve` with these flags on a free port; gives its /v1 URL. log: instead of standard error."""
    command = "from llmirage_server.commands.serve import serve; serve()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "--port", "0", *flags], stdout=subprocess.PIPE, stderr=log, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"http://\S+/v1$", line):
                yield found.group()
                break
    finally:
        process.terminate()
        process.communicate(timeout=10)
