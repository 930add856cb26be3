"""What a run writes down: read back, and compared with what was measured."""

import csv
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import made_runs
import pytest

from llmirage_client.measure.metrics import compute, time_slices
from llmirage_client.measure.record import BranchStats, Exchange, Record, RequestError
from llmirage_client.report.files import write_artifacts
from llmirage_client.report.output_files import HIDDEN, hide_in_command, hide_in_options, hide_in_text
from llmirage_client.report.records_file import RecordWriter, RunClock

START_UNIX_S = 1_750_000_000.25


def finished(number: int = 0, **changes: Any) -> Record:
    start = 100.0 + number
    exchange = Exchange(
        start_s=start,
        ack_s=start + 0.125,
        end_s=start + 1.5,
        token_s=[start + 0.5, start + 0.75, start + 1.25],
        first_output_s=start + 0.5,
        status=200,
        streamed=True,
        usage={
            "prompt_tokens": 10,
            "completion_tokens": 3,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    )
    name = f"request-{number}"
    return replace(Record(number, "branch-a", 1, name, "own", "root", "root", 1, start - 0.25, exchange), **changes)


def failed(number: int = 0, error: RequestError | None = None) -> Record:
    exchange = Exchange(start_s=100.0, end_s=101.0, error=error or RequestError(500, "server_error", "forced failure"))
    return finished(number, exchange=exchange, agent_depth=0, parent_correlation_id=None)


run = partial(made_runs.run, start_s=99.0, end_s=109.0, start_unix_s=START_UNIX_S, options={})


def summary(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "profile_export_aiperf.json").read_text())
    assert isinstance(content, dict)
    return content


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]


