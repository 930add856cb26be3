"""`llmirage run` against a server that no machine can be fast enough for: its first lines say by how much it was not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from served import serving

from llmirage_client.commands.run import run

LOAD = ("--isl", "40", "--osl", "5", "--requests", "6", "--random-seed", "1")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """TTFT and ITL are a microsecond of real time."""
    with serving("--ttft", "1", "--itl", "1", "--speed", "1000") as url:
        yield url


def lines(url: str, folder: Path, *words: str) -> list[str]:
    """The whole text, on lines as long as they are."""
    result = CliRunner().invoke(run, [*LOAD, "--url", url, "--artifact-dir", str(folder), *words], env={"COLUMNS": "2000"})
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


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
    assert f"TTFT p50 {ttft['measured']['p50']:.3g} ms instead of" in note


def test_a_run_that_takes_the_server_for_slower_is_told(url: str, tmp_path: Path) -> None:
    text = lines(url, tmp_path / "out")
    assert any("The server runs at --speed 1000, and this run was told 1" in line for line in text[:15])


def test_every_point_of_a_sweep_has_its_own(url: str, tmp_path: Path) -> None:
    lines(url, tmp_path / "out", "--speed", "1000", "--concurrency", "1,2")
    points = told(tmp_path)
    assert len(points) == 2
    assert all(point["streams"] > 0 and point["ttft"]["measured"] for point in points)
