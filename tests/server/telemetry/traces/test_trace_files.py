"""Trace files are complete at every moment, name what happened, and are no request's business when they fail."""

import asyncio
import json
import logging
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_endpoint import JsonEndpoint, JsonHandler
from traced import overlaps, traced

from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.telemetry.traces.served import Sessions
from llmirage_server.telemetry.traces.spans import OtelWriter, OtlpSender, PerfettoWriter
from llmirage_server.telemetry.traces.trace_file import GrowingFile, TraceThread

from ...conftest import Api

# Attributes of gen_ai spans, by OpenTelemetry's conventions of generative AI.
KNOWN = {
    "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model",
    "gen_ai.response.id", "gen_ai.response.finish_reasons", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens",
    "gen_ai.usage.cache_read.input_tokens", "gen_ai.conversation.id", "gen_ai.request.max_tokens",
    "gen_ai.request.temperature", "gen_ai.request.top_p", "gen_ai.request.stop_sequences", "gen_ai.request.seed",
    "gen_ai.request.choice.count", "gen_ai.response.time_to_first_chunk", "gen_ai.system_instructions",
    "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.definitions", "error.type",
}  # fmt: skip


def test_a_growing_file_is_whole_after_each_part_and_after_one_that_failed(tmp_path: Path) -> None:
    file = GrowingFile(tmp_path / "file", b"[", b"]")
    contents = [(tmp_path / "file").read_bytes()]
    file.add(b"1")
    file.add(b",2", b", 3, 4]")
    contents.append((tmp_path / "file").read_bytes())
    size, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12, hard))  # as on a full disk: some bytes are written, then no more
    try:
        with pytest.raises(OSError, match="too large"):
            file.add(b",22222222222", b"]")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    contents.append((tmp_path / "file").read_bytes())
    file.add(b",5", b"]")
    contents.append((tmp_path / "file").read_bytes())
    assert contents == [b"[]", b"[1,2, 3, 4]", b"[1,2, 3, 4]", b"[1,2,5]"]


class Failing:
    """A writer on a disk that is full until it is told otherwise."""

    full = True

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, requests: Any) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.written += [request.id for request in requests]

    def close(self) -> None:
        self.write([traced("closed", 0.0, 1.0, [1])])


