"""Every metric that the code reports is defined in docs/metrics.md, and every file and key in docs/artifacts.md."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from llmirage_client.measure.catalogue import OVER_TIME, PER_CONVERSATION, PER_REQUEST, TOTALS, WHOLE_RUN
from llmirage_client.measure.record import BranchStats, ClientCost, Exchange, Record, RequestError, RunResult
from llmirage_client.report.files import write_artifacts
from llmirage_client.report.records_file import RecordWriter, RunClock

DOCS = Path(__file__).parents[3] / "docs"
METRICS = (DOCS / "metrics.md").read_text().partition("## Names and units")[0]  # which is made from the code
ARTIFACTS = (DOCS / "artifacts.md").read_text()
NAMED = set(re.findall(r"`([\w.]+)`", METRICS))


@pytest.mark.parametrize("tag", [*PER_REQUEST, *PER_CONVERSATION, *OVER_TIME, *WHOLE_RUN])
def test_a_metric_is_in_the_documentation(tag: str) -> None:
    if tag.startswith("total_usage_") and TOTALS.get(tag) == tag.removeprefix("total_"):
        assert "its `total_usage_X`" in METRICS  # defined for all usage_X at once
        tag = tag.removeprefix("total_")
    assert tag in NAMED


def test_no_metric_is_documented_that_is_not_there() -> None:
    known = {*PER_REQUEST, *PER_CONVERSATION, *OVER_TIME, *WHOLE_RUN}
    prefixes = ("usage_", "total_", "conversation_", "effective_", "active_", "time_to_", "osl_", "good")
    found = {name for name in NAMED if name.startswith(prefixes) and "." not in name}
    assert found - known == {"usage_X", "total_usage_X"}


def test_counters_and_the_clients_cost_are_in_the_documentation() -> None:
    assert {f.name for f in fields(BranchStats)} <= NAMED
    assert {f.name for f in fields(ClientCost)} | {"was_bottleneck"} <= NAMED


def test_files_and_their_keys_are_in_the_documentation(tmp_path: Path) -> None:
    done = Exchange(1.0, 1.1, 3.0, [2.0, 3.0], 2.0, 200, True, finish_reason="stop", usage={"prompt_tokens": 5})
    done.retries, done.skipped_events, done.url = 1, 1, "u"
    failed = Exchange(1.0, end_s=2.0, error=RequestError(500, "t", "m"))
    records = [
        Record(0, "c", 0, "r", "x", "x", "p", 1, 1.0, done, "profiling", False, 5, 2, 2, "fork", 0, ("y",), 2, 6),
        Record(0, "c", 1, "r", "x", "x", None, 0, 1.0, failed),
    ]
    result = RunResult(
        records, BranchStats(), 0.0, 4.0, 1e9, options={"slice_duration": 1.0}, inputs=[{"session_id": "c", "payloads": []}]
    )
    out = RecordWriter(tmp_path, RunClock(0.0, 1e9), result)
    for record in records:
        out.write(record)
    write_artifacts(result, tmp_path, records=out)
    words = set(re.findall(r"[\w.]+", ARTIFACTS))
    for path in tmp_path.iterdir():
        assert path.name in words or f"`{path.suffix}`" in ARTIFACTS, path.name
    line = json.loads((tmp_path / "profile_export.jsonl").read_text().splitlines()[0])
    assert {key for part in ("metadata", "llmirage") for key in line[part]} <= {w.split(".")[-1] for w in words}
    summary = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert summary.keys() - {*PER_REQUEST, *OVER_TIME, *WHOLE_RUN} <= {w.split(".")[0] for w in words}
    assert summary["llmirage"].keys() <= words
    for name in ("trace_summary", "workload_throughput", "workload_timeline"):
        content = json.loads((tmp_path / f"{name}.json").read_text())
        inner = (content.get("rows") or content.get("points"))[0]
        assert {*content, *inner} <= words
