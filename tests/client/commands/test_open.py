"""`--open`: the finished page in the browser, or its path where there is none."""

import json
from pathlib import Path

import pytest
from invoked import invoke, json_of, summary_of
from played_pages import Machine

SMALL = ("--isl", "100", "--osl", "5", "--requests", "6", "--model", "llama-3.1-8b", "--gpu", "h100_sxm")
STUDY = "model: Qwen/Qwen3-8B\nisl: 100\nosl: 5\nrequests: 5\nconcurrency: 1\ngrid: {tp: [1, 2]}\n"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser with a display was asked to show."""
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: shown.append(url) or True)
    monkeypatch.setenv("DISPLAY", ":7")
    return shown


def test_run_writes_its_page_and_opens_it(opened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(tmp_path, monkeypatch)
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    status, output = machine.command(["run", "bundled:dag-example", "--artifact-dir", "out", "--open"])
    assert status == 0, output
    assert opened == [(tmp_path / "out" / "report.html").as_uri()]
    assert "<h1>" in (tmp_path / "out" / "report.html").read_text()
    kept = summary_of(tmp_path / "out")
    assert '"open"' not in json.dumps(kept["input_config"])


def test_a_sweep_of_loads_is_one_page(opened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(tmp_path, monkeypatch)
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    words = ["run", *SMALL[:6], "--concurrency", "1,2", "--artifact-dir", "out", "--open"]
    status, output = machine.command(words)
    assert status == 0, output
    assert opened == [(tmp_path / "out" / "report.html").as_uri()]


def test_simulate_opens_its_page_though_it_keeps_no_records(opened: list[str], tmp_path: Path) -> None:
    invoke("simulate", *SMALL, "--artifact-dir", tmp_path / "out", "--open", "--set", "records=false")
    page = tmp_path / "out" / "report.html"
    assert opened == [page.as_uri()]
    assert "Conversations" in page.read_text()
    assert not (tmp_path / "out" / "profile_export.jsonl").exists()


def test_json_stays_alone_on_standard_output(opened: list[str], tmp_path: Path) -> None:
    assert json_of("simulate", *SMALL, "--artifact-dir", tmp_path / "out", "--open")["requests"] == 6
    assert len(opened) == 1


def test_a_report_that_has_no_records_to_come_from_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke("simulate", *SMALL, "--artifact-dir", "out", "--set", "records=false")
    assert " ".join(done.output.split()).endswith(
        "HTML report: the same command with --open, or with --set records=true for `llmirage report`"
    )
    done = invoke("simulate", *SMALL, "--artifact-dir", "two")
    assert done.output.rstrip().splitlines()[-1] == "HTML report: llmirage report two --open"


def test_sweep_opens_the_page_that_it_writes(opened: list[str], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    invoke("sweep", tmp_path / "study.yaml", "--artifact-dir", tmp_path / "out", "--workers", 1, "--open")
    assert opened == [(tmp_path / "out" / "study.html").as_uri()]


def test_size_opens_the_page_that_it_writes(opened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("size", *SMALL, "--request-rate", 2, "--slo", "ttft_p99<1s", "--tps", 1)
    invoke(*words, "--open", "--html", "page.html")
    assert opened == [(tmp_path / "page.html").as_uri()]
    done = invoke(*words, "--open", "--json")
    assert json.loads(done.stdout)["answer"]["gpus"] == 1
    (page,) = tmp_path.glob("artifacts/size-*/size.html")
    assert opened[1] == page.as_uri()
    assert f"HTML report written to {page.relative_to(tmp_path)}." in done.stderr
    assert not (tmp_path / "artifacts" / "latest").exists()  # that is of runs


def test_without_a_display_the_path_is_said(opened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    done = invoke("simulate", *SMALL, "--artifact-dir", tmp_path / "out", "--open")
    assert opened == []
    assert f"open {tmp_path / 'out' / 'report.html'} by hand" in done.output
