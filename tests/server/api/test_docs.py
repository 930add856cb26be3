"""docs/api.md says what the server does with each parameter, docs/faults.md what it does wrong on order; both are made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("page", ["api", "faults"])
def test_the_tables_are_what_the_server_does(page: str) -> None:
    check = [sys.executable, str(ROOT / f"tools/{page.removesuffix('s')}_docs.py"), "--check", str(ROOT / f"docs/{page}.md")]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
