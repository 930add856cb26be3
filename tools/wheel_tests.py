"""A built wheel as a stranger meets it: installed into a fresh environment, README's pytest example, size, results.

    python tools/wheel_tests.py dist/llmirage-*.whl

Tells how long each step takes and how much is installed. Compiled modules must give the results of their sources, and those
of tests/golden, to the last bit. Needs a package index. Exit status 1 if something fails or takes longer than it may.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_S = 60.0  # from the wheel to the example's result
MOST_MB = 310.0
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "jinja2")
RESULTS = (
    "tests/golden/test_golden.py",
    "tests/shared/test_compiled.py::test_compiled_modules_and_sources_give_the_same_records",
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


def example() -> str:
    """README's test file."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    [text] = re.findall(r"^```python\n(# test_weather\.py\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    return str(text)


def main(wheel: Path) -> int:
    problems = []
    with tempfile.TemporaryDirectory() as temporary:
        stranger = Stranger(Path(temporary))
        (stranger.folder / "test_weather.py").write_text(example())
        began_s = time.perf_counter()
        stranger.run("python", "-m", "pip", "install", "-q", str(wheel))
        installed_s = time.perf_counter() - began_s
        size_mb = stranger.installed_mb()
        stranger.run("python", "-m", "pip", "install", "-q", "pytest", "openai")
        example_s = time.perf_counter()
        stranger.run("python", "-m", "pytest", "test_weather.py")
        took_s = time.perf_counter() - began_s
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB; with all it needs {size_mb:.0f} MB")
        print(f"installed in {installed_s:.1f} s; README's example passed {took_s:.1f} s after the start, ", end="")
        print(f"{time.perf_counter() - example_s:.1f} s of them pytest; {sum(os.times()[2:4]):.1f} s of CPU time")
        problems += [f"it took more than {MOST_S} s"] * (took_s > MOST_S)
        problems += [f"more than {MOST_MB} MB are installed"] * (size_mb > MOST_MB)
        print(stranger.run("llmirage", "--version").strip())
        if "none-any" not in wheel.name:
            stranger.run("python", "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), *TOOLS)
            stranger.run("python", "-m", "pytest", "-q", *RESULTS, where=ROOT)
            print("results of compiled modules: those of the sources, and those that were recorded, to the last bit")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
