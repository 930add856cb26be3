"""A run read back from its folder: the same figures, whatever happened to it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_records import records
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmirage_client.measure.metrics import Metrics, compute
from llmirage_client.measure.record import BranchStats, Exchange, Record, RequestError, RunResult
from llmirage_client.measure.run_folder import CUT, RECORDS_FILE, RunFolderError, find_runs, read_run
from llmirage_client.report.files import write_artifacts
from llmirage_client.report.records_file import RecordWriter, RunClock

UNIX_S = 1_760_000_000.25


def record(number: int = 0, **exchange: object) -> Record:
    settings = {"start_s": 100.0, "ack_s": 100.1, "end_s": 102.0, "token_s": [100.5, 101.0, 101.75], "streamed": True}
    made = Exchange(**{"first_output_s": 100.5, "status": 200, **settings, **exchange})  # type: ignore[arg-type]
    return Record(number, "talk", 0, f"r{number}", f"c{number}", f"c{number}", None, 0, 99.5, made)


def run(*records: Record, speed: float = 1.0) -> RunResult:
    return RunResult(
        list(records), None, 99.0, 110.0, UNIX_S, speed=speed, model="m", url="http://x/v1", options={"concurrency": 2}
    )


def assert_same(found: Metrics, wanted: Metrics) -> None:
    assert found.per_request.keys() == wanted.per_request.keys()
    for tag, summary in wanted.per_request.items():
        for name, value in summary.as_dict().items():
            # The file has nanoseconds; a rate is the inverse of a time that may be as short.
            assert found.per_request[tag].as_dict()[name] == pytest.approx(value, rel=1e-4, abs=1e-3), (tag, name)
    assert found.whole_run == pytest.approx(wanted.whole_run, rel=1e-6)
    assert found.errors == wanted.errors
    for one, other in ((found.by_depth, wanted.by_depth), (found.by_turn, wanted.by_turn)):
        assert [(g.key, g.ok, g.failed, g.cancelled) for g in one] == [(g.key, g.ok, g.failed, g.cancelled) for g in other]
    assert [g.key for g in found.by_branch_mode] == [g.key for g in wanted.by_branch_mode]
    assert found.per_conversation.keys() == wanted.per_conversation.keys()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(records(), max_size=12), st.sampled_from([1.0, 10.0, 0.5]))
def test_whatever_is_written_reads_back_with_the_same_figures(
    tmp_path_factory: pytest.TempPathFactory, written: list[Record], speed: float
) -> None:
    folder = tmp_path_factory.mktemp("run")
    result = run(*written, speed=speed)
    write_artifacts(result, folder)
    back = read_run(folder)
    assert_same(compute(back), compute(result))
    for one, other in zip(back.records, written, strict=True):
        assert (one.branch_mode, one.parent_turn_index, one.joined) == (
            other.branch_mode,
            other.parent_turn_index,
            other.joined,
        )
        assert (one.correlation_id, one.turn_index, one.phase, one.ok) == (
            other.correlation_id,
            other.turn_index,
            other.phase,
            other.ok,
        )
    assert (back.speed, back.model, back.url, back.options) == (speed, "m", "http://x/v1", {"concurrency": 2})
    assert not back.cancelled
    assert back.end_s - back.start_s == pytest.approx(11.0)


def test_the_stamps_of_tokens_come_back(tmp_path: Path) -> None:
    write_artifacts(run(record(), speed=10.0), tmp_path)
    exchange = read_run(tmp_path).records[0].exchange
    assert exchange.token_s == pytest.approx([1.5, 2.0, 2.75], abs=1e-9)  # since the start of the run at 99
    assert (exchange.start_s, exchange.ack_s, exchange.end_s) == pytest.approx((1.0, 1.1, 3.0), abs=1e-6)


def test_branch_stats_and_the_clients_cost_come_back_from_the_summary(tmp_path: Path) -> None:
    result = replace(
        run(record()),
        branch_stats=BranchStats(children_spawned=3),
        client_cpu_s=10.9,
        client_lag_s=(0.5,),
        notes=["careful"],
    )
    write_artifacts(result, tmp_path)
    back = read_run(tmp_path)
    assert back.branch_stats == BranchStats(children_spawned=3)
    assert back.notes == ["careful"]
    assert compute(back).client == compute(result).client
    assert back.version


def started(folder: Path) -> RecordWriter:
    return RecordWriter(folder, RunClock(99.0, UNIX_S, 10.0), run(speed=10.0))


def test_a_run_that_was_killed_is_read_from_its_records_and_says_so(tmp_path: Path) -> None:
    writer = started(tmp_path)
    writer.write(record(0))
    writer.write(record(1))
    back = read_run(tmp_path)  # nothing was closed
    assert [r.request_id for r in back.records] == ["r0", "r1"]
    assert (back.cancelled, back.cancel_reason) == (True, CUT)
    assert (back.speed, back.model, back.options) == (10.0, "m", {"concurrency": 2})
    assert compute(back).per_request["request_latency"].avg == pytest.approx(17500.0)
    cost = compute(back).client
    assert cost is not None
    assert (cost.cpu_s, cost.late, cost.sends_late_p95_ms) == (None, True, pytest.approx(5000.0))


def test_a_line_that_was_torn_is_left_out_and_told(tmp_path: Path) -> None:
    writer = started(tmp_path)
    writer.write(record(0))
    with (tmp_path / RECORDS_FILE).open("ab") as file:
        file.write(b'{"metadata":{"session_num":1,"x_req')
    back = read_run(tmp_path)
    assert len(back.records) == 1
    assert back.notes == ["1 line of profile_export.jsonl could not be read and is left out: line 2 is incomplete."]


def test_the_summary_of_an_earlier_run_in_the_folder_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    write_artifacts(run(record(0)), tmp_path)
    summary = (tmp_path / "profile_export_aiperf.json").read_bytes()
    writer = started(tmp_path)
    assert not (tmp_path / "profile_export_aiperf.json").exists()
    writer.write(record(1))
    (tmp_path / "profile_export_aiperf.json").write_bytes(summary)  # as a copy of the old folder over the new would
    assert read_run(tmp_path).cancel_reason == CUT


def test_a_simulation_in_the_folder_of_a_run_is_not_taken_for_that_run(tmp_path: Path) -> None:
    writer = started(tmp_path)
    writer.write(record(0))
    write_artifacts(replace(run(record(0)), options={"slice_duration": 1.0}), tmp_path, records=writer)
    write_artifacts(run(record(5)), tmp_path)  # without a writer: all at once
    back = read_run(tmp_path)
    assert ([r.request_id for r in back.records], back.cancelled) == (["r5"], False)
    assert not (tmp_path / "profile_export_aiperf_timeslices.json").exists()


def test_a_run_of_aiperf(tmp_path: Path) -> None:
    lines = [
        {
            "metadata": {
                "session_num": 0,
                "x_request_id": "a",
                "x_correlation_id": "s",
                "conversation_id": "root",
                "turn_index": 1,
                "credit_issued_ns": 1_000_000_000,
                "request_start_ns": 1_000_500_000,
                "request_ack_ns": None,
                "request_end_ns": 1_900_000_000,
                "worker_id": "w",
                "record_processor_id": "p",
                "benchmark_phase": "profiling",
                "was_cancelled": False,
                "agent_depth": 0,
                "root_correlation_id": "s",
            },
            "metrics": {
                "time_to_first_token": {"value": 100.0, "unit": "ms"},
                "request_latency": {"value": 0.5, "unit": "sec"},
                "inter_chunk_latency": {"value": [150.0, 250.0], "unit": "ms"},
                "input_sequence_length": {"value": 20, "unit": "tokens"},
                "output_sequence_length": {"value": 9, "unit": "tokens"},
                "usage_prompt_tokens": {"value": 25, "unit": "tokens"},
                "usage_prompt_cache_read_tokens": {"value": 16, "unit": "tokens"},
            },
            "error": None,
        },
        {
            "metadata": {"session_num": 1, "request_start_ns": 1_100_000_000, "request_end_ns": 1_200_000_000},
            "metrics": {"error_isl": {"value": 4, "unit": "tokens"}},
            "error": {"code": 500, "type": "HTTPError", "message": "boom"},
        },
    ]
    (tmp_path / RECORDS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    back = read_run(tmp_path)
    first, second = back.records
    assert first.exchange.token_s == pytest.approx([0.1005, 0.2505, 0.5005])
    assert first.exchange.usage == {"prompt_tokens": 25, "prompt_tokens_details": {"cached_tokens": 16}}
    assert (first.output_tokens, first.turn_index) == (9, 1)
    assert second.exchange.error == RequestError(500, "HTTPError", "boom")
    metrics = compute(back)
    assert metrics.per_request["inter_token_latency"].avg == pytest.approx(50.0)  # 400 ms over 8 further tokens
    assert metrics.per_request["credit_to_start_latency"].avg == pytest.approx(0.5)
    assert metrics.whole_run["error_request_count"] == 1
    assert metrics.output_counted_by == "client"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no run here: a run has a file profile_export.jsonl"),
        (b"not json\n", "line 1 is not a JSON object"),
        (b"[1]\n", "line 1 is not a JSON object"),
        (b'{"data": 1}\n', "no metadata of a request"),
        (b'{"metadata": {}, "metrics": {}}\n', "no request_start_ns"),
    ],
)
def test_what_is_no_run_is_refused_in_one_sentence(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / RECORDS_FILE).write_bytes(content)
    with pytest.raises(RunFolderError, match=words):
        read_run(tmp_path)


@pytest.mark.parametrize(("limits", "words"), [("speed:200", "no metric"), ("ttft", "ttft:LIMIT"), ("ttft:-1 tpot:x", "; ")])
def test_limits_of_goodput_that_somebody_broke_are_told_in_one_sentence(tmp_path: Path, limits: str, words: str) -> None:
    write_artifacts(replace(run(record()), options={"goodput": "ttft:200"}), tmp_path)
    assert compute(read_run(tmp_path)).whole_run["goodput"] == 0
    summary = tmp_path / "profile_export_aiperf.json"
    summary.write_text(summary.read_text().replace("ttft:200", limits))
    with pytest.raises(RunFolderError, match="the limits of --goodput in this run's files cannot be read") as refused:
        read_run(tmp_path)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("value", [None, 3, True, "x", [None], {"a": 1}, [[]]])
def test_a_summary_that_somebody_edited_is_read_as_far_as_it_goes(tmp_path: Path, value: object) -> None:
    write_artifacts(run(record()), tmp_path)
    summary = tmp_path / "profile_export_aiperf.json"
    whole = json.loads(summary.read_text())
    for place in ("models", "endpoint", "datasets", "options"):
        summary.write_text(json.dumps({**whole, "input_config": {**whole["input_config"], place: value}}))
        assert len(read_run(tmp_path).records) == 1
    for key in ("urls", "model_names", "type"):
        summary.write_text(json.dumps({**whole, "input_config": {"endpoint": {key: value}}}))
        assert len(read_run(tmp_path).records) == 1


def test_a_run_without_a_finished_request_is_a_run(tmp_path: Path) -> None:
    started(tmp_path)
    back = read_run(tmp_path)
    assert (back.records, back.cancel_reason) == ([], CUT)
    assert compute(back).whole_run["request_count"] == 0


def test_runs_below_a_folder_are_found_in_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("concurrency10", "concurrency2", "concurrency1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / RECORDS_FILE).touch()
    (tmp_path / "other").mkdir()
    assert [p.name for p in find_runs(tmp_path)] == ["concurrency1", "concurrency2", "concurrency10"]
    assert find_runs(tmp_path / "concurrency2") == [tmp_path / "concurrency2"]
    assert find_runs(tmp_path / "other") == []
