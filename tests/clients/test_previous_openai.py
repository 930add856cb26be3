"""The previous major version of openai-python: the same tests, in a Python that has it.

LLMIRAGE_PREVIOUS_OPENAI names that Python's executable: one where this package, pytest and "openai<3" are installed. Skipped
where it is not set, as it is where these tests run in that Python themselves.
"""

import os
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("LLMIRAGE_PREVIOUS_OPENAI")
HERE = Path(__file__).parent


@pytest.mark.skipif(PYTHON is None, reason="LLMIRAGE_PREVIOUS_OPENAI names no Python")
def test_the_previous_major_version() -> None:
    assert PYTHON is not None
    version = [PYTHON, "-c", "import openai; print(openai.__version__)"]
    assert subprocess.run(version, capture_output=True, text=True, check=True).stdout.startswith("2.")
    tests = sorted(str(path) for path in HERE.glob("test_openai_sdk*.py"))
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", *tests],
        cwd=HERE.parent.parent,
        env={name: value for name, value in os.environ.items() if name != "LLMIRAGE_PREVIOUS_OPENAI"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
