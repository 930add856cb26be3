"""What a target finds out about an endpoint, which URLs it takes, and how it spreads its starts."""

import asyncio

import pytest
from raw_replies import MakeServer, hanging, whole

from llmirage_client.operations.preflight import EndpointInfo, probe
from llmirage_client.settings.endpoint import normalise_url
from llmirage_client.targets.http import HttpTarget, StartGate

MODELS = [
    (b'{"data": [{"id": "a", "owned_by": "llmirage"}, {"id": "b"}]}', EndpointInfo("llmirage", ["a", "b"])),
    (b'{"data": [{"id": "a", "owned_by": "vllm"}]}', EndpointInfo("vllm", ["a"])),
    (b'{"data": [{"id": "a", "owned_by": "someone"}]}', EndpointInfo("other", ["a"])),
    (b'{"data": 3}', EndpointInfo()),
    (b"[]", EndpointInfo()),
]


@pytest.mark.parametrize(("body", "expected"), MODELS)
async def test_probe_tells_the_kind_of_endpoint(raw_server: MakeServer, body: bytes, expected: EndpointInfo) -> None:
    async with raw_server(whole(body)) as server:
        target = HttpTarget(server.url, api_key="k")
        info = await probe(target)
        assert server.requests[0].head.startswith("GET /v1/models ")
        assert server.requests[0].header("authorization") == "Bearer k"
        await target.close()
        assert info == expected


@pytest.mark.parametrize(
    ("reply", "error"), [(whole(b"nope"), "not JSON"), (whole(b"", "404 Not Found"), "404"), (b"", "within")]
)
async def test_probe_never_raises(raw_server: MakeServer, reply: bytes, error: str) -> None:
    async with raw_server(reply or hanging()) as server:
        target = HttpTarget(server.url)
        info = await probe(target, timeout_s=0.05)
        await target.close()
    assert (info.kind, info.models) == ("other", [])
    assert error in (info.error or "")


URLS = [
    ("localhost:8000", "http://localhost:8000/v1"),
    ("http://localhost:8000", "http://localhost:8000/v1"),
    ("http://localhost:8000/", "http://localhost:8000/v1"),
    ("http://localhost:8000/v1", "http://localhost:8000/v1"),
    (" http://localhost:8000/v1/ ", "http://localhost:8000/v1"),
    ("http://localhost:8000/v1/chat/completions", "http://localhost:8000/v1"),
    ("localhost:8000/v1/completions/", "http://localhost:8000/v1"),
    ("HTTPS://api.openai.com", "https://api.openai.com/v1"),
    ("https://host/openai", "https://host/openai/v1"),
    ("https://host/openai/v2", "https://host/openai/v2"),
    ("https://host/v1beta/openai", "https://host/v1beta/openai/v1"),
    ("[::1]:8000", "http://[::1]:8000/v1"),
    ("127.0.0.1", "http://127.0.0.1/v1"),
]


@pytest.mark.parametrize(("given", "root"), URLS)
def test_urls_of_every_common_form_lead_to_the_api_root(given: str, root: str) -> None:
    assert normalise_url(given) == root
    assert normalise_url(root) == root


@pytest.mark.parametrize(
    "given",
    [
        "",
        "  ",
        "http://",
        "ftp://host",
        "unix:///tmp/x.sock",
        "http://host:port",
        "host:99999",
        "host:0",
        "a b:80",
        "http://u:p@host",
        "h?x=1",
        "[::1",
    ],
)
def test_what_is_no_url_is_refused_in_one_sentence(given: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as caught:
        normalise_url(given)
    assert "\n" not in str(caught.value)
    assert "p@" not in str(caught.value)  # no password is repeated


async def test_the_start_gate_lets_few_through_in_one_turn_and_keeps_the_order() -> None:
    gate = StartGate(per_turn=2)
    turn = 0
    passed: list[tuple[int, int]] = []

    async def start(i: int) -> None:
        await gate.enter()
        passed.append((turn, i))

    tasks = [asyncio.create_task(start(i)) for i in range(9)]
    tasks[4].cancel()
    while len(passed) < 8:
        turn += 1
        await asyncio.sleep(0)
        assert turn < 50
    assert [i for _, i in passed] == [0, 1, 2, 3, 5, 6, 7, 8]
    turns = [at for at, _ in passed]
    assert all(turns.count(at) <= 2 for at in turns)
