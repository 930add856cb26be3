"""`llmirage serve --workers 2`: two HTTP processes before one cluster are one server, and outlive each other."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen, run
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from served import comes_to, serving, started

from llmirage_server.cluster.request import Request
from llmirage_server.commands.serve import serve
from llmirage_server.workers.channel import asked, request_of, write, written
from llmirage_server.workers.remote import needs_state

OWN = (sys.executable, "-m", "llmirage")  # its children are the engine and the workers, in this order
TIMES = ("--ttft", "20", "--itl", "5")
MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
CONNECTIONS = 8  # of which the kernel gives each worker some, but for one time in 128
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="several processes need Linux")


def body(text: str, tokens: int = 12, **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
        **more,
    }


def children(process: Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def ended(metrics: str, which: str = "") -> float:
    """Return the number of requests that have ended."""
    lines = [line for line in metrics.splitlines() if line.startswith("vllm:request_success_total") and which in line]
    return sum([float(line.split()[-1]) for line in lines])


@contextmanager
def connections(url: str) -> Iterator[list[httpx.Client]]:
    clients = [httpx.Client(base_url=url, timeout=20) for _ in range(CONNECTIONS)]
    yield clients
    for client in clients:
        client.close()


def chat(client: httpx.Client, sent: dict[str, Any]) -> Any:
    answer = client.post("/v1/chat/completions", json=sent)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(client: httpx.Client, sent: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of the chunks."""
    with client.stream("POST", "/v1/chat/completions", json=sent | {"stream": True}) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                yield line
            elif line.startswith("data: "):
                yield "".join([choice["delta"].get("content") or "" for choice in json.loads(line[6:])["choices"]])


