"""Tests of a built wheel in a fresh environment: README's commands and its pytest example, size, results.

    python tools/wheel_tests.py dist/llmirage-*.whl
    python tools/wheel_tests.py --core dist/llmirage-*.whl    only what needs nothing but the wheel: README's commands

Every command of README.md is typed before anything else is installed, and a load is run with a chat model's own tokenizer
and template. Compiled modules must give the results of their sources, and those of tests/golden, to the last bit. Tells how
long each step takes. Needs a package index. Exit status 1 if something fails, takes too long or installs too much.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

from pages import ELSEWHERE, PAGES, ROOT, blocks, commands, give_files
from terminal import Terminal

MOST_S = 60.0  # from the wheel to the example's result
MOST_MB = 310.0
TOOLS = ("pytest", "pytest-xdist", "hypothesis")
RESULTS = (
    "tests/golden/test_golden.py",
    "tests/shared/test_compiled.py::test_compiled_modules_and_sources_give_the_same_records",
)
README = PAGES[0]
SERVERS = {"llmirage record": "8001"}  # commands that stay, beside `llmirage serve`, and their ports
_MORE = {"record": "--port 8001", "run": "--speed 60", "serve": "--speed 60"}
TOKENIZER = ROOT / "tests/data/tokenizer"
OWN_TOKENIZER = (  # a server and a load that render a model's own chat template
    f"llmirage serve --tokenizer {TOKENIZER}",
    f"llmirage run bundled:dag-example --url localhost:8000 --tokenizer {TOKENIZER}",
)


class Stranger:
    """A machine of somebody who has the wheel and an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = folder / "environment"
        self.binaries = self.environment / ("Scripts" if os.name == "nt" else "bin")
        venv.create(self.environment, with_pip=True)

    def run(self, *words: str, where: Path | None = None) -> str:
        """What a program of the environment prints. Raises CalledProcessError, after its output was shown."""
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_CONSTRAINT")}
        command = [str(self.binaries / words[0]), *words[1:]]
        done = subprocess.run(command, cwd=where or self.folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            print(f"{' '.join(words)}\n{done.stdout}{done.stderr}", file=sys.stderr)
            done.check_returncode()
        return done.stdout

    def installed_mb(self) -> float:
        """All files of the packages, and what pip compiles of them; not pip and setuptools themselves."""
        code = (
            "import importlib.metadata as m, os; print(sum(os.path.getsize(f.locate()) for d in m.distributions() "
            "if d.name not in ('pip', 'setuptools') for f in d.files or () if f.locate().is_file()))"
        )
        return int(self.run("python", "-c", code)) / 1e6

    def type_readme(self) -> Iterator[str]:
        """Type README's commands, and two with a tokenizer, with a clock sixty times faster; yield what fails."""
        folder = self.folder / "readme"
        folder.mkdir()
        give_files(folder, README)
        lines = [line for block in blocks(README) for line in commands(block)]
        typed = [*lines, *OWN_TOKENIZER]
        with Terminal(folder, SERVERS, self.binaries, {"KEY": "secret"}) as terminal:
            terminal.type(_here("llmirage serve"))
            for line in typed:
                if line.startswith("make ") or any(part in line for part in ELSEWHERE):
                    continue
                began_s = time.perf_counter()
                status, output = terminal.type(_here(line))
                print(f"  {time.perf_counter() - began_s:5.1f} s  {line}")
                if status:
                    yield f"{line}: exit status {status}\n{output}"


def _here(line: str) -> str:
    """Return the line with this machine as the reader's endpoint, the port that the page names, and a fast clock."""
    line = line.replace("https://my-endpoint/v1", "http://localhost:8000/v1").replace("curl ", "curl --fail-with-body ")
    return re.sub(r"^llmirage (record|run|serve)\b", lambda found: f"{found[0]} {_MORE[found[1]]}", line)


def example() -> str:
    """README's test file."""
    [text] = re.findall(r"^```python\n(# test_weather\.py\n.*?)^```", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return str(text)


def main(wheel: Path, core_only: bool) -> int:
    problems = []
    with tempfile.TemporaryDirectory() as temporary:
        stranger = Stranger(Path(temporary))
        began_s = time.perf_counter()
        stranger.run("python", "-m", "pip", "install", "-q", str(wheel))
        installed_s = time.perf_counter() - began_s
        size_mb = stranger.installed_mb()
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB; with all it needs {size_mb:.0f} MB, ", end="")
        print(f"installed in {installed_s:.1f} s")
        problems += [f"more than {MOST_MB} MB are installed"] * (size_mb > MOST_MB)
        problems += stranger.type_readme()
        if not core_only:
            problems += _with_tools(stranger, wheel, installed_s)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _with_tools(stranger: Stranger, wheel: Path, installed_s: float) -> Iterator[str]:
    """Run README's example of pytest and, with compiled modules, the tests of their results; yield what takes too long."""
    (stranger.folder / "test_weather.py").write_text(example())
    began_s = time.perf_counter()
    stranger.run("python", "-m", "pip", "install", "-q", "pytest", "openai")
    example_s = time.perf_counter()
    stranger.run("python", "-m", "pytest", "test_weather.py")
    took_s = installed_s + time.perf_counter() - began_s
    print(
        f"README's example passed {took_s:.1f} s after the start, {time.perf_counter() - example_s:.1f} s of them pytest; ",
        end="",
    )
    print(f"{sum(os.times()[2:4]):.1f} s of CPU time, commands included")
    if took_s > MOST_S:
        yield f"it took more than {MOST_S} s"
    if "none-any" not in wheel.name:
        stranger.run("python", "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), *TOOLS)
        stranger.run("python", "-m", "pytest", "-q", *RESULTS, where=ROOT)
        print("results of compiled modules: those of the sources, and those that were recorded, to the last bit")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[-1]).resolve(), "--core" in sys.argv))
