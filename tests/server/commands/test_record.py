"""`llmirage record` as a process: it streams without holding back, and keeps what came before it was stopped."""

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from json_endpoint import JsonEndpoint, JsonHandler
from recorded import recordings_in
from warm import llmirage

from llmirage_server.commands.record import record

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
FIRST, SECOND = b"data: 1\n\n", b"data: 2\n\n"


class SlowUpstream(JsonHandler):
    """Sends an event, and the second one when it may."""

    protocol_version = "HTTP/1.1"
    may_go_on = threading.Event()

    def do_POST(self) -> None:
        self.body()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(FIRST), FIRST))
        self.wfile.flush()
        self.may_go_on.wait(10)
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(SECOND), SECOND))

    @classmethod
    @contextmanager
    def serving(cls) -> Iterator[str]:
        cls.may_go_on.clear()
        with JsonEndpoint(cls).started() as endpoint:
            try:
                yield f"http://{endpoint.url}"
            finally:
                cls.may_go_on.set()


@contextmanager
def recording(upstream: str, folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The proxy's process, and its URL with /v1."""
    command = [*llmirage(), "record", "--upstream", upstream, "--out", str(folder), "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"http://localhost\S+/v1", line):
                yield process, found.group()
                break
        else:
            pytest.fail(process.communicate()[1])
    finally:
        process.kill()
        process.communicate()


def test_events_pass_as_they_come(tmp_path: Path) -> None:
    work = tmp_path / "work.jsonl"
    flags = "--record-workload", str(work)
    with SlowUpstream.serving() as upstream, recording(upstream, tmp_path, *flags) as (process, url):
        with httpx.stream("POST", f"{url}/chat/completions", json=BODY, timeout=10) as response:
            parts = response.iter_raw()
            assert next(parts) == FIRST  # the second is still to come
            SlowUpstream.may_go_on.set()
            assert b"".join(parts) == SECOND
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (0, "")
    [kept] = recordings_in(tmp_path)
    assert (kept.data, kept.ended, kept.body) == (FIRST + SECOND, None, BODY)
    assert json.loads(work.read_text()) == {"session_id": "session-1", "timestamp": 0.0, "messages": BODY["messages"]}
    assert f"200 /v1/chat/completions {kept.chunks[-1].at_ms / 1000:.2f} s: {kept.name}.yaml" in out


def test_what_came_before_the_end_of_the_proxy_is_kept(tmp_path: Path) -> None:
    with SlowUpstream.serving() as upstream, recording(upstream, tmp_path) as (process, url):
        with httpx.stream("POST", f"{url}/chat/completions", json=BODY, timeout=10) as response:
            parts = response.iter_raw()
            assert next(parts) == FIRST
            process.send_signal(signal.SIGINT)
            with pytest.raises(httpx.RemoteProtocolError):
                list(parts)
        _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (0, "")
    [kept] = recordings_in(tmp_path)
    assert (kept.data, kept.ended) == (FIRST, "the recording was stopped")


def test_what_came_before_the_client_left_is_kept(tmp_path: Path) -> None:
    with SlowUpstream.serving() as upstream, recording(upstream, tmp_path) as (_, url):
        with httpx.stream("POST", f"{url}/chat/completions", json=BODY, timeout=10) as response:
            assert next(response.iter_raw()) == FIRST
        deadline_s = time.monotonic() + 10
        while not (kept := recordings_in(tmp_path)) and time.monotonic() < deadline_s:
            time.sleep(0.02)
    assert [(found.data, found.ended) for found in kept] == [(FIRST, "the client left")]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--out", "x"], "--upstream is missing"),
        (["--upstream", "https://x.test"], "--out is missing"),
        (["--upstream", "x.test", "--out", "x"], "must be an address such as"),
        (["--upstream", "https://x.test", "--out", __file__], "--out"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(record, arguments)
    assert result.exit_code == 2
    assert problem in result.output


def test_an_unreachable_upstream_is_told_to_the_client(tmp_path: Path) -> None:
    with recording("http://127.0.0.1:9", tmp_path) as (_, url):
        answer = httpx.post(f"{url}/chat/completions", json=BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")
        anthropic = httpx.post(f"{url}/messages", json=BODY)
        assert (anthropic.status_code, anthropic.json()["type"]) == (502, "error")
    assert not recordings_in(tmp_path)
