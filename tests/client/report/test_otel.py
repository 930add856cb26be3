"""A run as OpenTelemetry's client spans and metrics: the names and units of the conventions, and figures of the records."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import record, run

from llmirage_client.measure.record import RequestError, RunResult
from llmirage_client.report.files import write_artifacts
from llmirage_client.report.otel import METRICS_FILE, SPANS_FILE
from llmirage_client.report.records_file import with_bodies
from llmirage_client.workload.registry import load

METRICS = {
    "gen_ai.client.operation.duration": "s",
    "gen_ai.client.operation.time_to_first_chunk": "s",
    "gen_ai.client.operation.time_per_output_chunk": "s",
    "gen_ai.client.token.usage": "{token}",
}


def written(result: RunResult, folder: Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """The spans of the files, and the metrics by name."""
    write_artifacts(result, folder)
    lines = [json.loads(line) for line in (folder / SPANS_FILE).read_text().splitlines()]
    [metrics] = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    spans = [line["resourceSpans"][0]["scopeSpans"][0]["spans"][0] for line in lines]
    return spans, {one["name"]: one for one in metrics["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]}


def attributes(of: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in of["attributes"]}


def test_the_files_have_the_figures_of_the_records(tmp_path: Path) -> None:
    error = RequestError(429, "rate_limit", "slow down")
    records = [record(start_s=1.0), record("other", start_s=2.0, tokens=5), record("third", start_s=3.0, error=error)]
    spans, metrics = written(run(records, options={"otel": True}, speed=2.0), tmp_path)
    assert {name: metric["unit"] for name, metric in metrics.items()} == METRICS
    assert [attributes(span).get("error.type") for span in spans] == [None, None, "rate_limit"]
    assert [span["status"]["code"] for span in spans] == [1, 1, 2]
    for span, one in zip(spans, records, strict=True):
        assert one.exchange.end_s is not None
        lasted_ns = int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])
        assert lasted_ns == pytest.approx((one.exchange.end_s - one.exchange.start_s) * 2e9, rel=1e-6)
        assert span["kind"] == 3
    first = attributes(spans[0])
    assert (first["gen_ai.usage.input_tokens"], first["gen_ai.usage.output_tokens"]) == ("100", "11")
    assert (first["server.address"], first["server.port"]) == ("localhost", "8000")
    assert first["gen_ai.response.time_to_first_chunk"] == pytest.approx(0.2)
    duration = metrics["gen_ai.client.operation.duration"]["histogram"]["dataPoints"]
    assert [(point["count"], attributes(point).get("error.type")) for point in duration] == [
        ("2", None),
        ("1", "rate_limit"),
    ]
    [gaps] = metrics["gen_ai.client.operation.time_per_output_chunk"]["histogram"]["dataPoints"]
    assert (gaps["count"], gaps["sum"]) == ("14", pytest.approx(14 * 0.02))
    for metric in metrics.values():
        for point in metric["histogram"]["dataPoints"]:
            assert len(point["bucketCounts"]) == len(point["explicitBounds"]) + 1
            assert sum(map(int, point["bucketCounts"])) == int(point["count"])


def test_spans_with_bodies_are_a_workload(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    inputs = [{"session_id": "talk", "payloads": [{"model": "m", "messages": messages}]}]
    written(run([record()], options={"otel": True}, inputs=inputs), tmp_path)
    [session] = load(str(tmp_path / SPANS_FILE)).sessions.values()
    assert (list(session.turns[0].messages), session.turns[0].max_tokens) == (messages, 11)


def test_bodies_belong_to_their_requests(tmp_path: Path) -> None:
    """Of several workers, whose conversations overlap, and without the warm-up, of which no bodies are kept."""
    records = [record("a", start_s=3.0), record("b", start_s=1.0), record("a", start_s=4.0), record("b", start_s=0.0)]
    for number, one in enumerate(records):
        one.session_num, one.request_id = number, str(number)
    records[3].phase = "warmup"
    says = {"a": "first", "a#2": "second", "b": "other"}
    inputs = [
        {"session_id": name, "payloads": [{"messages": [{"role": "user", "content": text}]}]} for name, text in says.items()
    ]
    paired = {one.request_id: (name, body["messages"][0]["content"]) for one, name, body in with_bodies(records, inputs)}
    assert paired == {"0": ("a", "first"), "1": ("b", "other"), "2": ("a__repeat_2", "second")}


def test_without_the_setting_there_are_no_such_files(tmp_path: Path) -> None:
    write_artifacts(run([record()]), tmp_path)
    assert not list(tmp_path.glob("otel*"))
