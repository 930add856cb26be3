"""The notebooks of docs/ run from top to bottom; what their cells end with shows itself as HTML with the report's charts."""

import ast
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[3] / "docs/notebooks").glob("*.ipynb"))


def displayed(source: str, names: dict[str, Any], name: str) -> Any:
    """Run a cell as a kernel does; return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), names)


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    charts = 0
    for number, cell in enumerate(cells):
        assert not cell["outputs"], "committed without outputs"
        value = displayed("".join(cell["source"]), names, f"{path.name}[{number}]")
        if hasattr(value, "_repr_html_"):
            frame = re.fullmatch(r'<iframe srcdoc="([^"]*)" .*</iframe>', value._repr_html_(), re.DOTALL)
            assert frame is not None
            page = html.unescape(frame[1])
            assert page.startswith("<!DOCTYPE html>")
            assert len(page) < 1_000_000
            charts += page.count("data-chart=")
    assert charts > 3
