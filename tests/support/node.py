"""Scripts of tests/clients/node against a server."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parents[1] / "clients/node"
NODE = shutil.which("node")


def run(script: str, package: str, base_url: str, tmp_path: Path) -> dict[str, Any]:
    """What a script of tests/clients/node prints in its last line, JSON. Without node or the package the test is skipped."""
    modules = Path(os.environ.get("LLMIRAGE_NODE_CLIENTS", HERE)) / "node_modules"
    if NODE is None or not (modules / package).is_dir():
        pytest.skip(f"needs node and the package {package}")
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(HERE / script, tmp_path)
    done = subprocess.run(
        [NODE, str(tmp_path / script)],
        env={**os.environ, "BASE_URL": base_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
