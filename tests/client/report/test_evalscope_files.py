"""evalscope's files, on two conversations small enough to do by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from column_records import record

from llmirage_client.measure.record import Record, RequestError, RunResult
from llmirage_client.report.files import write_artifacts


def written(folder: Path, *records: Record, **options: Any) -> dict[str, Any]:
    result = RunResult(list(records), None, 0.0, 20.0, 1e9, options=options)
    return {p.name: json.loads(p.read_text()) for p in write_artifacts(result, folder) if p.suffix == ".json"}


def two(cached: bool = True) -> list[Record]:
    """Each request ends half a second after its last token, but for the one that fails."""
    failed = record("b", 1, 3.0, (3.5, 3.6), (8, 3, 4))
    failed.exchange.error, failed.exchange.end_s = RequestError(500, "http_error", "no"), 6.0
    return [
        record("a", 0, 1.0, (2.0, 3.5), (10, 5, 0 if cached else None)),
        record("b", 0, 1.0, (1.5, 2.0), (8, 3, 4 if cached else None)),
        record("a", 1, 5.0, (5.5, 7.0), (20, 3, 18 if cached else None)),
        failed,
    ]


def rows(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["metric"]: row for row in content["rows"]}


def test_the_summary_of_traces(tmp_path: Path) -> None:
    content = written(tmp_path, *two())["trace_summary.json"]
    assert (content["n_traces"], content["n_abandoned"], content["cached_tokens_counted_by"]) == (1, 1, "server")
    found = rows(content)
    assert set(found["TTFAT (s)"]) == {"metric", "mean", "min", "p50", "p90", "p95", "p99", "max"}
    assert (found["Latency (s)"]["min"], found["Latency (s)"]["max"]) == (6.5, 6.5)  # b was abandoned at its failure
    assert found["First-Turn TTFT (s)"]["mean"] == 1.0
    assert found["TTFAT (s)"]["mean"] == pytest.approx(4.5)
    assert found["Decode TPS"]["mean"] == pytest.approx(1.5)  # (5 - 1) / 2 s and (3 - 1) / 2 s
    assert found["Cache Hit Rate (%)"]["mean"] == pytest.approx(100 * 18 / 30)
    assert found["Eligible Cache Hit Rate (%)"]["mean"] == 100.0  # 15 of 15


def test_without_the_servers_count_cached_tokens_are_estimated_and_said_to_be(tmp_path: Path) -> None:
    files = written(tmp_path, *two(cached=False))
    content = files["trace_summary.json"]
    assert (
        content["cached_tokens_counted_by"] == files["workload_throughput.json"]["cached_tokens_counted_by"] == "estimated"
    )
    assert rows(content)["Cache Hit Rate (%)"]["max"] == pytest.approx(50.0)  # 10 + 5 of 30
    assert rows(content)["Eligible Cache Hit Rate (%)"]["min"] == 100.0


def test_conversations_of_one_turn_are_no_traces(tmp_path: Path) -> None:
    files = written(tmp_path, record("a", 0, 1.0, (2.0, 3.0), (10, 5, None)))
    assert "trace_summary.json" not in files
    assert "KV Cache Hit Rate (%)" not in files["benchmark_summary.json"]
    assert "Avg Turns/Request" not in files["benchmark_summary.json"]


@pytest.mark.parametrize("name", ["custom_multi_turn", "share_gpt", "random_multi_turn", "swe_smith", "trie"])
def test_in_evalscopes_conversation_formats_one_turn_is_a_trace(tmp_path: Path, name: str) -> None:
    only = record("a", 0, 1.0, (2.0, 3.0), (10, 5, None))
    write_artifacts(RunResult([only], None, 0.0, 20.0, 1e9, workload_format=name), tmp_path)
    assert json.loads((tmp_path / "trace_summary.json").read_text())["n_traces"] == 1
    assert json.loads((tmp_path / "benchmark_summary.json").read_text())["Avg Turns/Request"] == 1


def test_the_timeline_has_a_point_a_reply_and_the_rates_come_from_it(tmp_path: Path) -> None:
    files = written(tmp_path, *two())
    assert files["workload_timeline.json"] == {
        "wall_start": 1.0,
        "points": [
            {"t": 1.5, "cum_completion": 3, "cum_new_prompt": 4, "cum_cached_prompt": 4},
            {"t": 3.0, "cum_completion": 8, "cum_new_prompt": 14, "cum_cached_prompt": 4},
            {"t": 6.5, "cum_completion": 11, "cum_new_prompt": 16, "cum_cached_prompt": 22},
        ],
    }
    content = files["workload_throughput.json"]
    assert (content["n_samples"], content["wall_time_s"], content["last_window_s"], content["warmup_frac"]) == (
        3,
        6.5,
        30.0,
        0.2,
    )
    found = rows(content)
    assert list(found) == ["Total Prompt tok/s", "New Prompt tok/s", "Cached Prompt tok/s", "Completion tok/s"]
    assert found["Completion tok/s"]["overall"] == found["Completion tok/s"]["last_window"] == pytest.approx(11 / 6.5)
    # A fifth of 6.5 s is 1.3 s, before the first point: it is where the rest is counted from.
    assert found["Completion tok/s"]["steady_state"] == pytest.approx(8 / 5)


def test_averages_over_requests(tmp_path: Path) -> None:
    content = written(tmp_path, *two(), concurrency=2)["benchmark_summary.json"]
    assert content == {
        "Test Duration (s)": 6.5,
        "Concurrency": 2,
        "Request Rate (req/s)": -1.0,
        "Total Requests": 4,
        "Success Requests": 3,
        "Failed Requests": 1,
        "Stream Requests": 4,
        "Non-Stream Requests": 0,
        "Req Throughput (req/s)": round(3 / 6.5, 4),
        "Avg Latency (s)": round((3 + 1.5 + 2.5) / 3, 4),
        "Avg Input Tokens": round(38 / 3, 4),
        "Input Throughput (tok/s)": round(38 / 6.5, 4),
        "Output Throughput (tok/s)": round(11 / 6.5, 4),
        "Total Throughput (tok/s)": round(49 / 6.5, 4),
        "Avg TTFT (ms)": round(2000 / 3, 2),
        "Avg TPOT (ms)": round((500 + 500 + 1000) / 3, 2),  # the time to the last byte counts
        "Avg ITL (ms)": round(3500 / 3, 2),
        "Avg Output Tokens": round(11 / 3, 4),
        "Avg Turns/Request": round(4 / 3, 4),
        "KV Cache Hit Rate (%)": round(100 * 22 / 38, 4),
        "Avg First-Turn TTFT (ms)": 750.0,
        "Avg Subsequent-Turn TTFT (ms)": 500.0,
    }


def test_percentiles_are_the_nearest_rank(tmp_path: Path) -> None:
    found = {row["Percentiles"]: row for row in written(tmp_path, *two())["benchmark_percentile.json"]}
    assert list(found) == ["min", "1%", "5%", "10%", "25%", "50%", "75%", "90%", "95%", "99%", "max"]
    assert [found[p]["Latency (s)"] for p in ("min", "25%", "50%", "75%", "max")] == [1.5, 1.5, 2.5, 3.0, 3.0]
    assert found["50%"]["Input tokens"] == 10
    assert found["max"]["Decode (tok/s)"] == 2.0
    assert found["min"]["Output (tok/s)"] == 1.2


def test_a_run_without_a_success_has_none_of_these_files(tmp_path: Path) -> None:
    assert set(written(tmp_path, two()[-1])) == {"profile_export_aiperf.json"}
