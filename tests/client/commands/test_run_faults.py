"""`llmirage run` against endpoints that misbehave, and interrupted runs: nothing is lost, the files agree, no traceback."""

import csv
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from invoked import interrupted, invoke, records_of, summary_of
from json_endpoint import JsonEndpoint, JsonHandler
from workload_files import conversation, write

from llmirage_client.load.calls import PromptTooShortError, TokenCalls

OK = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}]}
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"par"}}]}\n\n'
FORKED = (
    {"session_id": "root", "turns": [{"messages": [{"role": "user", "content": "root"}], "forks": ["kid"]}]},
    conversation("kid 0", "kid 1", name="kid"),
)


class Misbehaving(JsonEndpoint):
    """Does what the last message says; answers "fine" to anything else."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.seen: list[tuple[dict[str, str], Any]] = []
        self.models: list[str] = ["m"]
        self.released = threading.Event()


class Handler(JsonHandler):
    server: Misbehaving
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.server.models]})

    def do_POST(self) -> None:
        body = self.body()
        self.server.seen.append((dict(self.headers), body))
        match body["messages"][-1]["content"]:
            case "hang":
                self.server.released.wait(30)
                self.close_connection = True
            case "error 500":
                self.answer(500, {"error": {"message": "out of order"}})
            case "hang up":
                self.close_connection = True
            case "cut":
                self.stream(CHUNK, ended=False)
            case "garbage":
                self.stream(CHUNK + b"data: {nonsense\n\n")
            case "not json":
                self.answer(200, "hello")
            case _:
                self.answer(200, OK)

    def stream(self, data: bytes, ended: bool = True) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) + b"0\r\n\r\n" * ended)
        self.close_connection = not ended


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving().started() as server:
        yield server
        server.released.set()


def ran(server: Misbehaving, file: object, *words: object, status: int = 0) -> Result:
    """Run a workload, with its files beside it unless the words say where."""
    out = () if "--artifact-dir" in words else ("--artifact-dir", Path(str(file)).parent / "out")
    return invoke("run", file, "--url", f"{server.url}/v1", *out, *words, status=status)


@pytest.mark.parametrize(
    ("fault", "code", "kind"),
    [
        ("error 500", 500, "http_error"),
        ("hang up", None, "connection_closed"),
        ("cut", 200, "connection_closed"),
        ("garbage", None, "malformed_stream"),
        ("not json", 200, "malformed_body"),
    ],
)
def test_a_fault_is_recorded_and_the_turns_after_it_still_go_out(
    server: Misbehaving, tmp_path: Path, fault: str, code: int | None, kind: str
) -> None:
    ran(server, write(tmp_path, conversation("before", fault, "after")), status=1)
    before, failed, after = records_of(tmp_path / "out")
    assert "error" not in before
    assert "error" not in after
    assert (failed["error"].get("code"), failed["error"]["type"]) == (code, kind)
    contents = [message["content"] for message in server.seen[-1][1]["messages"]]
    assert contents == ["before", "fine", fault, "after"]


def test_the_files_of_a_run_agree_with_each_other_and_with_the_wire(server: Misbehaving, tmp_path: Path) -> None:
    ran(server, write(tmp_path, *FORKED))
    out = tmp_path / "out"
    report = summary_of(out)
    rows = {row[0]: row for row in csv.reader((out / "profile_export_aiperf.csv").read_text().splitlines()) if row}
    lines = records_of(tmp_path / "out")
    assert len(lines) == len(server.seen) == 3
    assert report["request_count"]["avg"] == 3
    assert report["branch_stats"]["children_completed"] == 1
    latencies = [line["metrics"]["request_latency"]["value"] for line in lines]
    assert report["request_latency"]["avg"] == pytest.approx(sum(latencies) / 3)
    assert float(rows["Request Latency (ms)"][1]) == pytest.approx(report["request_latency"]["avg"], abs=0.01)
    sent = {headers["X-Request-ID"]: headers for headers, _ in server.seen}
    for line in lines:
        assert sent[line["metadata"]["x_request_id"]]["X-Correlation-ID"] == line["metadata"]["x_correlation_id"]
    inputs = json.loads((out / "inputs.json").read_text())["data"]
    assert [(entry["session_id"], len(entry["payloads"])) for entry in inputs] == [("root", 1), ("kid", 2)]


def test_inputs_json_of_a_run_sends_the_same_bodies_again(server: Misbehaving, tmp_path: Path) -> None:
    ran(server, write(tmp_path, *FORKED))
    first = [body for _, body in server.seen]
    server.seen.clear()
    ran(server, tmp_path / "out" / "inputs.json", "--artifact-dir", tmp_path / "again")
    assert [body for _, body in server.seen] == first


def test_headers_keys_and_extra_inputs_reach_the_endpoint(server: Misbehaving, tmp_path: Path) -> None:
    options = ["--api-key", "sk-1", "-H", "X-Team:blue", "--header", "X-Empty:"]
    options += ["--extra-inputs", "temperature:0.5", "--extra-inputs", "name:x:y"]
    ran(server, write(tmp_path, conversation("a")), *options, "--extra-inputs", '{"temperature": 1, "stop": ["\\n"]}')
    ((headers, body),) = server.seen
    assert (headers["Authorization"], headers["X-Team"], headers["X-Empty"]) == ("Bearer sk-1", "blue", "")
    assert (body["temperature"], body["name"], body["stop"]) == (1, "x:y", ["\n"])
    written = "".join(file.read_text() for file in (tmp_path / "out").iterdir())
    assert "sk-1" not in written


def test_of_several_models_one_must_be_named(server: Misbehaving, tmp_path: Path) -> None:
    server.models = ["small", "large"]
    result = ran(server, write(tmp_path, conversation("a")), status=2)
    assert "small, large" in result.output
    assert "--model" in result.output
    assert server.seen == []


def test_every_problem_of_a_file_is_told_with_its_line_before_anything_is_sent(server: Misbehaving, tmp_path: Path) -> None:
    file = write(tmp_path, {"session_id": "a", "turns": [{"messages": [{}]}]}, "", {"turns": [{"messages": 3}]})
    result = ran(server, file, "--format", "dag_jsonl", status=2)
    assert result.stderr.splitlines() == [
        f"{file}: line 1: turns.0: Value error, Each message must have a 'role' key, but message at index 0 does not",
        f"{file}: line 3: session_id: Field required",
        f"{file}: line 3: turns.0.messages: Input should be a valid list",
    ]
    assert server.seen == []


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_sent(server: Misbehaving, tmp_path: Path) -> None:
    file = write(tmp_path, conversation("a"))
    assert "--artifact-dir" in ran(server, file, "--artifact-dir", f"{file}/below", status=2).output
    assert server.seen == []


def test_requests_that_the_end_of_the_duration_cuts_off_did_not_fail(server: Misbehaving, tmp_path: Path) -> None:
    limits = ("--benchmark-duration", 0.3, "--benchmark-grace-period", 0)
    ran(server, write(tmp_path, conversation("a", "hang")), *limits)
    assert [line["metadata"]["was_cancelled"] for line in records_of(tmp_path / "out")] == [False, True]


def test_a_run_without_a_single_reply_is_no_success(server: Misbehaving, tmp_path: Path) -> None:
    limits = ("--benchmark-duration", 0.2, "--benchmark-grace-period", 0)
    ran(server, write(tmp_path, conversation("hang")), *limits, status=1)


def stopped(server: Misbehaving, folder: Path, *texts: str, requests: int, signals: Any) -> tuple[int, str, list[Any]]:
    """Signal a run once so many requests came; return its status, its output and its records."""
    words = (write(folder, conversation(*texts)), "--url", f"{server.url}/v1", "--artifact-dir", folder / "out")
    status, output = interrupted("run", *words, when=lambda: len(server.seen) == requests, signals=signals)
    return status, output, records_of(folder / "out")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_writes_all_its_files_and_the_request_in_flight(
    server: Misbehaving, tmp_path: Path, number: signal.Signals
) -> None:
    status, output, lines = stopped(server, tmp_path, "a", "hang", "never", requests=2, signals=[number])
    assert status == 130, output
    assert "1 request ok" in output
    assert [line["metadata"]["was_cancelled"] for line in lines] == [False, True]
    report = summary_of(tmp_path / "out")
    assert (report["was_cancelled"], report["request_count"]["avg"]) == (True, 1)
    assert (tmp_path / "out" / "profile_export_aiperf.csv").exists()
    assert len(json.loads((tmp_path / "out" / "inputs.json").read_text())["data"][0]["payloads"]) == 2


def test_a_run_interrupted_before_its_first_reply_is_reported_too(server: Misbehaving, tmp_path: Path) -> None:
    status, output, lines = stopped(server, tmp_path, "hang", requests=1, signals=[signal.SIGINT])
    assert status == 130, output
    assert [line["metadata"]["was_cancelled"] for line in lines] == [True]


def test_two_interrupts_end_a_run_at_once_and_finished_requests_are_on_disk(server: Misbehaving, tmp_path: Path) -> None:
    both = (signal.SIGINT, signal.SIGTERM)  # two of the same kind could arrive as one
    status, output, lines = stopped(server, tmp_path, "a", "hang", requests=2, signals=both)
    assert status in (130, -signal.SIGTERM), output  # the second may come after the run's own handlers are gone
    assert lines[0]["metadata"]["was_cancelled"] is False


def test_what_stops_a_run_from_inside_is_told_in_its_own_words(
    server: Misbehaving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PromptTooShortError("there is no room for it")

    monkeypatch.setattr(TokenCalls, "plan", refuse)
    file = write(tmp_path, {"session_id": "s", "arrival_time_ns": 0, "input_toks": 50, "output_toks": 3})
    result = ran(server, file, "--format", "agentic_jsonl", status=2)
    assert result.stderr.splitlines()[-1] == "The run was stopped: there is no room for it"