def test_a_full_disk_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "llmirage")
    writer = Failing()
    thread = TraceThread([writer])
    for number in range(5):
        thread.take(traced(str(number), 0.0, 1.0, [1]))
    thread.close()
    thread.close()
    thread.take(traced("late", 0.0, 1.0, [1]))
    assert [record.message for record in caplog.records] == [
        "The trace cannot be written: [Errno 28] No space left on device: what cannot be written is left out"
    ]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"trace_out": "/no/such/folder/a.jsonl"}, r"trace_out: /no/such/folder/a.jsonl: No such file"),
        ({"trace_out": "trace.txt"}, r"trace_out: trace.txt: give trace_format, or a name that ends with one of .mooncake"),
        ({"trace_out": __file__, "trace_format": "otel"}, r"is there already: name another file, or remove it"),
        ({"trace_out": __file__, "trace_format": "weka"}, r"is a file, but weka is a folder"),
        ({"trace_out": "/tmp", "trace_format": "otel"}, r"is a folder, but otel is one file"),
        (
            {"trace_out": "http://localhost:1", "trace_format": "weka"},
            r"a collector takes spans, trace_format otel, not weka",
        ),
        ({"trace_out": "http://me:secret@localhost:1"}, r"trace_out: must be without a user and password"),
        ({"record_workload": "/no/such/file"}, r"record_workload: /no/such/file: No such file"),
        ({"trace_format": "otel", "trace_block_size": 3}, r"trace_format needs --trace-out\ntrace_block_size needs --trace"),
    ],
)
def test_what_cannot_be_written_is_refused_at_the_start(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        create_app(ClusterConfig(**settings))


def test_refusals_are_in_spans_and_timelines_alone(runner: asyncio.Runner, tmp_path: Path) -> None:
    names = ("o.otlp.jsonl", "p.json", "d.jsonl", "m.mooncake.jsonl", "w/")
    for name in names:
        api = Api(runner, trace_out=f"{tmp_path}/{name}", record_workload=f"{tmp_path}/work-{name.strip('/')}")
        assert api.chat("Hello", max_tokens=10**6).status_code == 400
        assert api.request("GET", "/v1/none").status_code == 404
        api.app.close()
        runner.run(api.app.closed())
    [line] = (tmp_path / "o.otlp.jsonl").read_text().splitlines()
    [span] = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    told = {one["key"]: one["value"] for one in span["attributes"]}
    assert told["error.type"] == {"stringValue": "400"}
    assert "maximum context length" in span["status"]["message"]
    [event] = [event for event in json.loads((tmp_path / "p.json").read_text()) if event.get("cat") == "request"]
    assert event["args"]["status"] == 400
    assert (tmp_path / "d.jsonl").read_text() == ""
    assert len((tmp_path / "m.mooncake.jsonl").read_text().splitlines()) == 1
    assert not list((tmp_path / "w").iterdir())
    assert all((tmp_path / f"work-{name.strip('/')}").read_text() == "" for name in names)


def test_a_killed_server_leaves_a_whole_file(tmp_path: Path) -> None:
    program = f"""
import os, sys, time
from traced import traced
from pathlib import Path
from llmirage_server.telemetry.traces.spans import PerfettoWriter
from llmirage_server.telemetry.traces.trace_file import TraceThread
thread = TraceThread([PerfettoWriter(Path({str(tmp_path / "out.json")!r}))])
for number in range(100_000):
    thread.take(traced(str(number), number, number + 1, [1, 2, 3]))
    if number == 50:
        print(flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": ":".join(sys.path)}
    )
    assert process.stdout is not None
    process.stdout.readline()
    while (tmp_path / "out.json").stat().st_size < 1000:
        assert process.poll() is None
    process.kill()
    process.wait()
    assert len(json.loads((tmp_path / "out.json").read_text())) > 3


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5), st.integers(-1, 2)), min_size=1, max_size=30))
def test_perfetto_events_have_the_required_fields_and_nest(times: list[tuple[float, float, int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        writer = PerfettoWriter(Path(folder) / "trace.json")
        requests = sorted(times, key=lambda one: one[0] + one[1])
        for number, (start_s, length_s, instance) in enumerate(requests):
            writer.write([traced(str(number), start_s, start_s + length_s, [1, 2], instance=instance)])
        events = json.loads((Path(folder) / "trace.json").read_text())
    assert sum(event.get("cat") == "request" for event in events) == len(times)
    for event in events:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        assert event["ph"] in ("X", "M")
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            continue
        assert {"ts", "dur", "cat", "args"} <= event.keys()
        assert event["dur"] >= 0
    assert overlaps(events) == []


def test_spans_keep_to_the_conventions(tmp_path: Path) -> None:
    writer = OtelWriter(tmp_path / "out.jsonl")
    given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    writer.write(
        [
            traced("a", 1.0, 2.0, [1, 2], session="s", body={"temperature": 0.5}, max_tokens=9),
            traced("b", 3.0, 4.0, [1, 2, 3], session="s", traceparent=given),
            traced(
                "c",
                5.0,
                6.0,
                [1, 2, 3],
                3,
                session="s",
                traceparent="00-0-0-00",
                finish="cancelled",
                messages=(),
                path="/v1/completions",
                text="x",
            ),
        ]
    )
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    spans = [row["resourceSpans"][0]["scopeSpans"][0]["spans"][0] for row in rows]
    for span in spans:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
        assert re.fullmatch("[0-9a-f]{16}", span["spanId"])
        assert {attribute["key"] for attribute in span["attributes"]} <= KNOWN
        assert int(span["endTimeUnixNano"]) > int(span["startTimeUnixNano"])
        assert all(len(attribute["value"]) == 1 for attribute in span["attributes"])
    assert (spans[1]["traceId"], spans[1]["parentSpanId"]) == (given[3:35], given[36:52])
    assert (spans[0]["traceId"], spans[0]["name"], spans[2]["name"]) == (
        spans[2]["traceId"],
        "chat toy",
        "text_completion toy",
    )
    assert [span["status"]["code"] for span in spans] == [1, 1, 2]


class Collector(JsonHandler):
    """Keeps what is exported to it."""

    got: ClassVar[list[tuple[str, str | None, Any]]] = []

    def do_POST(self) -> None:
        self.got.append((self.path, self.headers["x-tenant"], self.body()))
        self.answer(200, {})


def test_a_collector_gets_the_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a%20b,other=1")
    with JsonEndpoint(Collector).started() as endpoint:
        OtlpSender(f"http://{endpoint.url}").write([traced("a", 1.0, 2.0, [1]), traced("b", 1.0, 2.0, [1])])
    [(path, tenant, body)] = Collector.got
    assert (path, tenant) == ("/v1/traces", "a b")
    assert len(body["resourceSpans"][0]["scopeSpans"][0]["spans"]) == 2
    with pytest.raises(OSError, match="refused"):
        OtlpSender(f"http://{endpoint.url}").write([traced("a", 1.0, 2.0, [1])])


def test_sessions_without_a_name_continue_the_longest_prompt() -> None:
    sessions = Sessions()
    first = list(range(40))
    placed = [
        sessions.place(request)
        for request in (
            traced("a", 0.0, 1.0, first),
            traced("b", 2.0, 3.0, [*first, 7, 7, 7]),
            traced("c", 2.5, 3.5, [*first[:30], 99]),  # only its beginning is the same
            traced("d", 4.0, 5.0, [*first, 7, 7, 7, 8]),
            traced("e", 0.5, 6.0, [*first, 1]),  # before the reply that it would continue
        )
    ]
    assert [one.session.name for one in placed] == ["session-a", "session-a", "session-c", "session-a", "session-e"]
    assert [one.previous and one.previous.id for one in placed] == [None, "a", None, "b", None]
