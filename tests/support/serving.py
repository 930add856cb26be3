"""`llmirage serve` in a process of its own."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator

SERVE = [sys.executable, "-c", "from llmirage_server.commands.serve import serve; serve(prog_name='llmirage serve')"]


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the address of a server on a free port. It is killed at the end."""
    process = subprocess.Popen([*SERVE, "--port", "0", *flags], stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"(https?://\S+)/v1$", line):
                yield process, found[1]
                break
    finally:
        process.kill()
        process.communicate()
