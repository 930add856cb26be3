"""The verdict on how clients use their connections, over real ones, and `llmirage verdict`."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from sdks import openai
from served import serving

from llmirage_client.commands.finished_runs import verdict as command

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20, "stream": True}
UNUSED_S = 0.4


@pytest.fixture
def url() -> Iterator[str]:
    with serving("--ttft", "1", "--itl", "1") as url:
        yield url.removesuffix("/v1")


def connections(url: str) -> dict[str, Any]:
    told = httpx.get(f"{url}/llmirage/verdict", params={"unused_s": UNUSED_S}).json()
    rule: dict[str, Any] = next(rule for rule in told["rules"] if rule["rule"] == "connections")
    return rule


def verdict(url: str, *flags: str) -> Result:
    return CliRunner().invoke(command, [url, "--unused-s", str(UNUSED_S), *flags])


def test_streams_that_are_neither_read_nor_closed(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        kept = []  # else httpx closes them
        for _ in range(3):
            response = client.send(client.build_request("POST", "/v1/chat/completions", json=BODY), stream=True)
            kept.append(response.iter_lines())
            next(kept[-1])  # and no more
            time.sleep(2 * UNUSED_S)
        rule = connections(url)
    assert (rule["verdict"], rule["seen"]) == ("fail", 3)
    assert [finding["requests"] for finding in rule["findings"]] == [[1, 2], [2, 3]]
    assert connections(url)["verdict"] == "fail"  # also when they have been closed in the end


def test_a_stream_larger_than_every_buffer_that_is_not_read(url: str) -> None:
    httpx.post(f"{url}/llmirage/faults", json={"kind": "oversized", "extra_bytes": 50_000_000}).raise_for_status()
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY):
        deadline_s = time.monotonic() + 30
        while connections(url)["verdict"] != "fail":
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        [finding] = connections(url)["findings"]
    assert finding["requests"] == [1]
    assert "read nothing for" in finding["why"]


def test_the_official_sdk_leaks_nothing_while_connections_break(url: str) -> None:
    faults = ["status; status=429; retry_after_s=1; times=1", "reset; times=1", "cut; after_tokens=3; times=1"]
    httpx.post(f"{url}/llmirage/faults", json={"faults": faults}).raise_for_status()
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x") as sdk:
        with pytest.raises(openai.APIConnectionError):  # the cut
            list(sdk.chat.completions.create(**BODY))
        for _ in range(3):
            time.sleep(2 * UNUSED_S)
            with sdk.chat.completions.create(**BODY) as chunks:
                next(chunks)
        result = verdict(url, "--json")
    assert result.exit_code == 0, result.stdout
    assert {rule["rule"]: rule["verdict"] for rule in json.loads(result.stdout)["rules"]} == {
        "retry_after": "pass",
        "no_retry": "not seen",
        "back_off": "pass",
        "cut_stream": "pass",
        "connections": "pass",
    }


def test_the_command_tells_what_is_broken_and_by_which_requests(url: str) -> None:
    for _ in range(2):
        httpx.post(f"{url}/v1/chat/completions", json={"model": MODEL})
    result = verdict(url)
    assert result.exit_code == 3
    assert "no_retry: requests 1, 2: 400, and the same request after " in result.stdout
    assert result.stdout.endswith("2 requests judged\n")
    told = verdict(url, "--json")
    assert (told.exit_code, json.loads(told.stdout)["passed"]) == (3, False)
    assert verdict(url, "--since", "2").exit_code == 0


def test_the_command_without_a_server_that_answers(url: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    result = verdict(nobody)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"llmirage verdict: {nobody}: ")
    other = verdict(f"{url}/elsewhere/v1")
    assert (other.exit_code, "404" in other.stderr) == (1, True)
    assert verdict("ftp://x").exit_code == 2
