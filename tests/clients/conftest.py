"""A server process for real client libraries."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def base_url() -> Iterator[str]:
    """The /v1 URL of a server whose tokens are due at once."""
    command = "from llmirage_server.cli import serve; serve()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "--port", "0", "--ttft", "1", "--itl", "0", "--max-model-len", "4000"],
        stdout=subprocess.PIPE,
        text=True,
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
