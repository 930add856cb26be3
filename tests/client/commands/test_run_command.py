"""`llmirage run` as a user sees it: exit status, messages, files; against an endpoint that does what the prompt says."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from invoked import interrupted, invoke, records_of, refusal, summary_of, text_of
from json_endpoint import ChatEndpoint, completion
from workload_files import conversation, write

from llmirage_client.commands.actions import run as run_action


def reply(body: Any) -> tuple[int, Any]:
    text = str(body["messages"][-1]["content"])
    if "HANG" in text:
        time.sleep(30)
    if "FAIL" in text:
        return 500, {"error": {"message": "forced failure", "type": "server_error"}}
    return 200, completion(f"re {text}", 3, 2)


@pytest.fixture
def endpoint() -> Iterator[ChatEndpoint]:
    with ChatEndpoint(reply, ["only-model"]).started() as server:
        yield server


def ran(endpoint: ChatEndpoint | str, file: object, *words: object, status: int = 0) -> str:
    """Run a workload, with its files beside it; return what was printed, in one line."""
    url, out = endpoint if isinstance(endpoint, str) else endpoint.url, Path(str(file)).parent / "out"
    return text_of("run", file, "--url", url, "--artifact-dir", out, *words, status=status)


def test_a_good_run_ends_with_0_and_leaves_its_files(endpoint: ChatEndpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = ran(endpoint, write(tmp_path, conversation("one", "two")), "--extra-inputs", "seed:4")
    assert "2 requests ok" in said
    names = {"profile_export_aiperf.json", "profile_export_aiperf.csv", "profile_export.jsonl", "inputs.json"}
    assert {file.name for file in out.iterdir()} >= names
    assert [body["model"] for body in endpoint.bodies] == ["only-model", "only-model"]
    assert [message["content"] for message in endpoint.bodies[1]["messages"]] == ["one", "re one", "two"]
    assert json.loads((out / "inputs.json").read_text()) == {"data": [{"session_id": "s", "payloads": endpoint.bodies}]}
    assert len(records_of(out)) == 2
    assert endpoint.bodies[0]["seed"] == 4


def test_a_second_run_replaces_nothing(endpoint: ChatEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = (write(tmp_path, conversation("one")), "--url", endpoint.url)
    assert [invoke("run", *words).exit_code for _ in range(2)] == [0, 0]
    folders = [folder for folder in (tmp_path / "artifacts").iterdir() if not folder.is_symlink()]
    assert [len(records_of(folder)) for folder in folders] == [1, 1]
    assert (tmp_path / "artifacts" / "latest").resolve() in folders
    sent = len(endpoint.bodies)
    assert "is not empty; name another one, or add --overwrite" in refusal("run", *words, "--artifact-dir", folders[0])
    assert len(endpoint.bodies) == sent
    invoke("run", *words, "--artifact-dir", folders[0], "--overwrite")


@pytest.mark.parametrize(
    ("slo", "status"), [("error_rate<50%", 0), ("error_rate<10%", 3), ("latency_p50<60s", 1), ("latency_p50<1us", 3)]
)
def test_an_objective_about_errors_says_how_many_may_fail(
    slo: str, status: int, endpoint: ChatEndpoint, tmp_path: Path
) -> None:
    file = write(tmp_path, conversation("one", "FAIL", "three"))
    ran(endpoint, file, "--slo", slo, "--junit", tmp_path / "slo.xml", status=status)
    assert f'failures="{int(status == 3)}"' in (tmp_path / "slo.xml").read_text()


def test_every_point_of_a_sweep_has_a_verdict(endpoint: ChatEndpoint, tmp_path: Path) -> None:
    words = ("--concurrency", "1,2", "--slo", "latency_p50<60s,tps>1e9", "--junit", tmp_path / "slo.xml")
    said = ran(endpoint, write(tmp_path, conversation("one")), *words, status=3)
    assert (tmp_path / "slo.xml").read_text().count("<testcase") == 4
    assert 'name="concurrency 2: tps&gt;1e9"><failure' in (tmp_path / "slo.xml").read_text()
    assert said.count("does not meet the SLO: latency_p50<60s") == 2


def test_a_dead_endpoint_is_recorded_request_by_request(tmp_path: Path) -> None:
    ran("127.0.0.1:9", write(tmp_path, conversation("one", "two")), "--set", "preflight=false", status=1)
    assert [record["error"]["type"] for record in records_of(tmp_path / "out")] == ["connection_refused"] * 2


def test_a_hanging_endpoint_is_given_up_on(endpoint: ChatEndpoint, tmp_path: Path) -> None:
    ran(endpoint, write(tmp_path, conversation("HANG", "two")), "--request-timeout-seconds", "0.2", status=1)
    assert [record.get("error", {}).get("type") for record in records_of(tmp_path / "out")] == ["timeout", None]


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
    said = refusal("run", write(tmp_path, conversation("one")), *arguments)
    assert all(word in said for word in words), said


def test_pictures_are_refused_where_prompts_are_text(tmp_path: Path) -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}
    file = write(tmp_path, *({"session_id": name, "turns": [{"messages": [picture]}]} for name in "ab"))
    result = refusal("run", file, "--endpoint-type", "completions", "--url", "127.0.0.1:9")
    for line in (1, 2):
        assert f"line {line}: turns.0.messages: a message with a part of type 'image_url'" in result


def test_a_schedule_of_days_is_told_before_it_begins_and_beside_its_figures(endpoint: ChatEndpoint, tmp_path: Path) -> None:
    rows = [{"session_id": f"s{day}", "timestamp": day * 86_400_000, "text": "x"} for day in (0, 2)]
    file = write(tmp_path, *rows)
    words = ("run", file, "--url", endpoint.url, "--model", "m", "--artifact-dir", tmp_path / "out")
    _, output = interrupted(*words, when=lambda: len(endpoint.bodies) > 1)  # the first asks whether all is well
    before, _, after = output.partition("0/2 requests")
    assert "The schedule lasts 2.0 days, by the times of the file: --fixed-schedule-speedup 48 sends" in before
    heading = after.partition("Latency in ms")[0]
    assert "Note: The schedule lasts 2.0 days" in heading
    assert after.count("The schedule lasts") == 1
    assert summary_of(tmp_path / "out")["llmirage"]["notes"][0].startswith("The sch")


def test_a_loop_without_signals_runs_as_others_do(
    endpoint: ChatEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_action, "run_on_best_loop", lambda main: asyncio.run(main()))
    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", asyncio.AbstractEventLoop.add_signal_handler)
    ran(endpoint, write(tmp_path, conversation("one")))  # Windows has no such handlers


def test_a_schedule_is_not_repeated_and_says_how_it_could_be(tmp_path: Path) -> None:
    file = write(tmp_path, {"input_toks": 20, "output_toks": 5, "arrival_time_ns": 0})
    said = refusal("run", file, "--num-conversations", "2", "--url", "127.0.0.1:9")
    assert "has 1 conversation" in said
    assert "--no-fixed-schedule" in said


def test_bodies_sent_as_they_are_are_said_to_ignore_extra_inputs(endpoint: ChatEndpoint, tmp_path: Path) -> None:
    file = tmp_path / "inputs.json"
    body = {"model": "m", "messages": [{"role": "user", "content": "one"}]}
    file.write_text(json.dumps({"data": [{"session_id": "s", "payloads": [body]}]}))
    said = ran(endpoint, file, "--extra-inputs", "seed:4")
    assert endpoint.bodies == [body]
    assert "--extra-inputs do not change them" in said


def forked(folder: Path) -> str:
    """A root that fails on its second turn, and a fork that fails on its first."""

    def turn(text: str, **fields: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}], **fields}

    root = {"session_id": "r", "turns": [turn("r0"), turn("FAIL r1"), turn("r2", forks=["k"])]}
    kid = {"session_id": "k", "turns": [turn("FAIL k0"), turn("k1")]}
    return write(folder, root, kid)


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
    endpoint: ChatEndpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIPERF_DAG_FAIL_FAST", environment)
    said = ran(endpoint, forked(tmp_path), *arguments, status=1)
    assert [body["messages"][-1]["content"] for body in endpoint.bodies] == texts
    assert "forced failure" in said
    assert ("failed, and --fail-fast is set" in said) == bool(arguments or environment)
