"""Programs of others that talk to a server: where they are installed, and a server whose log tells what they met."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from served import serving

PLACE = os.environ.get("LLMIRAGE_CLIENTS")  # the folder that tests/clients/programs/install.py fills
if_installed = pytest.mark.skipif(PLACE is None, reason="make test-clients runs it")
_REFUSED = re.compile(r'" ([45]\d\d)\b')


def program(package: str, executable: str) -> str:
    """The path of a program of this package; without it the test is skipped."""
    for folder in ("bin", "node_modules/.bin"):
        if PLACE and (found := shutil.which(Path(PLACE).absolute() / package / folder / executable)):
            return found
    pytest.skip(f"{package} is not installed (make test-clients PROGRAMS={package})")


@dataclass
class LoggedServer:
    """url: without /v1."""

    url: str
    log: Path

    def problems(self, allowed: str = "") -> list[str]:
        """Lines of the log that tell of an error or a refusal; without those in which `allowed` occurs."""
        lines = self.log.read_text("utf-8").splitlines()
        wrong = [line for line in lines if line.startswith(("ERROR", "CRITICAL", "Traceback")) or _REFUSED.search(line)]
        return [line for line in wrong if not (allowed and allowed in line)]

    def reply_tokens(self) -> list[int]:
        """The tokens of each reply."""
        return [int(tokens) for tokens in re.findall(r" out=(\d+)", self.log.read_text("utf-8"))]

    def requests(self, path: str) -> int:
        return self.log.read_text("utf-8").count(f'"POST {path}" 200')


@contextmanager
def logged(folder: Path, *flags: str) -> Iterator[LoggedServer]:
    with (folder / "server.log").open("w") as log, serving("--access-log", *flags, log=log) as url:
        yield LoggedServer(url.removesuffix("/v1"), folder / "server.log")


def ran(command: list[str], folder: Path, timeout_s: float = 180, **environment: str) -> str:
    """What a program printed; fails with it if the program does."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout
