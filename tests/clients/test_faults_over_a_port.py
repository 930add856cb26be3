"""Faults of the transport over a real connection: what the kernel, httpx and the SDKs tell of them."""

import json
from collections.abc import Iterator

import httpx
import httpx2
import pytest
from sdks import anthropic, openai
from served import serving

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("--ttft", "1", "--itl", "1", "--set", "allow_fault_header=true") as url:
        yield url


@pytest.fixture(autouse=True)
def _the_server_logs_nothing(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    assert capfd.readouterr().err == ""


def read(url: str, fault: str, stream: bool) -> tuple[bytes, Exception | None]:
    """What came of the body, and what httpx raised."""
    got = b""
    try:
        with httpx.stream(
            "POST", f"{url}/chat/completions", json=CHAT | {"stream": stream}, headers={"X-Llmirage-Fault": fault}
        ) as response:
            for piece in response.iter_raw():
                got += piece
    except httpx.HTTPError as error:
        return got, error
    return got, None


@pytest.mark.parametrize(("fault", "events"), [("reset", 0), ("reset; after_tokens=5", 6)])
def test_a_reset_is_one_for_the_kernel(url: str, fault: str, events: int) -> None:
    got, error = read(url, fault, stream=True)
    assert type(error) is httpx.ReadError
    assert "reset by peer" in str(error)
    assert got.count(b"data: ") == events


def test_a_cut_closes_before_the_end(url: str) -> None:
    got, error = read(url, "cut; after_tokens=5", stream=True)
    assert type(error) is httpx.RemoteProtocolError
    assert "incomplete chunked read" in str(error)
    assert got.count(b"data: ") == 6
    got, error = read(url, "cut; after_bytes=100", stream=False)
    assert type(error) is httpx.RemoteProtocolError
    assert len(got) == 100


def test_a_clean_cut_is_a_complete_body(url: str) -> None:
    got, error = read(url, "cut; after_tokens=5; clean=true", stream=True)
    assert (error, got.count(b"data: ")) == (None, 6)


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_body(url: str, stream: bool) -> None:
    assert read(url, "empty_body", stream) == (b"", None)


def test_a_slow_body_comes_in_pieces(url: str) -> None:
    headers = {"X-Llmirage-Fault": "slow_body; piece_bytes=100; every_s=0.1"}
    with httpx.stream("POST", f"{url}/chat/completions", json=CHAT, headers=headers) as response:
        pieces = list(response.iter_raw())
    assert len(pieces) > 1  # in how many depends on this machine's load
    assert json.loads(b"".join(pieces))["choices"]


def test_the_connection_serves_on_after_a_fault_that_leaves_it_open(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        for fault in ("missing_done", "malformed", "error_event", "status"):
            body = CHAT | {"stream": fault != "status"}
            client.post("/chat/completions", json=body, headers={"X-Llmirage-Fault": fault})
        ports = {entry["client"] for entry in client.get(url.replace("/v1", "/llmirage/journal?limit=4")).json()["entries"]}
    assert len(ports) == 1


@pytest.mark.parametrize("fault", ["reset", "cut; after_tokens=5", "reset; after_tokens=5"])
def test_the_sdks(url: str, fault: str) -> None:
    known = {"api_key": "x", "max_retries": 0, "default_headers": {"X-Llmirage-Fault": fault}}
    with openai.OpenAI(base_url=url, **known) as sdk, pytest.raises(openai.APIConnectionError):  # type: ignore[arg-type]
        list(sdk.chat.completions.create(**CHAT, stream=True))  # type: ignore[call-overload]
    claude = anthropic.Anthropic(base_url=url.removesuffix("/v1"), **known)  # type: ignore[arg-type]
    with claude, pytest.raises((anthropic.APIConnectionError, httpx2.HTTPError)):
        list(claude.messages.create(**CHAT, stream=True))  # type: ignore[call-overload]
