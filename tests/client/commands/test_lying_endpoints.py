"""`run` against endpoints that answer otherwise than asked: the report says so first, and the exit status may tell."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from invoked import invoke, summary_of
from json_endpoint import ChatEndpoint, completion
from served import serving

from llmirage_shared.plural import rounded


def endpoint(prompt_tokens: int, tokens: int, **more: Any) -> ChatEndpoint:
    """Return an endpoint whose replies have these counts."""
    return ChatEndpoint(lambda _: (200, completion("word " * tokens, prompt_tokens, tokens) | more), ["mine"])


def run_against(lying: ChatEndpoint, *more: object, status: int = 0) -> str:
    load = ("--isl", "200", "--osl", "50", "--requests", "4", "--concurrency", "2", "--no-streaming", "-m", "mine")
    with lying.started() as server:
        return invoke("run", "--url", server.url, *load, *more, status=status).output


@pytest.mark.parametrize(
    ("lying", "told"),
    [
        (endpoint(200, 100), "50 tokens asked, 100 came"),
        (endpoint(20, 50), "200 tokens sent, 20 counted"),
        (endpoint(200, 50, model="another"), "mine asked, another answered"),
    ],
)
def test_what_was_not_asked_for_is_told_first(lying: ChatEndpoint, told: str, tmp_path: Path) -> None:
    output = run_against(lying, "--artifact-dir", tmp_path, "--fail-on-mismatch", status=3)
    assert told in " ".join(output.partition("Latency in ms")[0].split())
    assert len(summary_of(tmp_path)["llmirage"]["mismatches"]) == 1
    invoke("report", tmp_path)
    assert told in (tmp_path / "report.html").read_text()


def test_without_the_option_the_status_is_that_of_the_requests(tmp_path: Path) -> None:
    output = run_against(endpoint(200, 100), "--artifact-dir", tmp_path)
    assert "100 came" in " ".join(output.split())


def test_an_honest_endpoint_is_not_blamed(tmp_path: Path) -> None:
    honest = endpoint(212, 50, model="mine-2026")
    assert "asked" not in run_against(honest, "--artifact-dir", tmp_path, "--fail-on-mismatch")


LOAD = ("--isl", "40", "--osl", "5", "--requests", "6", "--random-seed", "1")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """TTFT and ITL are a microsecond of real time."""
    with serving("--ttft", "1", "--itl", "1", "--speed", "1000") as url:
        yield url


def lines(url: str, folder: Path, *words: str) -> list[str]:
    """The whole text, on lines as long as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "2000")
        return invoke("run", *LOAD, "--url", url, "--artifact-dir", folder, *words).output.splitlines()


def told(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.rglob("profile_export_aiperf.json"))
    return [json.loads(path.read_text())["llmirage"]["distortion"] for path in paths]


def test_the_first_screen_has_the_figure_and_so_has_the_summary(url: str, tmp_path: Path) -> None:
    text = lines(url, tmp_path / "out", "--speed", "1000")
    [note] = [line for line in text if "At speed 1000 the figures are partly those of this machine" in line]
    assert text.index(note) < 15
    [distortion] = told(tmp_path)
    assert (distortion["streams"], distortion["distorted"]) == (6, True)
    ttft = distortion["ttft"]
    assert ttft["simulated"]["p50"] == pytest.approx(1, rel=0.01)
    assert ttft["measured"]["p50"] > 1.1
    assert ttft["sent"]["p50"] > 1.1
    assert f"TTFT p50 {rounded(ttft['measured']['p50'], 3)} ms instead of" in note


def test_a_run_that_takes_the_server_for_slower_is_told(url: str, tmp_path: Path) -> None:
    text = lines(url, tmp_path / "out")
    assert any("The server runs at --speed 1000, and this run was told 1" in line for line in text[:15])


def test_every_point_of_a_sweep_has_its_own(url: str, tmp_path: Path) -> None:
    lines(url, tmp_path / "out", "--speed", "1000", "--concurrency", "1,2")
    points = told(tmp_path)
    assert len(points) == 2
    assert all(point["streams"] > 0 and point["ttft"]["measured"] for point in points)