def conversation(url: str) -> tuple[list[Any], list[Any], list[float]]:
    """Return answers of two turns, the second over several connections, and of others; what the journal says; times."""
    system = {"role": "system", "content": "You are terse. " * 40}
    said: list[Any] = []
    with connections(url) as clients:
        first = body("What is the sea?", 16)
        first["messages"].insert(0, system)
        answer = chat(clients[0], first)["choices"][0]["message"]
        turn = [*first["messages"], {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "Why?"}]
        for client in clients:
            found = chat(client, first | {"messages": turn})
            said.append([found["choices"][0]["message"]["content"], found["usage"], found["system_fingerprint"]])
        said += [list(streamed(client, body(f"Tell me of {place}"))) for place, client in enumerate(clients)]
        sent = {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 5, "echo": True, "logprobs": 1}
        said.append(clients[0].post("/v1/completions", json=sent).json()["choices"])
        said.append(clients[1].post("/v1/embeddings", json={"model": MODEL, "input": "sea"}).json())
        said.append(clients[2].post("/v1/chat/completions", json=body("x", max_tokens="y")).json())
        unstored = {"model": MODEL, "input": "Why?", "max_output_tokens": 16, "store": False}
        answers = [client.post("/v1/responses", json=unstored).json() for client in clients]
        said += [(answer["output"][0]["content"], answer["usage"], answer["store"]) for answer in answers]
        kept = [{"type": "text", "text": "You are terse. " * 400, "cache_control": {"type": "ephemeral"}}]
        message = {"model": MODEL, "system": kept, "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 4}
        answers = [client.post("/v1/messages", json=message).json() for client in clients]
        said += [(answer["content"], answer["usage"]) for answer in answers]
        assert [bool(answer["usage"]["cache_read_input_tokens"]) for answer in answers] == [False] + [True] * 7
        entries = clients[3].get("/llmirage/journal").json()["entries"]
    decoding = [(entry["duration_s"] or 0.0) - (entry["ttft_ms"] or 0.0) / 1e3 for entry in entries]
    return said, [(entry["status"], entry["reply"], entry["cached_tokens"]) for entry in entries], decoding


def test_two_workers_say_and_time_what_one_process_does() -> None:
    """A cluster with a model of times, whose prefix cache all workers share; what one worker has said, the other knows."""
    with serving("--speed", "3") as url:
        said, served, decoding = conversation(url.removesuffix("/v1"))
    with serving("--speed", "3", "--workers", "2") as url:
        by_workers = conversation(url.removesuffix("/v1"))
    assert by_workers[:2] == (said, served)
    assert by_workers[2] == pytest.approx(decoding, rel=1e-6)
    assert all(entry[2] > 200 for entry in served[1 : CONNECTIONS + 1])


def test_prompts_are_rendered_and_answered_alike_by_all_workers() -> None:
    with serving("--workers", "2", "--dialect", "vllm", *TIMES) as url, connections(url.removesuffix("/v1")) as clients:
        said = set[str]()
        for client in clients:
            prompt = client.post("/v1/chat/completions/render", json=body("What is the sea?")).json()
            answer = client.post("/inference/v1/generate", json={**prompt, "stream": False}).json()
            counted = client.post("/v1/messages/count_tokens", json=body("What is the sea?")).json()["input_tokens"]
            assert (answer["usage"]["prompt_tokens"], counted) == (len(prompt["token_ids"]),) * 2
            said.add(json.dumps(answer["choices"]))
        assert len(said) == 1
        assert ended(clients[0].get("/metrics").text) == CONNECTIONS


def test_what_is_kept_and_changed_is_one_for_all_connections() -> None:
    with serving("--workers", "2", "--ttft", "5", "--itl", "1") as url, connections(url.removesuffix("/v1")) as clients:
        stored = chat(clients[0], body("Hello", store=True))
        parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
        for client in clients:
            chat(client, body("Hello"))
            assert client.get(f"/v1/chat/completions/{stored['id']}").json()["id"] == stored["id"]
            assert client.post("/v1/responses", json={"model": MODEL, "input": "Hi", "max_output_tokens": 16}).is_success
        chat(clients[0], body("") | {"messages": [{"role": "user", "content": parts}]})
        assert list(streamed(clients[1], body("Hello", store=True)))[-1] == "data: [DONE]"
        assert ended(clients[0].get("/metrics").text) == 2 * CONNECTIONS + 3
        pacing = clients[1].get("/llmirage/pacing").json()
        assert pacing["streams"] == 1
        assert pacing["histograms"]["tokens_late"]["count"] > 12 * CONNECTIONS
        journal = clients[2].get("/llmirage/journal").json()["entries"]
        assert len([entry for entry in journal if entry["method"] == "POST"]) == 2 * CONNECTIONS + 3
        clients[3].put("/llmirage/script", json={"rules": [{"reply": "So it is written."}]})
        assert {chat(client, body("Hello"))["choices"][0]["message"]["content"] for client in clients} == {
            "So it is written."
        }
        clients[4].delete("/llmirage/script")
        assert clients[5].post("/llmirage/faults", json={"kind": "cut", "after_tokens": 2}).is_success
        for client in clients:
            with pytest.raises(httpx.RemoteProtocolError):
                list(streamed(client, body("Hello")))
        clients[5].delete("/llmirage/faults")
        assert clients[6].post("/sleep").is_success
        assert {client.post("/v1/chat/completions", json=body("Hello")).status_code for client in clients} == {503}
        assert clients[7].post("/wake_up").is_success
        assert [len(list(streamed(client, body("Hello")))) for client in clients] == [15] * CONNECTIONS


def test_a_worker_that_is_killed_takes_its_connections_along_and_nothing_else(tmp_path: Path) -> None:
    listed, log = tmp_path / "urls", tmp_path / "log"
    flags = ("--workers", "2", "--fleet", "--instances", "2", *TIMES, "--set", f"fleet_file={listed}")
    with log.open("w") as err, started(*flags, log=err, program=OWN) as (process, url):
        first, second = listed.read_text().split()
        _, worker, _ = children(process)
        with httpx.Client(base_url=first) as hers, httpx.Client(base_url=second) as other:
            lost, kept = streamed(hers, body("Hello", 400)), streamed(other, body("Hello", 400))
            assert (next(lost), next(kept)) == ("", "")  # the roles
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                list(lost)
            assert list(kept)[-1] == "data: [DONE]"
        assert comes_to(first, 200)
        assert len(children(process)) == 3
        assert ended(httpx.get(f"{url}/metrics").text, 'finished_reason="abort"') == 1
        assert chat(httpx.Client(base_url=first), body("Hello"))["usage"]["completion_tokens"] == 12
        httpx.post(f"{url}/llmirage/instances", json={"instance": 0, "action": "crash"})
        assert comes_to(first, 0)
        httpx.post(f"{url}/llmirage/instances", json={"instance": 0, "action": "start"})
        assert comes_to(first, 200)
        os.kill(children(process)[0], signal.SIGKILL)
        assert process.wait(10) == 1
    assert "worker 0 has ended (SIGKILL); another one begins" in log.read_text()
    assert "the engine process has ended (SIGKILL), and the server with it" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_ctrl_c_lets_streams_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("w") as err,
        started("--workers", "2", *TIMES, "--set", "shutdown_timeout_s=20", log=err, program=OWN) as (process, url),
        connections(url) as clients,
    ):
        streams = [streamed(client, body("Hello", 100, store=place < 2)) for place, client in enumerate(clients)]
        for stream in streams:
            next(stream)
        for pid in (process.pid, *children(process)):  # as a terminal does
            os.kill(pid, signal.SIGINT)
        assert [list(stream)[-1] for stream in streams] == ["data: [DONE]"] * CONNECTIONS
        assert process.wait(10) == 0
    assert log.read_text() == ""


