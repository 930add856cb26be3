"""llmirage.Server as its users see it: in process and on a port, sync and async, httpx and httpx2."""

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import re
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from sdks import openai

import llmirage

httpx2 = pytest.importorskip("httpx2")

HELLO = [{"role": "user", "content": "Hello"}]
BODY = {"model": "m", "messages": HELLO, "max_tokens": 20}


def fast(**settings: Any) -> llmirage.Server:
    return llmirage.Server(virtual_time=True, **settings)


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_clients_of_both_libraries_ask_in_process(library: Any) -> None:
    async def ask() -> Any:
        async with library.AsyncClient(transport=server.async_transport, base_url=server.base_url) as client:
            return (await client.post("/chat/completions", json=BODY)).json()

    with fast() as server:
        with library.Client(transport=server.transport, base_url=server.base_url) as client:
            sync = client.post("/chat/completions", json=BODY).json()
        told = anyio.run(ask)
    assert told["choices"][0]["message"] == sync["choices"][0]["message"]
    assert sync["usage"]["completion_tokens"] == 20


def test_ten_minutes_of_the_cluster_take_a_moment() -> None:
    began_s = time.monotonic()
    with fast(ttft=1000, itl=1000, exact_length=True) as server:
        reply = server.openai(timeout=3600).chat.completions.create(model="m", messages=HELLO, max_tokens=600)
        [request] = server.requests
        assert server.now_s == pytest.approx(600, abs=5)
    assert reply.usage.completion_tokens == 600
    assert request.ttft_ms == pytest.approx(1000)
    assert request.duration_s == pytest.approx(600.0)
    assert request.elapsed_s == pytest.approx(600.0, abs=5)
    assert time.monotonic() - began_s < 20


def test_requests_that_are_sent_together_are_served_together() -> None:
    with fast(ttft=1000, itl=100) as server:
        client = server.openai()

        def ask(number: int) -> None:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": str(number)}], max_tokens=100)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(8)))
        assert server.now_s < 44  # half of what they take one after the other: 8 times 10.9 s
        assert len(server.requests) == 8


def test_a_port_is_open_for_as_long_as_the_server() -> None:
    with llmirage.Server(port=0, ttft=0, itl=0) as server:
        url = server.base_url
        assert re.fullmatch(r"http://localhost:\d+/v1", url)
        assert httpx.post(f"{url}/chat/completions", json=BODY).status_code == 200
        server.expect(1, status=200, path="/v1/chat/completions")
        assert server.openai().models.list().data
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/models")


def test_starting_a_started_server_opens_no_second_port() -> None:
    with llmirage.Server(port=0) as server:
        url, threads = server.url, threading.active_count()
        assert server.start().url == url
        assert threading.active_count() == threads


def test_a_server_that_was_asked_before_its_start_says_so() -> None:
    server = llmirage.Server(port=0)
    try:
        assert server.openai().models.list().data
        with pytest.raises(RuntimeError, match="it was asked before: start it before its first request"):
            server.start()
    finally:
        server.close()


def test_a_port_in_virtual_time_waits_for_nothing() -> None:
    with fast(port=0, ttft=60_000, itl=1000) as server:
        began_s = time.monotonic()
        reply = httpx.post(f"{server.base_url}/chat/completions", json=BODY, timeout=30).json()
        assert reply["usage"]["completion_tokens"] == 20
        assert time.monotonic() - began_s < 10
        [request] = server.requests
        assert request.ttft_ms == pytest.approx(60_000)


def test_no_time_is_skipped_while_a_request_comes() -> None:
    """Its deadline is the client's, who knows nothing of virtual time."""
    content = json.dumps(BODY).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    with fast(port=0, ttft=600_000) as server, contextlib.ExitStack() as opened:
        httpx.post(f"{server.base_url}/chat/completions", json=BODY, timeout=30)  # the next is planned without a wait
        address = "127.0.0.1", int(server.url.rpartition(":")[2])
        slow, other = (opened.enter_context(socket.create_connection(address, timeout=10)) for _ in range(2))
        slow.sendall(head)
        other.sendall(head + content)
        time.sleep(0.1)
        slow.sendall(content)
        assert [each.recv(12) for each in (slow, other)] == [b"HTTP/1.1 200"] * 2


def test_a_port_in_use_is_an_error_of_the_start() -> None:
    with llmirage.Server(port=0) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1 port {port}"):
            llmirage.Server(port=port).start()


