"""The pages of reference that tools make from the code are what the tools make now."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


TOOLS = {"api": ["api"], "python": ["python-api"], "table": ["faults", "scripts", "settings", "metrics", "server-metrics"]}


@pytest.mark.parametrize("tool", TOOLS)
def test_the_tables_are_what_the_server_does(tool: str) -> None:
    pages = [str(ROOT / f"docs/{page}.md") for page in TOOLS[tool]]
    check = [sys.executable, str(ROOT / f"tools/{tool}_docs.py"), "--check", *pages]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_each_test_that_the_page_on_operations_names_is_there() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    named = set(re.findall(r"`((?:server|client|shared)/[a-z_/]+(?:\.py|/))`", page))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / "tests" / name).exists()] == []
    rows = [
        line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| limit", "| event", "|---"))
    ]
    assert [row for row in rows if not re.search(r"`(server|client|shared)/", row.rsplit("|", 2)[1])] == []
