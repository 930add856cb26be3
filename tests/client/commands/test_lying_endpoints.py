"""`run` against endpoints that answer otherwise than asked: the report says so first, and the exit status may tell."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from json_endpoint import JsonEndpoint, JsonHandler, completion

from llmirage_client.cli import main


def endpoint(prompt_tokens: int, tokens: int, **more: Any) -> JsonEndpoint:
    """Return an endpoint whose replies have these counts."""

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            self.answer(200, {"object": "list", "data": [{"id": "mine", "object": "model"}]})

        def do_POST(self) -> None:
            self.body()
            self.answer(200, completion("word " * tokens, prompt_tokens, tokens) | more)

    return JsonEndpoint(Handler)


def run_against(lying: JsonEndpoint, *more: str) -> tuple[int, str]:
    load = ("--isl", "200", "--osl", "50", "--requests", "4", "--concurrency", "2", "--no-streaming", "-m", "mine")
    with lying.started() as server:
        result = CliRunner().invoke(main, ["run", "--url", server.url, *load, *more])
    assert "Traceback" not in result.output
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("lying", "told"),
    [
        (endpoint(200, 100), "50 tokens asked, 100 came"),
        (endpoint(20, 50), "200 tokens sent, 20 counted"),
        (endpoint(200, 50, model="another"), "mine asked, another answered"),
    ],
)
def test_what_was_not_asked_for_is_told_first(lying: JsonEndpoint, told: str, tmp_path: Path) -> None:
    status, output = run_against(lying, "--artifact-dir", str(tmp_path), "--fail-on-mismatch")
    assert status == 3
    assert told in " ".join(output.partition("Latency in ms")[0].split())
    summary = json.loads((tmp_path / "profile_export_aiperf.json").read_text())["llmirage"]
    assert len(summary["mismatches"]) == 1
    again = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert again.exit_code == 0
    assert told in (tmp_path / "report.html").read_text()


def test_without_the_option_the_status_is_that_of_the_requests(tmp_path: Path) -> None:
    status, output = run_against(endpoint(200, 100), "--artifact-dir", str(tmp_path))
    assert status == 0
    assert "100 came" in " ".join(output.split())


def test_an_honest_endpoint_is_not_blamed(tmp_path: Path) -> None:
    status, output = run_against(endpoint(212, 50, model="mine-2026"), "--artifact-dir", str(tmp_path), "--fail-on-mismatch")
    assert (status, "asked" in output) == (0, False)