def test_no_thread_socket_or_task_stays() -> None:
    def ask() -> None:
        with fast(port=0) as server:
            server.openai().chat.completions.create(model="m", messages=HELLO, max_tokens=5)
            with httpx.Client() as client:
                assert client.post(f"{server.base_url}/chat/completions", json=BODY).status_code == 200
        with llmirage.Server(speed="max") as server:
            server.openai().chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 5000}])

    ask()
    gc.collect()
    files, threads = open_files(), threading.active_count()
    for _ in range(3):
        ask()
    gc.collect()
    for thread in threading.enumerate()[threads:]:  # those of texts finish what they have begun
        thread.join(5.0)
    assert threading.active_count() <= threads
    assert open_files() <= files


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_two_servers_of_different_speeds_do_not_disturb_each_other() -> None:
    both_are_there = threading.Barrier(2, timeout=60)

    def answered(speed: float, itl_ms: float) -> Any:
        with llmirage.Server(ttft=100, itl=itl_ms, speed=speed) as server:
            both_are_there.wait()
            server.openai().chat.completions.create(model="m", messages=HELLO, max_tokens=26)
            [request] = server.requests
            assert request.duration_s - request.ttft_ms / 1000 == pytest.approx(25 * itl_ms / 1000)
            assert request.elapsed_s >= request.duration_s / speed  # no token leaves before its time
            return request

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        _, quick = pool.map(answered, (1, 200), (20, 2400))
    assert quick.elapsed_s < quick.duration_s  # 0.3 s for a minute, on a machine of whatever load


def test_a_script_and_what_was_asked() -> None:
    with fast(script=[{"when": {"user": "weather"}, "reply": "It is sunny."}]) as server:
        client = server.openai()
        weather = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What weather?"}]
        reply = client.chat.completions.create(model="gpt-4o", messages=weather, temperature=0.5)
        assert reply.choices[0].message.content == "It is sunny."
        server.script([{"when": {"user": "weather"}, "reply": "It rains."}])
        reply = client.chat.completions.create(model="gpt-4o", messages=weather)
        assert reply.choices[0].message.content == "It rains."
        first, _ = server.expect(2, model="gpt-4o", user="weather", system="Be brief", status=200)
        assert first.body["temperature"] == 0.5
        assert first.messages == weather
        assert first.reply == "It is sunny."
        server.expect(1, reply=re.compile("r.ins"), prompt_tokens=lambda n: n > 5)
        server.reset()
        assert not server.requests
        assert "sunny" not in client.chat.completions.create(model="m", messages=weather).choices[0].message.content


def test_an_expectation_that_is_not_met_shows_what_differs() -> None:
    with fast(script=[{"reply": "Yes."}]) as server:
        with pytest.raises(llmirage.ExpectationError, match="the server got no request"):
            server.expect(user="anything")
        server.openai().chat.completions.create(model="gpt-4o", messages=HELLO)
        with pytest.raises(AssertionError) as raised:
            server.expect(2, model="gpt-5", user="Hello")
        assert str(raised.value).splitlines() == [
            "expected 2 requests with model='gpt-5', user='Hello'; found 0 among 1",
            "nearest: request 1. POST /v1/chat/completions gpt-4o Hello -> 200 Yes.",
            "  model",
            "    expected: 'gpt-5'",
            "    got:      'gpt-4o'",
        ]
        frames = [Path(frame.path).name for frame in raised.traceback]
        assert frames == [Path(__file__).name, "_server.py"]
        assert raised.traceback[-1].ishidden(raised)
        with pytest.raises(llmirage.ConfigError, match=r"usr: a request has no such field .did you mean 'user'"):
            server.expect(usr="Hello")


def test_the_nearest_request_is_of_the_same_path_then_by_what_differs() -> None:
    with fast(script=[{"reply": "Yes."}]) as server:
        client = server.openai()
        for text in ("Where is order 42?", "How is the weather in Rome?", "Tell me a joke."):
            client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": text}])
        client.embeddings.create(model="weather-model", input="weather in Paris")
        with pytest.raises(llmirage.ExpectationError) as raised:
            server.expect(model="weather-model", path="/v1/chat", user="the weather in Paris")
        lines = str(raised.value).splitlines()
        assert lines[1].startswith("nearest: request 2. POST /v1/chat/completions")
        assert lines[2::3][:2] == ["  model", "  user"]
        assert lines[6] == "    expected: a text with 'the weather in Paris'"
        others = lines.index("other requests, nearest first:")
        assert lines[others + 3].startswith("  4. POST /v1/embeddings")
        assert lines[others + 3].endswith("(differs in path, user)")
        with pytest.raises(llmirage.ExpectationError) as raised:
            server.expect(1, user=re.compile("order|weather"), status=200)
        found = [line[:4] for line in str(raised.value).split("found:")[1].splitlines() if line.endswith("Yes.")]
        assert found == ["  1.", "  2."]


def test_faults_and_the_verdict_on_a_client_that_retries() -> None:
    with fast() as server:
        fault = server.fault("status", status=429, retry_after_s=30, times=1)
        with httpx.Client(transport=server.transport, base_url=server.base_url) as client:
            assert [client.post("/chat/completions", json=BODY).status_code for _ in range(2)] == [429, 200]
        assert fault.happened == 1
        verdict = server.verdict()
        assert not verdict.passed
        assert "429 with Retry-After 30 s" in str(verdict)
        fault.remove()


