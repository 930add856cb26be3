"""A user's terminal: a folder, a shell, and the servers that run in it, on ports that are free."""

import contextlib
import os
import random
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from warm import llmirage

_PORT = re.compile(r"(?<=localhost:)\d{4}\b|(?<=127\.0\.0\.1:)\d{4}\b|(?<=--port )\d{4}\b|(?<=port=)\d{4}\b")
_DEFAULT_PORT = "8000"
_NEIGHBOURS = 10  # of a port, which a fleet of engines takes
_RANGE = range(10_000, 32_000)  # below those that systems give to clients


def _free_port() -> int:
    """Return a port that is free with its neighbours."""
    while True:
        first = random.choice(_RANGE)
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
            for port in range(first, first + _NEIGHBOURS):
                opened.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


class Terminal:
    """Commands are typed one after the other. `llmirage serve` and programs named in `staying` go on until the next of the
    same port, or the end. Ports of the text stand for free ports, the same one each time."""

    def __init__(
        self,
        folder: Path,
        staying: dict[str, str] | None = None,
        programs: Path | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        """programs: the folder with `llmirage` and `python`, by default this one's. variables: of the environment."""
        self.folder = folder
        self._staying = {"llmirage serve": _DEFAULT_PORT, **(staying or {})}
        self._ports: dict[str, str] = {}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        tools = folder / ".bin"
        tools.mkdir()
        own_programs = {"xdg-open": ":"} | ({} if programs else {"llmirage": f'exec {shlex.join(llmirage())} "$@"'})
        for name, line in own_programs.items():
            (tools / name).write_text(f"#!/bin/sh\n{line}\n")
            (tools / name).chmod(0o755)
        path = os.pathsep.join([str(tools), str(programs or Path(sys.executable).parent), os.environ["PATH"]])
        own = {"PATH": path, "COLUMNS": "100", "LLMIRAGE_PORT": self._free(_DEFAULT_PORT), "HF_HUB_OFFLINE": "1"}
        self._environment = {**os.environ, **own, **(variables or {})}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for port in list(self._servers):
            self._stop(port)

    def file(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._with_free_ports(text), encoding="utf-8")

    def type(self, command: str) -> tuple[int, str]:
        """Exit status and output. A server's are 0, once it answers, and nothing."""
        for program, port in self._staying.items():
            if command.startswith(program):
                found = _PORT.search(command)
                self._serve(command, found[0] if found else port)
                return 0, ""
        done = subprocess.run(
            ["bash", "-c", self._with_free_ports(command)], cwd=self.folder, env=self._environment, timeout=120,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return done.returncode, self._with_shown_ports(done.stdout)

    def _serve(self, command: str, port: str) -> None:
        self._stop(port)
        words = shlex.split(self._with_free_ports(command), comments=True)
        log = self.folder / f".server-{port}.log"
        with log.open("wb") as out:
            server = subprocess.Popen(words, cwd=self.folder, env=self._environment, stdout=out, stderr=subprocess.STDOUT)
        self._servers[port] = server
        deadline_s = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://localhost:{self._free(port)}/health", timeout=5).close()
                return
            except urllib.error.HTTPError:
                return
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None, f"{command}\n{log.read_text()}"
                assert time.monotonic() < deadline_s, f"{command}: it does not answer\n{log.read_text()}"
                time.sleep(0.05)

    def _stop(self, port: str) -> None:
        server = self._servers.pop(port, None)
        if server is not None:
            server.terminate()
            server.wait(30)

    def _free(self, port: str) -> str:
        if port not in self._ports:
            self._ports[port] = str(_free_port())
        return self._ports[port]

    def _with_free_ports(self, text: str) -> str:
        return _PORT.sub(lambda found: self._free(found[0]), text)

    def _with_shown_ports(self, text: str) -> str:
        for shown, free in self._ports.items():
            text = re.sub(rf"\b{free}\b", shown, text)
        return text
