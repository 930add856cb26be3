"""A client that is killed and a disk that is full lose no request that had finished."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from json_endpoint import JsonEndpoint, JsonHandler, completion

from llmirage_client.measure.metrics import compute
from llmirage_client.measure.record import Exchange, Record, RunResult
from llmirage_client.measure.run_folder import CUT, RECORDS_FILE, read_run
from llmirage_client.report import records_file
from llmirage_client.report.files import write_artifacts
from llmirage_client.report.records_file import RecordWriter, RunClock


class Slow(JsonEndpoint):
    """Answers every request after 10 ms. answered: how many replies were handed to the system, and when the last was."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.answered: list[float] = []


class Handler(JsonHandler):
    server: Slow
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.body()
        time.sleep(0.01)
        self.answer(200, completion("yes", 3, 1))
        self.server.answered.append(time.monotonic())


@pytest.fixture
def server() -> Iterator[Slow]:
    with Slow().started() as slow:
        yield slow


def test_a_client_that_is_killed_leaves_every_finished_request(server: Slow, tmp_path: Path) -> None:
    workload = tmp_path / "w.jsonl"
    workload.write_text('{"session_id":"a","turns":[{"messages":[{"role":"user","content":"hello"}]}]}\n')
    folder = tmp_path / "run"
    command = ["run", str(workload), "--url", server.url, "--model", "m", "--concurrency", "3"]
    client = subprocess.Popen(
        [sys.executable, "-m", "llmirage", *command, "--num-conversations", "100000", "--artifact-dir", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 30
    while len(server.answered) < 200 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(client.pid, signal.SIGKILL)
    killed = time.monotonic()
    client.wait()
    result = read_run(folder)
    assert len(server.answered) >= 200
    # What was answered in the moment before may not have reached the client any more.
    finished = sum(at < killed - 0.3 for at in server.answered)
    assert 50 < finished <= len(result.records)
    assert all(record.ok for record in result.records)
    assert (result.cancelled, result.cancel_reason, result.model) == (True, CUT, "m")
    assert compute(result).whole_run["request_count"] == len(result.records)


def record(number: int) -> Record:
    stamps = [float(number) + 0.01 * i for i in range(1, 20)]
    exchange = Exchange(float(number), None, stamps[-1], stamps, stamps[0], 200, True)
    name = f"c{number}"
    return Record(number, name, 0, f"r{number}", name, name, None, 0, float(number), exchange)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """As on a full disk, no file may grow beyond `size` bytes."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def writer(folder: Path) -> RecordWriter:
    return RecordWriter(folder, RunClock(0.0, 1e9))


def room_for_two_records(folder: Path) -> AbstractContextManager[None]:
    """Room for two records and a part of a third one."""
    out = writer(folder / "measured")
    out.write(record(0))
    out.close()
    return room_for((folder / "measured" / RECORDS_FILE).stat().st_size * 5 // 2)


def test_a_full_disk_leaves_whole_lines_and_what_waited_is_written_when_there_is_room(tmp_path: Path) -> None:
    out = writer(tmp_path)
    with room_for_two_records(tmp_path):
        for number in range(8):
            out.write(record(number))
        assert out.problem is not None
        kept = read_run(tmp_path)
        assert [r.request_id for r in kept.records] == ["r0", "r1"]
        assert kept.notes == []  # no torn line
    out.close()
    assert out.problem is None
    assert [r.request_id for r in read_run(tmp_path).records] == [f"r{n}" for n in range(8)]


def test_a_disk_with_room_again_is_caught_up_with_during_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_file, "_RETRY_S", 0.0)
    out = writer(tmp_path)
    with room_for_two_records(tmp_path):
        for number in range(4):
            out.write(record(number))
    out.write(record(4))
    assert out.problem is None
    assert len(read_run(tmp_path).records) == 5  # nothing was closed


def test_a_disk_that_stays_full_is_tried_at_most_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = writer(tmp_path)
    tries = []
    with room_for(100):
        out.write(record(0))
        monkeypatch.setattr(os, "write", lambda *_: tries.append(1) or 0)
        for number in range(1, 50):
            out.write(record(number))
    assert tries == []


def test_the_records_of_a_run_on_a_full_disk_are_all_written_elsewhere(tmp_path: Path) -> None:
    records = [record(n) for n in range(6)]
    result = RunResult(records, None, 0.0, 7.0, 1e9)
    out = writer(tmp_path / "full")
    with room_for_two_records(tmp_path):
        for one in records:
            out.write(one)
        with pytest.raises(OSError, match="too large"):
            write_artifacts(result, tmp_path / "full", records=out)
        assert len(read_run(tmp_path / "full").records) == 2
    write_artifacts(result, tmp_path / "elsewhere", records=out)
    assert len(read_run(tmp_path / "elsewhere").records) == 6
    assert not read_run(tmp_path / "elsewhere").cancelled


def test_files_that_could_not_be_written_leave_no_half(tmp_path: Path) -> None:
    result = RunResult([record(n) for n in range(3)], None, 0.0, 7.0, 1e9)
    with room_for(1000), pytest.raises(OSError, match="too large"):
        write_artifacts(result, tmp_path)
    assert [p.name for p in tmp_path.iterdir() if p.name != RECORDS_FILE] == []