def test_the_summary_has_aiperfs_structure(tmp_path: Path) -> None:
    result = run([finished(0), finished(1), failed(2)], options={"concurrency": 4})
    write_artifacts(result, tmp_path, command=["llmirage", "run", "a file.jsonl"])
    content = summary(tmp_path)
    assert content["schema_version"] == "1.4"
    assert content["time_to_first_token"] == {
        "unit": "ms",
        "avg": 500.0,
        **dict.fromkeys(("p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "min", "max"), 500.0),
        "std": 0.0,
        "count": 2,
        "sum": 1000.0,
    }
    assert content["request_count"] == {"unit": "requests", "avg": 2}
    assert content["request_throughput"] == {"unit": "requests/sec", "avg": 2 / 2.25}
    assert content["error_summary"] == [
        {"error_details": {"code": 500, "type": "server_error", "message": "forced failure"}, "count": 1}
    ]
    assert content["run_info"]["cli_command"] == "llmirage run 'a file.jsonl'"
    assert content["input_config"]["options"] == {"concurrency": 4}
    assert content["input_config"]["endpoint"] == {"urls": ["http://localhost:8000/v1"], "type": "chat", "streaming": True}
    assert (content["was_cancelled"], content["is_complete"]) == (False, True)
    assert content["start_time"] == "2025-06-15T15:06:40.250000+00:00"
    assert content["end_time"] == "2025-06-15T15:06:50.250000+00:00"
    assert content["llmirage"]["by_agent_depth"][1]["usage_prompt_cache_read_pct"] == {"unit": "%", "avg": 40.0}


def test_branch_stats_are_the_counters_of_a_run_that_branches(tmp_path: Path) -> None:
    stats = BranchStats(children_spawned=6, children_completed=5)
    write_artifacts(run([finished()], branch_stats=stats), tmp_path)
    assert summary(tmp_path)["branch_stats"] == asdict(stats)
    write_artifacts(run([finished()]), tmp_path)
    assert "branch_stats" not in summary(tmp_path)


def test_a_cancelled_run_says_so(tmp_path: Path) -> None:
    write_artifacts(run([finished(), finished(1, cancelled=True)], cancelled=True, cancel_reason="Ctrl-C"), tmp_path)
    content = summary(tmp_path)
    assert (content["was_cancelled"], content["is_complete"]) == (True, False)
    assert content["cancelled_request_count"]["avg"] == 1
    assert content["llmirage"]["cancel_reason"] == "Ctrl-C"
    assert [line["metadata"]["was_cancelled"] for line in lines(tmp_path)] == [False, True]
    assert lines(tmp_path)[1]["metrics"] == {}


def test_a_run_without_a_single_request_still_has_its_files(tmp_path: Path) -> None:
    paths = write_artifacts(run([]), tmp_path / "deep" / "folder")
    assert [p.name for p in paths] == ["profile_export_aiperf.json", "profile_export_aiperf.csv", "profile_export.jsonl"]
    assert summary(tmp_path / "deep" / "folder")["request_count"]["avg"] == 0
    assert paths[2].read_bytes() == b""


def test_the_csv_has_a_row_a_metric_then_the_single_values(tmp_path: Path) -> None:
    result = run([finished(0), finished(1)])
    write_artifacts(result, tmp_path)
    text = (tmp_path / "profile_export_aiperf.csv").read_text()
    per_request, single = text.split("\n\n")
    rows = list(csv.DictReader(per_request.splitlines()))
    assert per_request.splitlines()[0] == "Metric,avg,min,max,sum,p1,p5,p10,p25,p50,p75,p90,p95,p99,std"
    titles = [row["Metric"] for row in rows]
    assert titles[0] == "Active Decode Throughput (tokens/sec)"
    assert titles == sorted(titles)
    latency = rows[titles.index("Request Latency (ms)")]
    exact = compute(result).per_request["request_latency"]
    assert float(latency["p99"]) == exact.p99  # every digit, not a rounded figure
    values = dict(csv.reader(single.splitlines()))
    assert values["Metric"] == "Value"
    assert values["Request Count"] == "2"
    assert values["Benchmark Duration (sec)"] == "2.25"


def test_a_line_of_the_records_by_hand(tmp_path: Path) -> None:
    write_artifacts(run([finished(7)]), tmp_path)
    (line,) = lines(tmp_path)
    begin = 1_750_000_000_250_000_000 + 8_000_000_000  # sent 8 s into the run
    assert line["metadata"] == {
        "session_num": 7,
        "x_request_id": "request-7",
        "x_correlation_id": "own",
        "conversation_id": "branch-a",
        "turn_index": 1,
        "credit_issued_ns": begin - 250_000_000,
        "request_start_ns": begin,
        "request_ack_ns": begin + 125_000_000,
        "request_end_ns": begin + 1_500_000_000,
        "worker_id": "llmirage",
        "record_processor_id": "llmirage",
        "benchmark_phase": "profiling",
        "was_cancelled": False,
        "agent_depth": 1,
        "root_correlation_id": "root",
        "parent_correlation_id": "root",
    }
    assert line["metrics"]["time_to_first_token"] == {"value": 500.0, "unit": "ms"}
    assert line["metrics"]["inter_chunk_latency"] == {"value": [250.0, 500.0], "unit": "ms"}
    assert "error" not in line


def test_a_failed_line_has_its_error_and_a_root_has_no_parent(tmp_path: Path) -> None:
    write_artifacts(run([failed(error=RequestError(None, "connect_error", "refused"))]), tmp_path)
    (line,) = lines(tmp_path)
    assert line["error"] == {"type": "connect_error", "message": "refused"}
    assert line["metrics"] == {}
    assert line["metadata"]["request_ack_ns"] is None
    assert "parent_correlation_id" not in line["metadata"]


def test_times_of_a_faster_cluster_are_stretched_to_its_own(tmp_path: Path) -> None:
    write_artifacts(run([finished(7)], speed=10.0), tmp_path)
    (line,) = lines(tmp_path)
    assert line["metadata"]["request_start_ns"] == 1_750_000_000_250_000_000 + 80_000_000_000
    assert line["metrics"]["request_latency"] == {"value": 12500.0, "unit": "ms"}
    assert summary(tmp_path)["end_time"] == "2025-06-15T15:08:20.250000+00:00"


def test_times_keep_their_nanoseconds() -> None:
    clock = RunClock(start_s=5.0, start_unix_s=1_750_000_000.0)
    assert clock.unix_ns(5.0 + 123e-9) == 1_750_000_000_000_000_123


def test_inputs_are_written_as_they_were_sent(tmp_path: Path) -> None:
    payload = {"messages": [{"role": "user", "content": "Grüße 你好 \ud83d"}], "temperature": 0.1, "seed": 2**70}
    sent = [{"session_id": "ä", "payloads": [payload, {"n": 1}]}, {"session_id": "b", "payloads": [payload]}]
    paths = write_artifacts(run([finished()], inputs=sent), tmp_path)
    assert paths[-1].name == "inputs.json"
    assert json.loads(paths[-1].read_text()) == {"data": sent}
    assert '\n{"n":1}]}' in paths[-1].read_text()  # a line a body


def test_slices_that_are_too_many_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    many = [finished(number) for number in range(4)]
    for number, record in enumerate(many):
        record.exchange.start_s = 100.0 + number
    result = run(many, options={"slice_duration": 1.0})
    assert "profile_export_aiperf_timeslices.json" in [p.name for p in write_artifacts(result, tmp_path / "few")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_slices, "__defaults__", (1.0, 3))
        names = [p.name for p in write_artifacts(result, tmp_path / "many")]
    assert "profile_export_aiperf_timeslices.json" not in names
    assert result.notes == ["--slice-duration: slices of 1 s would be 4; 3 is the most; they are not written."]


class TestRecordWriter:
    def test_each_record_is_in_the_file_as_soon_as_it_is_written(self, tmp_path: Path) -> None:
        writer = RecordWriter(tmp_path / "new", RunClock(99.0, START_UNIX_S))
        for number in range(3):
            writer.write(finished(number))
            assert [line["metadata"]["session_num"] for line in lines(tmp_path / "new")] == list(range(number + 1))
        writer.close()

    def test_the_file_is_kept_at_the_end_and_equals_one_written_whole(self, tmp_path: Path) -> None:
        result = run([finished(0), failed(1)], speed=3.0)
        writer = RecordWriter(tmp_path / "live", RunClock(result.start_s, result.start_unix_s, result.speed))
        for record in result.records:
            writer.write(record)
        inode = writer.path.stat().st_ino
        write_artifacts(result, tmp_path / "live", records=writer)
        write_artifacts(result, tmp_path / "whole")
        assert writer.path.stat().st_ino == inode
        assert lines(tmp_path / "live") == lines(tmp_path / "whole")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
    def test_a_full_disk_does_not_stop_the_run_and_the_file_is_written_anew_at_the_end(self, tmp_path: Path) -> None:
        result = run([finished(0), finished(1)])
        (tmp_path / "profile_export.jsonl").symlink_to("/dev/full")
        writer = RecordWriter(tmp_path, RunClock(result.start_s, result.start_unix_s))
        for record in result.records:
            writer.write(record)
        assert writer.problem is not None
        assert writer.problem.errno == errno.ENOSPC
        write_artifacts(result, tmp_path, records=writer)
        assert not (tmp_path / "profile_export.jsonl").is_symlink()
        assert [line["metadata"]["session_num"] for line in lines(tmp_path)] == [0, 1]

    def test_a_folder_that_is_removed_during_the_run_is_written_anew_and_told(self, tmp_path: Path) -> None:
        result = run([finished(0), finished(1)])
        writer = RecordWriter(tmp_path / "run", RunClock(result.start_s, result.start_unix_s))
        writer.write(result.records[0])
        shutil.rmtree(tmp_path / "run")
        writer.write(result.records[1])
        write_artifacts(result, tmp_path / "run", records=writer)
        assert [line["metadata"]["session_num"] for line in lines(tmp_path / "run")] == [0, 1]
        assert result.notes == [f"{writer.path} was removed during the run; it is written anew."]

    def test_a_client_that_is_killed_leaves_every_finished_request(self, tmp_path: Path) -> None:
        program = (
            "import os, signal, sys; sys.path[:0] = sys.argv[2:]; from test_files import *\n"
            "writer = RecordWriter(Path(sys.argv[1]), RunClock(99.0, START_UNIX_S))\n"
            "[writer.write(finished(n)) for n in range(3)]; os.kill(os.getpid(), signal.SIGKILL)"
        )
        words = [
            sys.executable,
            "-c",
            program,
            str(tmp_path),
            *(str(Path(file).parent) for file in (__file__, made_runs.__file__)),
        ]
        assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
        assert [line["metadata"]["session_num"] for line in lines(tmp_path)] == [0, 1, 2]

    def test_a_new_run_starts_the_file_afresh(self, tmp_path: Path) -> None:
        for _ in range(2):
            writer = RecordWriter(tmp_path, RunClock(99.0, START_UNIX_S))
            writer.write(finished())
            writer.close()
        assert len(lines(tmp_path)) == 1


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "inputs.json").mkdir()
    with pytest.raises(OSError, match=r"inputs\.json"):
        write_artifacts(run([finished()], inputs=[{"session_id": "a", "payloads": []}]), tmp_path)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
    assert os.listdir(tmp_path / "inputs.json") == []


def test_files_are_readable_as_any_other_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    ordinary = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    for path in write_artifacts(run([finished()]), tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == ordinary


class TestSecrets:
    def test_a_command_line_loses_their_values_only(self) -> None:
        words = ["llmirage", "run", "f", "--api-key", "sk-1", "--api-key=sk-2", "-H", "Authorization: Bearer sk-3"]
        words += ["--header=X-Api-Key: sk-4", "-HCookie: sk-5", "-H", "X-Team: blue", "--url", "http://me:sk-6@host/v1"]
        shown = hide_in_command(words)
        assert "sk-" not in shown
        assert "X-Team: blue" in shown
        assert shown.startswith("llmirage run f --api-key ")
        assert "host/v1" in shown

    def test_limits_on_tokens_are_no_secrets(self) -> None:
        shown = hide_in_command(["llmirage", "run", "--extra-inputs", "max_tokens:5", "--use-legacy-max-tokens", "f"])
        assert shown == "llmirage run --extra-inputs max_tokens:5 --use-legacy-max-tokens f"
        assert hide_in_options({"max_tokens": 5, "concurrency": 2}) == {"max_tokens": 5, "concurrency": 2}

    def test_options_lose_them_however_deep(self) -> None:
        options = {
            "api_key": "sk-1",
            "headers": [["Authorization", "Bearer sk-2"], ["X-Team", "blue"]],
            "api_key_none": None,
        }
        assert hide_in_options(options) == {
            "api_key": HIDDEN,
            "headers": [["Authorization", HIDDEN], ["X-Team", "blue"]],
            "api_key_none": None,
        }
        assert hide_in_options({"header": ("authorization: Bearer sk-3",)}) == {"header": [f"authorization: {HIDDEN}"]}

    def test_nothing_secret_reaches_the_summary(self, tmp_path: Path) -> None:
        result = run([finished()], options={"api_key": "sk-1"}, url="http://u:sk-2@host:1/v1")
        write_artifacts(result, tmp_path, command=["llmirage", "run", "--api-key", "sk-3"])
        assert "sk-" not in (tmp_path / "profile_export_aiperf.json").read_text()

    def test_ordinary_text_stays(self) -> None:
        assert hide_in_text("http://localhost:8000/v1") == "http://localhost:8000/v1"
        assert hide_in_text("Content-Type: application/json") == "Content-Type: application/json"
