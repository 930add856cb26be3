"""`llmirage run` as a user sees it: exit status, messages, files; against an endpoint that does what the prompt says."""

import asyncio
import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from json_endpoint import JsonEndpoint, JsonHandler, completion
from warm import llmirage

from llmirage_client.commands.actions import run as run_action
from llmirage_client.commands.run import run

MODELS = {"data": [{"id": "only-model", "owned_by": "somebody"}]}


class Endpoint(JsonEndpoint):
    models: Any = MODELS

    def __init__(self) -> None:
        super().__init__(Handler)
        self.bodies: list[dict[str, Any]] = []
        self.asked = threading.Event()


class Handler(JsonHandler):
    server: Endpoint

    def do_GET(self) -> None:
        self.answer(200, self.server.models)

    def do_POST(self) -> None:
        body = self.body()
        self.server.bodies.append(body)
        self.server.asked.set()
        text = str(body["messages"][-1]["content"])
        if "HANG" in text:
            time.sleep(30)
        if "FAIL" in text:
            self.answer(500, {"error": {"message": "forced failure", "type": "server_error"}})
        else:
            self.answer(200, completion(f"re {text}", 3, 2))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint().started() as server:
        yield server


def dag(folder: Path, *texts: str) -> Path:
    file = folder / "chain.jsonl"
    turns = [{"messages": [{"role": "user", "content": text}]} for text in texts]
    file.write_text(json.dumps({"session_id": "s", "turns": turns}) + "\n")
    return file


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(run, [*map(str, arguments)])
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]