def test_a_client_whose_sleep_advances_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with fast(faults=["status; status=429; retry_after_s=30; times=2"]) as server:
        monkeypatch.setattr(time, "sleep", server.advance)
        server.openai().chat.completions.create(model="m", messages=HELLO)
        assert server.verdict().passed
        assert [request.status for request in server.requests] == [429, 429, 200]
        arrivals_s = [request.arrived_s for request in server.requests]
        assert [later - earlier for earlier, later in pairwise(arrivals_s)] == pytest.approx([30, 30], abs=1)
        assert server.now_s >= 60


def test_what_happens_while_time_is_advanced() -> None:
    with fast(rate_limit=1) as server:
        client = server.openai(max_retries=0)
        client.models.list()
        client.chat.completions.create(model="m", messages=HELLO, max_tokens=1)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="m", messages=HELLO, max_tokens=1)
        server.advance(60)
        client.chat.completions.create(model="m", messages=HELLO, max_tokens=1)


def test_read_timeouts_count_on_the_clock_of_the_server() -> None:
    with fast(faults=["stall; after_tokens=2; for_s=60"]) as server:
        stream = server.openai(timeout=10, max_retries=0).chat.completions.create(model="m", messages=HELLO, stream=True)
        with pytest.raises(openai.APITimeoutError):
            list(stream)
        [request] = server.requests
        assert request.outcome == "client_left"


def test_a_stream_that_the_client_leaves_ends_there() -> None:
    with fast(ttft=10, itl=10) as server:
        stream = server.openai().chat.completions.create(model="m", messages=HELLO, stream=True, max_tokens=1000)
        for _ in range(5):
            next(stream)
        stream.close()
        [request] = server.requests
        assert request.outcome == "client_left"
        assert request.output_tokens < 10


def test_metrics_by_their_names() -> None:
    with fast() as server:
        server.openai().chat.completions.create(model="m", messages=HELLO, max_tokens=7)
        metrics = server.metrics()
        assert sum(value for name, value in metrics.items() if name.startswith("vllm:generation_tokens_total")) == 7


def test_a_loop_of_virtual_time_is_exact() -> None:
    async def ask() -> tuple[float, float]:
        with llmirage.Server(ttft=100, itl=10, exact_length=True) as server:
            client = server.async_openai()
            await asyncio.gather(
                *[client.chat.completions.create(model="m", messages=HELLO, max_tokens=91) for _ in range(20)]
            )
            await asyncio.sleep(3600)
            assert {request.ttft_ms for request in server.requests} == {100}
            server.expect(20, duration_s=1.0)
            await client.close()
            return server.now_s, asyncio.get_running_loop().time()

    assert llmirage.run_in_virtual_time(ask()) == (3601.0, 3601.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gpus": "H100"}, "gpus: there is no such setting .did you mean 'gpu'"),
        ({"gpu": "H1000"}, "H1000"),
        ({"ttft": "soon"}, "ttft must be a number, not 'soon'"),
        ({"instances": 0}, "instances must be at least 1"),
        ({"speed": -1}, "speed must be above 0, or max, not -1"),
        ({"port": 70_000}, "port must be at least 0 and at most 65,535"),
        ({"virtual_time": True, "speed": 2}, "speed: in virtual time nothing waits"),
        ({"script": [{"replies": "x"}]}, "replies"),
        ({"faults": [{"kind": "statu"}]}, "there is no fault 'statu' .did you mean 'status'"),
        ({"cluster": "bundled:nothing"}, "no cluster file 'nothing' is bundled"),
    ],
)
def test_a_mistake_names_its_field(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(llmirage.ConfigError, match=said):
        llmirage.Server(**settings)


def test_a_closed_server_says_so() -> None:
    server = fast()
    client = server.openai(max_retries=0)
    server.close()
    server.close()
    with pytest.raises(openai.APIConnectionError):
        client.models.list()
    with pytest.raises(llmirage.ConfigError, match="needs virtual time"):
        llmirage.Server().advance(1)


def test_anthropic_and_a_key() -> None:
    anthropic = pytest.importorskip("anthropic")
    with fast(api_key=["secret"]) as server:
        message = server.anthropic().messages.create(model="claude", max_tokens=9, messages=HELLO)
        assert message.usage.output_tokens == 9
        with pytest.raises(anthropic.AuthenticationError):
            server.anthropic(api_key="other").messages.create(model="claude", max_tokens=9, messages=HELLO)


def test_nothing_is_printed() -> None:
    code = (
        "import llmirage, httpx\n"
        "with llmirage.Server(virtual_time=True) as server:\n"
        "    with httpx.Client(transport=server.transport, base_url=server.base_url) as client:\n"
        f"        assert client.post('/chat/completions', json={BODY!r}).status_code == 200\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("", "")
