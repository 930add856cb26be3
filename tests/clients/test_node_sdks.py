"""openai-node and the AI SDK against the server; skipped where node or their packages are missing.

The packages: `npm install --prefix tests/clients/node`, or a folder with node_modules named by LLMIRAGE_NODE_CLIENTS.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "node"
NODE = shutil.which("node")


def run(script: str, package: str, base_url: str, tmp_path: Path) -> dict[str, Any]:
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


def test_openai_node(base_url: str, tmp_path: Path) -> None:
    loop = {"asked": ["Paris"], "roles": ["user", "assistant", "tool", "assistant"]}
    assert run("openai_sdk.mjs", "openai", base_url, tmp_path) == {
        "create": ["stop", True],
        "stream": [True, True],
        "parse": True,
        "runTools": loop,
        "runToolsStreamed": loop,
        "response": True,
        "responseParse": True,
        "responseStream": [True, ['{"city":"Oslo"}']],
        "background": "completed",
        "conversation": ["user", "user", "assistant"],
        "embeddings": True,
        "models": ["Qwen/Qwen3-30B-A3B-Instruct-2507"],
        "completions": 4,
        "error": ["NotFoundError", 404, "model_not_found", True],
        "abort": 3,
    }


def test_the_ai_sdk(base_url: str, tmp_path: Path) -> None:
    expected = {
        "text": [True, True, "stop"],
        "tools": [2, ["San Francisco"], True],
        "required": 1,
        "stream": [True, True, 0, 2],
        "object": True,
        "array": True,
        "choice": True,
        "streamedObject": [True, True],
        "error": ["AI_APICallError", 404],
        "abort": 3,
    }
    assert run("ai_sdk.mjs", "ai", base_url, tmp_path) == {
        **{f"{api} {check}": result for api in ("chat", "responses") for check, result in expected.items()},
        "embed": 2,
    }
