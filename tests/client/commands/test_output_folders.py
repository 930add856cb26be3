"""Where runs put their files: nothing of an earlier run is replaced unless that is asked for, and nothing is left behind."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from invoked import invoke, refusal

from llmirage_client.measure.run_folder import find_runs
from llmirage_client.report.output_files import new_folder

LOAD = ["--isl", "40", "--osl", "4", "--requests", "3", "--ttft", "10", "--itl", "1"]
KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from llmirage_client.report.output_files import write_whole

def write(file):
    file.write(bytes(1 << 20))
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

write_whole(Path(sys.argv[1]), write)
"""


def summary(folder: Path) -> bytes:
    return (folder / "profile_export_aiperf.json").read_bytes()


def test_every_simulation_has_its_own_folder_and_latest_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20260102-030405")  # both in the same second
    latest = tmp_path / "artifacts" / "latest"
    invoke("simulate", *LOAD)
    assert latest.resolve().name == "simulation-20260102-030405"
    first = summary(latest)
    invoke("simulate", *LOAD, "--concurrency", 2)
    assert latest.resolve().name == "simulation-20260102-030405-2"
    assert summary(tmp_path / "artifacts" / "simulation-20260102-030405") == first != summary(latest)


def test_a_file_of_the_name_latest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "artifacts" / "latest").mkdir(parents=True)
    assert new_folder("run").is_dir()
    assert not (tmp_path / "artifacts" / "latest").is_symlink()


def test_a_folder_with_files_is_refused_before_the_simulation(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert f"--artifact-dir {tmp_path}: the folder is not empty; name another one, or add --overwrite" in refusal(
        "simulate", *LOAD, "--artifact-dir", tmp_path
    )
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    invoke("simulate", *LOAD, "--artifact-dir", tmp_path, "--overwrite")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_simulation_can_be_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = invoke("simulate", *LOAD)
    assert "HTML report: llmirage report artifacts/simulation-" in shown.output
    invoke("report", "artifacts/latest")


def test_records_of_many_requests_are_written_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    per_request = {"profile_export.jsonl", "workload_timeline.json"}
    monkeypatch.setattr("llmirage_client.commands.actions.simulate.MANY", 2)
    invoke("simulate", *LOAD, "--artifact-dir", tmp_path, "--set", "records=true")
    assert {file.name for file in tmp_path.iterdir()} > per_request
    without = invoke("simulate", *LOAD, "--artifact-dir", tmp_path, "--overwrite")
    assert "HTML report: the same command with --open, or with --set records=true for `llmirage report`" in " ".join(
        without.output.split()
    )
    assert not {file.name for file in tmp_path.iterdir()} & per_request  # nor are those of the first one left
    assert json.loads(summary(tmp_path))["request_count"]["avg"] == 3
    assert "which `simulate` writes with --set records=true" in refusal("report", tmp_path)


def test_records_are_left_out_when_asked_for(tmp_path: Path) -> None:
    invoke("simulate", *LOAD, "--artifact-dir", tmp_path, "--set", "records=false")
    assert not (tmp_path / "profile_export.jsonl").exists()


def test_the_link_makes_no_second_run_of_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    invoke("simulate", *LOAD)
    assert len(find_runs("artifacts")) == len(find_runs("artifacts/latest")) == 1


def test_a_process_killed_while_it_writes_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "records.jsonl"
    place.write_text("before")
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(place)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [file.name for file in tmp_path.iterdir()] == ["records.jsonl"]
    assert place.read_text() == "before"


def test_without_nameless_files_the_next_one_removes_what_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmirage_client.report.output_files._nameless", lambda folder: None)
    (tmp_path / ".profile_export_aiperf.json.part").write_text("cut off")
    invoke("simulate", *LOAD, "--artifact-dir", tmp_path, "--overwrite")
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_a_study_does_not_mix_its_results_with_other_files(tmp_path: Path) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text("ttft: 10\nitl: 1\nisl: 40\nosl: 4\nrequests: 3\ngrid: {concurrency: [1, 2]}\n")
    out = tmp_path / "out"
    out.mkdir()
    (out / "results.csv").write_text("mine")
    words = ["sweep", str(study), "--workers", "1", "--artifact-dir", str(out)]
    assert "has files that are no results of a study" in refusal(*words)
    (out / "results.csv").unlink()
    invoke(*words)
    again = invoke(*words)
    assert "2 points from earlier results" in again.output
