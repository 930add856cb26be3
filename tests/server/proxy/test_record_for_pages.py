"""Requests that `llmirage record` passes on: paths of its upstream's base, JSON, its own key for no page of others."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmirage_server.commands.record_actions import RecordingProxy
from llmirage_server.proxy.recorder import ExchangeRecorder
from llmirage_server.proxy.upstream import HttpUpstream
from llmirage_server.replies.recordings.store import RecordingWriter

CHAT = b'{"model":"m","messages":[{"role":"user","content":"Hello"}]}'
JSON = {"content-type": "application/json"}


class _Body(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"{}"


class Passed:
    """A proxy before an upstream that notes the requests it gets."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[httpx.Request] = []
        upstream = HttpUpstream("https://api.example/tenant/v1", "sk-own", httpx.MockTransport(self._answer))
        self._app = RecordingProxy(upstream, ExchangeRecorder(RecordingWriter(folder)))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(200, stream=_Body())

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(self._app), base_url="http://localhost:8001"
            ) as client:
                request = client.build_request(method, "/", **options)
                request.url = request.url.copy_with(raw_path=path.encode())
                return await client.send(request)

        return asyncio.run(send())


@pytest.fixture
def passed(tmp_path: Path) -> Passed:
    return Passed(tmp_path / "recordings")


@pytest.mark.parametrize(
    "path", ["/v1/%2e%2e/admin", "/v1/..%2fadmin", "/v1/%252e%252e/admin", "/v1/.%2e/admin", "/v1/..\\admin"]
)
def test_no_path_leads_out_of_the_base(passed: Passed, path: str) -> None:
    refused = passed("GET", path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_path")
    assert not passed.requests


def test_paths_with_dots_in_their_names_are_passed_on(passed: Passed) -> None:
    assert passed("GET", "/v1/models/gpt-4.1..x?a=../b").status_code == 200
    assert str(passed.requests[0].url) == "https://api.example/tenant/v1/models/gpt-4.1..x?a=../b"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_only_json_is_passed_on(passed: Passed, kind: str) -> None:
    assert passed("POST", "/v1/chat/completions", content=CHAT, headers={"content-type": kind}).status_code == 415
    assert not passed.requests


def test_the_own_key_is_for_programs_and_not_for_pages(passed: Passed) -> None:
    passed("POST", "/v1/chat/completions", content=CHAT, headers=JSON)
    assert passed.requests[-1].headers["authorization"] == "Bearer sk-own"
    local = {"origin": "http://localhost:3000", "authorization": "Bearer sk-page"}
    assert passed("POST", "/v1/chat/completions", content=CHAT, headers=JSON | local).status_code == 200
    assert passed.requests[-1].headers["authorization"] == "Bearer sk-page"
    for foreign in ({"origin": "http://evil.example"}, {"host": "evil.example", "user-agent": "Mozilla/5.0"}):
        assert passed("POST", "/v1/chat/completions", content=CHAT, headers=JSON | foreign).status_code == 403
    assert len(passed.requests) == 2
