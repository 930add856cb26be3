"""docs/api.md says what the server does with each parameter; it is made from calls to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_table_of_parameters_is_what_the_server_does() -> None:
    check = [sys.executable, str(ROOT / "tools/api_docs.py"), "--check", str(ROOT / "docs/api.md")]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
