"""The pages of reference that tools make from the code are what the tools make now."""

import logging
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


TOOLS = {"api": ["api"], "python": ["python-api"], "table": ["faults", "scripts", "settings", "metrics", "server-metrics"]}


@pytest.mark.parametrize("tool", TOOLS)
def test_the_tables_are_what_the_server_does(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [str(ROOT / f"docs/{page}.md") for page in TOOLS[tool]]
    monkeypatch.setattr(sys, "argv", [tool, "--check", *pages])
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)  # a tool may set it
    said = None
    try:
        runpy.run_path(str(ROOT / f"tools/{tool}_docs.py"), run_name="__main__")
    except SystemExit as end:
        said = end.code
    assert not said


def test_each_test_that_the_page_on_operations_names_is_there() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    named = set(re.findall(r"`((?:server|client|shared)/[a-z_/]+(?:\.py|/))`", page))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / "tests" / name).exists()] == []
    rows = [
        line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| limit", "| event", "|---"))
    ]
    assert [row for row in rows if not re.search(r"`(server|client|shared)/", row.rsplit("|", 2)[1])] == []