def test_a_request_that_is_refused_and_a_stream_that_is_cut_are_told() -> None:
    with started("--workers", "2", "--instances", "1", *TIMES) as (process, url), connections(url) as clients:
        clients[0].post("/llmirage/instances", json={"instance": 0, "action": "crash"})
        for client in clients:
            for stream in (True, False):
                refused = client.post("/v1/chat/completions", json=body("Hi", stream=stream))
                assert (refused.status_code, "No instance" in refused.text) == (503, True)
        clients[0].post("/llmirage/instances", json={"instance": 0, "action": "start"})
        answers = [
            client.send(
                client.build_request("POST", "/v1/chat/completions", json=body("Hi", 9000, stream=True, store=store)),
                stream=True,
            )
            for client, store in zip(clients[:2], (True, False), strict=True)
        ]
        time.sleep(0.2)
        process.terminate()
        for answer in answers:
            assert "server_shutdown" in answer.read().decode()
        assert process.wait(10) == 0


def test_processes_tell_each_other_every_field_of_a_request() -> None:
    if not (names := list(getattr(Request, "__annotations__", ()))):
        pytest.skip("a compiled class does not name its fields")
    kept, arrival = names.index("keeps_kv"), names.index("arrival_s")  # what keeps KV for others is forwarded as a whole
    here, there = Request.of_key(7, b"1234" * 9, 5), Request.of_key(0, b"", 0)
    for place, name in enumerate(names):
        if name not in ("id", "key", "prompt_tokens", "output_tokens"):
            setattr(here, name, place)
    arrived = request_of(asked(here))
    assert [getattr(arrived, name) for name in names[:kept]] == [getattr(here, name) for name in names[:kept]]
    write(there, written(here))
    own = {"produced", "cancelled", "spans"}  # counted by the worker, known to it, only of simulations
    assert {name for name in names[arrival:] if getattr(there, name) != getattr(here, name)} == own


INPUT = [
    {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "1"},
]


@pytest.mark.parametrize(
    ("more", "elsewhere"),
    [
        ({}, False),
        ({"tools": [{"type": "function", "name": "f"}]}, False),
        ({"store": None}, True),
        ({"store": True}, True),
        ({"previous_response_id": "resp_1"}, True),
        ({"conversation": {"id": "conv_1"}}, True),
        ({"background": True}, True),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}, True),
        ({"input": [*INPUT, {"type": "item_reference", "id": "msg_1"}]}, True),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}]}, True),
        ({"instructions": [{"type": "item_reference", "id": "msg_1"}]}, True),
    ],
)
def test_a_response_that_keeps_and_refers_to_nothing_is_answered_by_a_worker(more: dict[str, Any], elsewhere: bool) -> None:
    assert needs_state({"model": MODEL, "input": INPUT, "store": False} | more, responses=True) is elsewhere


RESULT = {"type": "tool_result", "tool_use_id": "a"}
FILE = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
TURN = [
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "tool_use", "id": "a", "name": "f"}]},
    {"role": "user", "content": [RESULT | {"content": [{"type": "text", "text": "A cat."}]}]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "elsewhere"),
    [
        ({"system": [{"type": "text", "text": "Hi"}], "tools": [{"name": "f", "input_schema": {}}]}, False),
        ({"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}, True),
        ({"container": "container_1"}, True),
        ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, True),
        ({"messages": [{"role": "user", "content": [FILE]}]}, True),
        ({"messages": [{"role": "user", "content": [RESULT | {"content": [FILE]}]}]}, True),
    ],
)
def test_a_message_that_refers_to_nothing_is_answered_by_a_worker(more: dict[str, Any], elsewhere: bool) -> None:
    assert needs_state({"model": MODEL, "max_tokens": 4, "messages": TURN} | more) is elsewhere


def test_workers_part_with_everything_loaded() -> None:
    loads = (
        "import sys\n"
        "from llmirage_server.config import ClusterConfig\n"
        "from llmirage_server.workers.remote import HttpWorker\n"
        "HttpWorker(ClusterConfig(), b'').load()\n"
        "loaded = set(sys.modules)\n"
        "import anyio._backends._asyncio, llmirage_shared.wire.schema.engines\n"
        "assert loaded == set(sys.modules)"
    )
    run([sys.executable, "-c", loads], check=True)


def test_other_systems_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    outcome = CliRunner().invoke(serve, ["--port", "0", "--workers", "2"])
    assert (outcome.exit_code, outcome.output) == (
        2,
        "llmirage serve: --workers: several processes need Linux; serve without it\n",
    )


@pytest.mark.parametrize(
    "flags",
    [("--speed", "max"), ("--set", "rate_limit=5"), ("--script", "rules.yaml"), ("--replies", "my:own"), ("--workers", "0")],
)
def test_what_needs_one_process_is_refused(flags: tuple[str, ...]) -> None:
    outcome = CliRunner().invoke(serve, ["--port", "0", "--workers", "2", *flags])
    assert outcome.exit_code == 2
    assert "--workers" in outcome.output
    assert "Traceback" not in outcome.output
