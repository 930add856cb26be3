"""Processes that a benchmark needs beside its own: a server of llmirage, and an endpoint that costs nothing to ask."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

LLMIRAGE = [sys.executable, "-m", "llmirage"]


class Server:
    """`llmirage serve` on a free port, for as long as the `with` block."""

    def __init__(self, *flags: str) -> None:
        self._command = [*LLMIRAGE, "serve", "--port", "0", "--set", "accept_models=any", *flags]

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "COLUMNS": "200"}
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r":(\d+)/v1$", line):
                self.port = int(found[1])
                return self
        self._process.wait()
        raise RuntimeError("the server did not start")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()

    def cpu_s(self) -> float:
        """CPU seconds of all its threads so far. Linux only: by the scheduler's nanoseconds, not by ticks of 10 ms."""
        return _cpu_s(self._process.pid)

    def cpu_of_children_s(self) -> list[float]:
        """As `cpu_s`, of each process that it has started, oldest first."""
        return [_cpu_s(child) for child in self._children()]

    def writes(self) -> int:
        """System calls by which it and the processes that it has started have written so far."""
        return sum([_writes(pid) for pid in [self._process.pid, *self._children()]])

    def _children(self) -> list[int]:
        pid = self._process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def resident_mb(self) -> float:
        """Memory that it occupies."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024 / 1e6


def _cpu_s(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum([int((thread / "schedstat").read_text().split()[0]) for thread in threads]) / 1e9


def _writes(pid: int) -> int:
    return int(re.findall(r"syscw: (\d+)", Path(f"/proc/{pid}/io").read_text())[0])


class Endpoint:
    """An endpoint that answers from bytes made before (endpoint.py), in a process of its own; gives its /v1 URL."""

    def __init__(self, chunks: int, itl_ms: float = 0.0) -> None:
        self._command = [sys.executable, str(Path(__file__).with_name("endpoint.py")), str(chunks), str(itl_ms)]

    def __enter__(self) -> str:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        return f"http://127.0.0.1:{int(self._process.stdout.readline())}/v1"

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()
