"""`llmirage report` on folders of runs."""

import subprocess
import sys
from pathlib import Path

import pytest
from drawn import Document
from invoked import invoke, refusal
from made_runs import family, many, run

from llmirage_client.measure.record import RunResult
from llmirage_client.report.files import write_artifacts


def kept(folder: Path, result: RunResult | None = None) -> Path:
    write_artifacts(result or run(family()), folder, command=["llmirage", "run"])
    return folder


def test_the_page_goes_beside_the_run(tmp_path: Path) -> None:
    done = invoke("report", kept(tmp_path / "a"))
    page = (tmp_path / "a" / "report.html").read_text()
    assert str(tmp_path / "a" / "report.html") in done.output
    assert "All 7 requests succeeded" in page
    assert "join: a turn that waited for a child" in page  # forks and joins survive the file


def test_several_runs_share_a_page_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    invoke("report", kept(tmp_path / "a"), kept(tmp_path / "b", run(many(5, 3), options={"concurrency": 8})))
    assert "2 runs beside each other" in Document((tmp_path / "report.html").read_text()).text


def test_a_folder_of_runs_stands_for_all_of_them(tmp_path: Path) -> None:
    for name in ("c1", "c2", "c10"):
        kept(tmp_path / "sweep" / name)
    invoke("report", tmp_path / "sweep", tmp_path / "sweep" / "c2", "-o", tmp_path / "deep" / "page.html")
    said = Document((tmp_path / "deep" / "page.html").read_text()).text
    assert "3 runs beside each other" in said
    assert "c1, c2, c10" in said


def test_the_page_of_one_folder_of_runs_goes_there(tmp_path: Path) -> None:
    for name in ("c1", "c2"):
        kept(tmp_path / "sweep" / name)
    invoke("report", tmp_path / "sweep")
    assert (tmp_path / "sweep" / "report.html").is_file()


def test_a_file_of_records_stands_for_its_folder(tmp_path: Path) -> None:
    kept(tmp_path / "a")
    invoke("report", tmp_path / "a" / "profile_export.jsonl")
    assert (tmp_path / "a" / "report.html").is_file()


def test_a_minus_writes_to_standard_output(tmp_path: Path) -> None:
    done = invoke("report", kept(tmp_path / "a"), "-o", "-")
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert done.stdout.endswith("</html>\n")
    assert not (tmp_path / "a" / "report.html").exists()


def test_a_run_that_was_killed_has_a_page_that_says_so(tmp_path: Path) -> None:
    folder = kept(tmp_path / "a")
    (folder / "profile_export_aiperf.json").unlink()
    records = folder / "profile_export.jsonl"
    records.write_bytes(records.read_bytes()[:-40])
    invoke("report", folder)
    said = Document((folder / "report.html").read_text()).text
    assert "The run was cut short" in said
    assert "is incomplete" in said
    assert "All 6 requests succeeded" in said


def test_every_place_without_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = refusal("report", tmp_path / "nowhere", tmp_path / "empty")
    assert f"{tmp_path / 'nowhere'}: there is no such file or folder" in done
    assert f"{tmp_path / 'empty'}: there is no run here" in done


def test_a_file_without_records_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "profile_export.jsonl").write_text("not a record\n")
    done = refusal("report", tmp_path)
    assert "no line of it is the record of a request" in done


def test_a_page_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Traceback" not in refusal("report", kept(tmp_path / "a"), "-o", tmp_path / "file" / "page.html")


def test_the_browser_is_shown_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    monkeypatch.setenv("DISPLAY", ":7")
    folder = kept(tmp_path / "a")
    invoke("report", folder, "--open")
    assert opened == [(folder / "report.html").resolve().as_uri()]


def test_help_and_other_commands_do_not_load_the_charts() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from llmirage_client.cli import main; "
        "CliRunner().invoke(main, ['--help']); CliRunner().invoke(main, ['report', '--help']); "
        "sys.exit(any(m.startswith('llmirage_client.report') or m == 'numpy' for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
