"""docs/node/llmirage.mjs under node:test, and the programs of docs/node.md under Vitest and Jest, if installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from node import HERE, NODE
from pages import DOCS, blocks

HELPER = DOCS / "node/llmirage.mjs"
COMMAND = f"{sys.executable} -m llmirage"

if (
    NODE is None
    or int(subprocess.run([NODE, "--version"], capture_output=True, text=True).stdout[1:].partition(".")[0]) < 20
):
    pytest.skip("needs Node 20", allow_module_level=True)


def run(words: list[str], folder: Path, **variables: str) -> str:
    environment = {**os.environ, "LLMIRAGE_COMMAND": COMMAND, "NO_COLOR": "1", "CI": "1", **variables}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def program(name: str) -> str:
    [text] = [block.text for block in blocks(DOCS / "node.md") if block.text.startswith(f"// {name}\n")]
    return text


def project(tmp_path: Path, framework: str) -> list[str]:
    """A folder with the page's programs; the words that run the framework there."""
    modules = Path(os.environ.get("LLMIRAGE_NODE_CLIENTS", HERE)).absolute() / "node_modules"
    if not (modules / framework).is_dir() or not (modules / "openai").is_dir():
        pytest.skip(f"needs the packages {framework} and openai")
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(HELPER, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    return [str(modules / ".bin" / framework)]


def test_the_helper_under_node_test(tmp_path: Path) -> None:
    for path in (HELPER, HERE / "helper.mjs"):
        shutil.copy(path, tmp_path)
    assert NODE is not None
    output = run([NODE, "--test", "helper.mjs"], tmp_path)
    assert re.search(r"^# pass 6$", output, re.MULTILINE), output


def test_the_page_under_vitest_with_one_server_for_all_files(tmp_path: Path) -> None:
    words = project(tmp_path, "vitest")
    settings = 'test: { globalSetup: "./global-setup.mjs", fileParallelism: false }'
    (tmp_path / "vitest.config.mjs").write_text(f"export default {{ {settings} }};\n")
    (tmp_path / "global-setup.mjs").write_text(program("global-setup.mjs"))
    for name in ("weather.test.mjs", "again.test.mjs"):
        (tmp_path / name).write_text(program("weather.test.mjs"))
    assert re.search(r"Tests\s+2 passed", run([*words, "run"], tmp_path))


def test_the_page_under_jest(tmp_path: Path) -> None:
    words = project(tmp_path, "jest")
    text = re.sub(r"import .* from \"vitest\";\n", "", program("weather.test.mjs"))
    (tmp_path / "weather.test.mjs").write_text(text.replace(", { beforeAll, beforeEach, afterAll });", ");"))
    output = run([*words, "--transform", "{}"], tmp_path, NODE_OPTIONS="--experimental-vm-modules")
    assert "1 passed, 1 total" in output
