"""`llmirage run` where the environment names a proxy: what is sent there, what the report says, and what is never told."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invoked import records_of
from proxies import HttpProxy, SocksProxy, http2_server
from warm import llmirage

from llmirage_client.commands.demo import run_demo
from llmirage_client.commands.run import run
from llmirage_client.operations.run import endpoint_of
from llmirage_client.settings.run import RunSettings
from llmirage_shared.settings import instance_of

MakeServer = Callable[..., Any]
REPLY = {"choices": [{"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}], "usage": {}}
LOAD = ("run", "--isl", "20", "--osl", "4", "--model", "m", "--no-streaming", "--artifact-dir", "out")


async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
    listed = request.head.startswith("GET ")
    body = json.dumps({"data": [{"id": "m"}]} if listed else REPLY).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


async def started(folder: Path, *arguments: str, **variables: str) -> asyncio.subprocess.Process:
    streams = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.STDOUT}
    environment = {**os.environ, "COLUMNS": "300", **variables}
    return await asyncio.create_subprocess_exec(*llmirage(), *arguments, cwd=folder, env=environment, **streams)


async def ran(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Exit status, and all that was printed."""
    process = await started(folder, *arguments, **variables)
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, said.decode()


def written(folder: Path) -> str:
    return "".join(path.read_text("utf-8", "replace") for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("workers", [(), ("--executor", "process", "--workers", "2")], ids=["alone", "workers"])
async def test_a_run_goes_through_the_proxy_of_the_environment_and_says_so(
    raw_server: MakeServer, tmp_path: Path, workers: tuple[str, ...]
) -> None:
    async with raw_server(answer) as server, HttpProxy(credentials="ann:s3cret") as proxy:
        address = f"http://ann:s3cret@127.0.0.1:{proxy.port}"
        load = (*LOAD, "--requests", "6", "--concurrency", "2", "--url", server.url, *workers)
        status, said = await ran(tmp_path, *load, HTTP_PROXY=address)
        assert status == 0, said
        assert proxy.lines.count(f"POST {server.url}/v1/chat/completions") == 6
        assert proxy.lines[0] == f"GET {server.url}/v1/models"
        shown = f"through httpx's own transport (proxy http://127.0.0.1:{proxy.port}): about "
        assert said.count(shown) == 1
        files = written(tmp_path)
        assert shown in files
        assert "s3cret" not in said + files


async def test_no_proxy_leaves_a_run_alone(raw_server: MakeServer, tmp_path: Path) -> None:
    async with raw_server(answer) as server, HttpProxy() as proxy:
        around = {"http_proxy": f"http://127.0.0.1:{proxy.port}", "NO_PROXY": "10.0.0.0/8,127.0.0.0/8"}
        status, said = await ran(tmp_path, *LOAD, "--requests", "2", "--url", server.url, **around)
        assert (status, proxy.lines) == (0, [])
        assert "transport" not in said


@pytest.mark.parametrize(
    ("proxy", "message"),
    [
        (
            "http://ann:s3cret@127.0.0.1:1",
            "nothing listens at 127.0.0.1:1 (the proxy) (--set preflight=false skips this request)",
        ),
        ("ftp://ann:s3cret@127.0.0.1:1", "HTTP_PROXY is not the URL of a proxy"),
    ],
)
def test_a_proxy_that_is_none_ends_the_run_with_one_line(tmp_path: Path, proxy: str, message: str) -> None:
    status, said = asyncio.run(ran(tmp_path, *LOAD, "--url", "http://far.example", HTTP_PROXY=proxy))
    assert status == 2
    assert message in said
    assert "s3cret" not in said
    assert len(said.strip().splitlines()) <= 4, said  # with the two of the usage
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("way", ["http", "socks5", "http2"])
async def test_ctrl_c_keeps_the_records_of_what_finished(raw_server: MakeServer, tmp_path: Path, way: str) -> None:
    asked = 0

    async def hang_later(request: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += request.head.startswith("POST ")
        if asked <= 4:
            await answer(request, writer)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        if scope["type"] == "lifespan":
            return
        while (await receive()).get("more_body"):
            pass
        asked += scope["method"] == "POST"
        if asked > 4:
            await asyncio.sleep(30)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps(REPLY).encode()})

    async with raw_server(hang_later) as server, HttpProxy() as http, SocksProxy() as socks, http2_server(app) as port:
        addresses = {"http": f"http://127.0.0.1:{http.port}", "socks5": f"socks5://127.0.0.1:{socks.port}"}
        url = f"http://127.0.0.1:{port}" if way == "http2" else server.url
        more = {} if way == "http2" else {"ALL_PROXY": addresses[way]}
        arguments = (*LOAD, "--requests", "8", "--concurrency", "2", "--set", "preflight=false", "--url", url)
        http2 = ("--set", "http2=true") if way == "http2" else ()
        process = await started(tmp_path, *arguments, *http2, **more)
        async with asyncio.timeout(30):
            while asked < 6:
                await asyncio.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 130, said.decode()
        lines = records_of(tmp_path / "out")
        assert sum(line.get("error") is None for line in lines) == 4
        assert len(lines) == 6


def test_a_key_of_the_environment_does_not_go_to_a_proxy_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "mine")

    def key(url: str) -> str | None:
        with run.make_context("run", ["file", "--url", url]) as context:
            return endpoint_of(instance_of(RunSettings, context.params)).api_key

    assert key("localhost:1") == "mine"
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:1")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:1")
    assert key("localhost:1") is None
    assert key("https://far") == "mine"


def test_the_demo_meets_its_server_behind_a_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    run_demo(None, 100, 1, json=True)