def test_a_good_run_ends_with_0_and_leaves_its_files(endpoint: Endpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = invoke(dag(tmp_path, "one", "two"), "--url", endpoint.url, "--artifact-dir", out, "--extra-inputs", "seed:4")
    assert result.exit_code == 0, result.output
    assert "2 requests ok" in result.output
    assert {file.name for file in out.iterdir()} >= {
        "profile_export_aiperf.json",
        "profile_export_aiperf.csv",
        "profile_export.jsonl",
        "inputs.json",
    }
    assert [body["model"] for body in endpoint.bodies] == ["only-model", "only-model"]
    assert [message["content"] for message in endpoint.bodies[1]["messages"]] == ["one", "re one", "two"]
    assert json.loads((out / "inputs.json").read_text()) == {"data": [{"session_id": "s", "payloads": endpoint.bodies}]}
    assert len(records(out)) == 2
    assert endpoint.bodies[0]["seed"] == 4


def test_a_second_run_replaces_nothing(endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = (dag(tmp_path, "one"), "--url", endpoint.url)
    assert [invoke(*words).exit_code for _ in range(2)] == [0, 0]
    folders = [folder for folder in (tmp_path / "artifacts").iterdir() if not folder.is_symlink()]
    assert [len(records(folder)) for folder in folders] == [1, 1]
    assert (tmp_path / "artifacts" / "latest").resolve() in folders
    sent = len(endpoint.bodies)
    result = invoke(*words, "--artifact-dir", folders[0])
    assert result.exit_code == 2
    assert "is not empty; name another one, or add --overwrite" in result.output
    assert len(endpoint.bodies) == sent
    assert invoke(*words, "--artifact-dir", folders[0], "--overwrite").exit_code == 0


def test_a_failed_request_ends_it_with_1_and_the_conversation_goes_on(endpoint: Endpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = invoke(dag(tmp_path, "one", "FAIL", "three"), "--url", endpoint.url, "--artifact-dir", out)
    assert result.exit_code == 1
    assert "forced failure" in result.output
    assert ["error" in record for record in records(out)] == [False, True, False]


@pytest.mark.parametrize(
    ("slo", "status"), [("error_rate<50%", 0), ("error_rate<10%", 3), ("latency_p50<60s", 1), ("latency_p50<1us", 3)]
)
def test_an_objective_about_errors_says_how_many_may_fail(slo: str, status: int, endpoint: Endpoint, tmp_path: Path) -> None:
    file = dag(tmp_path, "one", "FAIL", "three")
    out = ("--artifact-dir", tmp_path / "out", "--junit", tmp_path / "slo.xml")
    result = invoke(file, "--url", endpoint.url, "--slo", slo, *out)
    assert result.exit_code == status, result.output
    assert f'failures="{int(status == 3)}"' in (tmp_path / "slo.xml").read_text()


def test_every_point_of_a_sweep_has_a_verdict(endpoint: Endpoint, tmp_path: Path) -> None:
    options = ("--url", endpoint.url, "--artifact-dir", tmp_path / "out", "--junit", tmp_path / "slo.xml")
    result = invoke(dag(tmp_path, "one"), *options, "--concurrency", "1,2", "--slo", "latency_p50<60s,tps>1e9")
    assert result.exit_code == 3, result.output
    assert (tmp_path / "slo.xml").read_text().count("<testcase") == 4
    assert 'name="concurrency 2: tps&gt;1e9"><failure' in (tmp_path / "slo.xml").read_text()
    assert result.output.count("does not meet the SLO: latency_p50<60s") == 2


def test_a_dead_endpoint_is_recorded_request_by_request(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = invoke(dag(tmp_path, "one", "two"), "--url", "127.0.0.1:9", "--artifact-dir", out, "--set", "preflight=false")
    assert result.exit_code == 1
    assert [record["error"]["type"] for record in records(out)] == ["connection_refused"] * 2


def test_a_hanging_endpoint_is_given_up_on(endpoint: Endpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--url", endpoint.url, "--artifact-dir", out, "--request-timeout-seconds", "0.2")
    result = invoke(dag(tmp_path, "HANG", "two"), *arguments)
    assert result.exit_code == 1
    assert [record.get("error", {}).get("type") for record in records(out)] == ["timeout", None]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--endpoint-type", "chats"], ["chat", "completions"]),
        (["--set", "session_prefix=some"], ["extend", "none"]),
        (["--arrival-pattern", "burst"], ["poisson", "constant"]),
        (["--concurrency", "0"], ["--concurrency", "must be at least 1, not 0"]),
        (["--request-rate", "-1"], ["--request-rate"]),
        (["--fixed-schedule"], ["--fixed-schedule", "arrive"]),
        (["--endpoint-type", "raw"], ["raw", "--endpoint-path"]),
        (["--endpoint-type", "raw", "--endpoint-path", "/x"], ["whole request bodies", "dag_jsonl"]),
        (["--endpoint-path", "http://host/x"], ["path on the host"]),
        (["--set", "context_mode=server_state"], ["--endpoint-type responses"]),
        (["--set", f"tls_key={__file__}"], ["tls_cert"]),
        (["--set", f"tls_ca={__file__}"], ["tls_ca", "no certificate"]),
        (["--retries", "-1"], ["--retries"]),
        (["--extra-inputs", "nonsense"], ["key:value", "JSON"]),
        (["--extra-inputs", "{1}"], ["JSON"]),
        (["-H", "nonsense"], ["Name: value"]),
        (["--url", "ftp://host"], ["ftp", "http"]),
        (["--format", "nothing"], ["dag_jsonl", "agentic_jsonl", "inputs_json"]),
        (["--no-such-flag"], ["--no-such-flag"]),
    ],
)
def test_nonsense_is_refused_with_2_and_a_reason(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    result = invoke(dag(tmp_path, "one"), *arguments)
    assert result.exit_code == 2
    assert all(word in result.output for word in words), result.output


def test_pictures_are_refused_where_prompts_are_text(tmp_path: Path) -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}
    file = tmp_path / "pictures.jsonl"
    lines = [{"session_id": name, "turns": [{"messages": [picture]}]} for name in "ab"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = invoke(file, "--endpoint-type", "completions", "--url", "127.0.0.1:9")
    assert result.exit_code == 2
    for line in (1, 2):
        assert f"line {line}: turns.0.messages: a message with a part of type 'image_url'" in result.output


def test_an_invalid_file_is_refused_with_2_and_sends_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"session_id": "a", "turns": []}\n{"session_id": "a", "turns": [{"messages": []}]}\n')
    result = invoke(file, "--url", endpoint.url, "--format", "dag_jsonl")
    assert result.exit_code == 2
    assert "line 1" in result.output
    assert "line 2" in result.output
    assert not endpoint.bodies


def test_the_first_interrupt_reports_what_finished_and_ends_with_130(endpoint: Endpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [dag(tmp_path, "one", "HANG", "three"), "--url", endpoint.url, "--artifact-dir", out]
    command = [*llmirage(), "run", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while len(endpoint.bodies) < 2 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 130, output
    assert "1 request ok" in output
    assert "Traceback" not in output
    assert [record["metadata"]["was_cancelled"] for record in records(out)] == [False, True]
    assert json.loads((out / "profile_export_aiperf.json").read_text())["was_cancelled"] is True


def test_a_schedule_of_days_is_told_before_it_begins_and_beside_its_figures(endpoint: Endpoint, tmp_path: Path) -> None:
    rows = [{"session_id": f"s{day}", "timestamp": day * 86_400_000, "text": "x"} for day in (0, 2)]
    file = tmp_path / "timed.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    command = [*llmirage(), "run", str(file), "--url", endpoint.url, "--model", "m", "--artifact-dir", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while not endpoint.bodies and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    before, _, after = output.partition("0/2 requests")
    assert "The schedule lasts 2.0 days, by the times of the file: --fixed-schedule-speedup 48 sends" in before
    heading = after.partition("Latency in ms")[0]
    assert "Note: The schedule lasts 2.0 days" in heading
    assert after.count("The schedule lasts") == 1
    assert json.loads((tmp_path / "out/profile_export_aiperf.json").read_text())["llmirage"]["notes"][0].startswith(
        "The sch"
    )


def test_a_loop_without_signals_runs_as_others_do(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_action, "run_on_best_loop", lambda main: asyncio.run(main()))
    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", asyncio.AbstractEventLoop.add_signal_handler)
    result = invoke(dag(tmp_path, "one"), "--url", endpoint.url, "--artifact-dir", tmp_path / "out")
    assert result.exit_code == 0, result.output  # Windows has no such handlers


def test_a_schedule_is_not_repeated_and_says_how_it_could_be(tmp_path: Path) -> None:
    file = tmp_path / "timed.jsonl"
    file.write_text('{"input_toks": 20, "output_toks": 5, "arrival_time_ns": 0}\n')
    result = invoke(file, "--num-conversations", "2", "--url", "127.0.0.1:9")
    assert result.exit_code == 2
    assert "has 1 conversation" in result.output
    assert "--no-fixed-schedule" in result.output


def test_bodies_sent_as_they_are_are_said_to_ignore_extra_inputs(endpoint: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "inputs.json"
    body = {"model": "m", "messages": [{"role": "user", "content": "one"}]}
    file.write_text(json.dumps({"data": [{"session_id": "s", "payloads": [body]}]}))
    result = invoke(file, "--url", endpoint.url, "--artifact-dir", tmp_path / "out", "--extra-inputs", "seed:4")
    assert result.exit_code == 0, result.output
    assert endpoint.bodies == [body]
    assert "--extra-inputs do not change them" in " ".join(result.output.split())


def forked(folder: Path) -> Path:
    """A root that fails on its second turn, and a fork that fails on its first."""
    file = folder / "forked.jsonl"

    def turn(text: str, **fields: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}], **fields}

    root = {"session_id": "r", "turns": [turn("r0"), turn("FAIL r1"), turn("r2", forks=["k"])]}
    kid = {"session_id": "k", "turns": [turn("FAIL k0"), turn("k1")]}
    file.write_text(json.dumps(root) + "\n" + json.dumps(kid) + "\n")
    return file


@pytest.mark.parametrize(
    ("arguments", "environment", "texts"),
    [
        ([], "", ["r0", "FAIL r1", "r2", "FAIL k0", "k1"]),
        (["--fail-fast"], "", ["r0", "FAIL r1"]),
        ([], "1", ["r0", "FAIL r1", "r2", "FAIL k0"]),
    ],
)
def test_fail_fast_stops_for_good_and_ends_with_1(
    arguments: list[str],
    environment: str,
    texts: list[str],
    endpoint: Endpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIPERF_DAG_FAIL_FAST", environment)
    result = invoke(forked(tmp_path), "--url", endpoint.url, "--artifact-dir", tmp_path / "out", *arguments)
    assert result.exit_code == 1
    assert [body["messages"][-1]["content"] for body in endpoint.bodies] == texts
    stopped = "failed, and --fail-fast is set" in " ".join(result.output.split())
    assert stopped == bool(arguments or environment)
