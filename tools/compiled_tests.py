"""Runs the tests of what is compiled on a compiled copy of this checkout, in build/compiled: the checkout stays as it is.

    python tools/compiled_tests.py [arguments for pytest]

The copy is made anew and compiled as `make compile` does it for users (tools/compile.py), but without the C compiler's
optimization, which takes half of the time. Its message says what is missing where it cannot be compiled. Exit status: that
of pytest; 2 if nothing could be compiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPY = ROOT / "build/compiled"
COPIED = ("shared", "server", "client", "docs", "tests", "tools", "workloads", "pyproject.toml")
UNWANTED = shutil.ignore_patterns("__pycache__", "node_modules", "*.egg-info", "*.so", "*.pyd", "compiled.manifest")
# By folders: what the compiled modules do, and what asks them.
TESTS = (
    "tests/golden", "tests/server/cluster", "tests/server/drivers", "tests/server/perf/steps", "tests/client/load",
    "tests/client/simulate", "tests/client/simulator", "tests/server/commands/test_serve_workers.py",
    "tests/shared/test_compiled.py", "tests/shared/test_plain_numbers.py",
)  # fmt: skip


def copy_checkout() -> None:
    shutil.rmtree(COPY, ignore_errors=True)
    COPY.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, COPY / name, symlinks=True, ignore=UNWANTED)
        else:
            shutil.copy(ROOT / name, COPY / name)


def main(arguments: list[str]) -> int:
    copy_checkout()
    # Before the checkout's own packages, for this process's children and theirs.
    packages = os.pathsep.join(str(COPY / side) for side in ("shared", "server", "client"))
    environment = {**os.environ, "PYTHONPATH": packages}
    command = [sys.executable, "tools/compile.py", "--unmeasured", "--level", "0"]
    compiled = subprocess.run(command, cwd=COPY, env=environment, check=False)
    if compiled.returncode or not (COPY / "shared/llmirage_shared/compiled.manifest").exists():
        print("error: without a build there is nothing to test, see above for what `make compile` needs", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "pytest", *(arguments or ["-n", "auto"]), *TESTS]
    return subprocess.run(command, cwd=COPY, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
