"""GET /llmirage/journal shows what requests asked, what they got, and how they ended."""

import asyncio
import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from raw_asgi import RawAnswer

from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.telemetry import journal
from llmirage_shared.wire import errors

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello there"}]
PATH = "/llmirage/journal"
TOOL = {"type": "function", "function": {"name": "get_order", "parameters": {"type": "object", "properties": {}}}}


def last(api: Any, **query: Any) -> dict[str, Any]:
    entry: dict[str, Any] = api.request("GET", PATH, params=query).json()["entries"][-1]
    return entry


def test_a_chat_request(make_api: Callable[..., Any]) -> None:
    api = make_api(ttft_ms=5.0, itl_ms=1.0)
    reply = api.chat(messages=MESSAGES, max_tokens=7, model="qwen3-30b-a3b-instruct-2507", headers={})
    entry = last(api)
    assert (entry["method"], entry["path"], entry["status"]) == ("POST", "/v1/chat/completions", 400)
    assert "headers" in entry["error"]
    reply = api.chat(messages=MESSAGES, max_tokens=7, model="qwen3-30b-a3b-instruct-2507").json()
    entry = last(api)
    assert (entry["model"], entry["served"]) == ("qwen3-30b-a3b-instruct-2507", MODEL)
    assert (entry["system"], entry["user"], entry["results"]) == ("Be short.", "Hello there", [])
    assert (entry["status"], entry["outcome"], entry["error"], entry["stream"]) == (200, "complete", None, False)
    assert entry["reply"] == reply["choices"][0]["message"]["content"]
    assert entry["finish_reason"] == "length"
    assert (entry["prompt_tokens"], entry["output_tokens"]) == (reply["usage"]["prompt_tokens"], 7)
    assert entry["duration_s"] == pytest.approx(entry["ttft_ms"] / 1000 + 0.006)
    assert entry["elapsed_s"] > 0
    assert (entry["rule"], entry["fault"]) == (None, None)


@pytest.mark.parametrize("stream", [False, True])
def test_calls_and_their_results(make_api: Callable[..., Any], stream: bool) -> None:
    tool = {"type": "function", "function": {"name": "get_order", "parameters": {"type": "object", "properties": {}}}}
    call = {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Where is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "shipped"},
    ]
    api = make_api()
    api.chat(messages=messages, tools=[tool], tool_choice="required", stream=stream)
    entry = last(api)
    assert entry["results"] == [{"name": "get_order", "content": "shipped"}]
    assert entry["calls"] == [{"name": "get_order", "arguments": "{}"}]
    assert (entry["finish_reason"], entry["stream"], entry["outcome"]) == ("tool_calls", stream, "complete")


BODIES = {
    "/v1/completions": {"model": MODEL, "prompt": "Hello there", "max_tokens": 3},
    "/v1/responses": {"model": MODEL, "input": "Hello there", "max_output_tokens": 16},
    "/v1/messages": {"model": MODEL, "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 3},
    "/generate": {"text": "Hello there", "sampling_params": {"max_new_tokens": 3}},
}


@pytest.mark.parametrize("path", BODIES)
def test_every_api_that_generates(make_api: Callable[..., Any], path: str) -> None:
    api = make_api()
    api.post(path, BODIES[path])
    entry = last(api, path=path)
    assert (entry["model"], entry["user"], entry["outcome"]) == (MODEL, "Hello there", "complete")
    assert entry["output_tokens"] >= 3
    assert entry["reply"]


def test_a_response_in_the_background_is_told_of_when_it_is_done(make_api: Callable[..., Any]) -> None:
    api = make_api()
    api.post("/v1/responses", BODIES["/v1/responses"] | {"background": True})
    api.request("GET", "/health")
    assert last(api, path="responses")["output_tokens"] == 16


def test_embeddings_have_no_output(make_api: Callable[..., Any]) -> None:
    api = make_api()
    api.post("/v1/embeddings", {"model": MODEL, "input": "Hello there"})
    entry = last(api)
    assert (entry["model"], entry["output_tokens"], entry["finish_reason"]) == (MODEL, 0, None)
    assert entry["prompt_tokens"] > 0


def test_refusals_and_unknown_paths_are_there_probes_are_not(make_api: Callable[..., Any]) -> None:
    api = make_api(api_key=("sk-1",), accept_models="served")
    headers = {"Authorization": "Bearer sk-1"}
    api.request("GET", "/health")
    api.chat()
    api.request("POST", "/v1/chat/completions", json={"model": "x", "messages": MESSAGES}, headers=headers)
    api.request("GET", "/v1/nothing", headers=headers)
    assert api.request("GET", PATH).status_code == 401
    shown = api.request("GET", PATH, headers=headers)
    assert "sk-1" not in shown.text
    found = [(entry["path"], entry["status"], entry["model"]) for entry in shown.json()["entries"]]
    assert found == [("/v1/chat/completions", 401, MODEL), ("/v1/chat/completions", 404, "x"), ("/v1/nothing", 404, None)]


def test_clearing_and_reading_on(make_api: Callable[..., Any]) -> None:
    api = make_api()
    for text in ("one", "two", "three"):
        api.chat(text, max_tokens=1)
    assert [entry["user"] for entry in api.request("GET", PATH, params={"since": 1, "limit": 1}).json()["entries"]] == [
        "two"
    ]
    assert api.request("DELETE", PATH).json() == {"last": 3}
    api.chat("four", max_tokens=1)
    found = api.request("GET", PATH, params={"since": 3}).json()
    assert ([entry["user"] for entry in found["entries"]], found["last"]) == (["four"], 4)


@pytest.mark.parametrize("query", ["limit=-1", "limit=1001", "since=x", "since=" + "9" * 30, "modle=a"])
def test_a_wrong_parameter_is_refused(api: Any, query: str) -> None:
    refused = api.request("GET", f"{PATH}?{query}")
    assert refused.status_code == 400
    assert query.partition("=")[0] in refused.json()["error"]["message"]


class Client(RawAnswer):
    """A streaming request through raw ASGI, in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.app = create_app(ClusterConfig(ttft_ms=100.0, itl_ms=100.0))

    async def run(self) -> dict[str, Any]:
        body = {"model": MODEL, "prompt": "Hello", "max_tokens": 50, "stream": True}
        await self.ask(self.app, "/v1/completions", body)
        return self.app.journal.entries[-1].shown()


async def test_a_client_that_leaves() -> None:
    client = Client()
    asyncio.get_running_loop().call_later(0.45, client.left.set)
    entry = await client.run()
    assert (entry["outcome"], entry["output_tokens"], entry["finish_reason"]) == ("client_left", 4, None)
    assert entry["reply"]
    assert entry["ttft_ms"] == pytest.approx(100)
    assert entry["duration_s"] is None
    assert entry["elapsed_s"] == pytest.approx(0.45)


async def test_a_stream_that_the_server_ends() -> None:
    client = Client()
    asyncio.get_running_loop().call_later(0.45, client.app.service.responses.pause, errors.shutting_down)
    entry = await client.run()
    assert (entry["outcome"], entry["status"], entry["output_tokens"]) == ("failed", 200, 4)


async def test_a_running_request_is_shown() -> None:
    client = Client()
    task = asyncio.ensure_future(client.run())
    await asyncio.sleep(0.2)
    shown = client.app.journal.entries[-1].shown()
    client.left.set()
    await task
    entry = shown
    assert (entry["outcome"], entry["status"], entry["user"]) == ("running", None, "Hello")


def whole(api: Any, number: int | str) -> Any:
    return api.request("GET", f"{PATH}/{number}")


def test_an_entry_has_the_whole_request_and_reply_and_a_command_that_repeats_it(make_api: Callable[..., Any]) -> None:
    api = make_api()
    long = "Tell me about it's rain. " * 400
    body = {"model": MODEL, "messages": [{"role": "user", "content": long}], "temperature": 0.5, "max_tokens": 900}
    body |= {"tools": [TOOL], "response_format": {"type": "text"}, "tool_choice": "none", "ignore_eos": True}
    headers = {"authorization": "Bearer sk-secret", "x-tenant": "a b"}
    reply = api.request("POST", "/v1/chat/completions", json=body, headers=headers).json()
    entry = whole(api, last(api)["number"]).json()
    assert entry["request"] == body
    assert entry["user"] != long  # which is cut in lists
    assert [part["text"] for part in entry["parts"]] == [reply["choices"][0]["message"]["content"]]
    assert entry["source"] == "generated text"
    assert entry["headers"]["authorization"] == "[redacted]"
    assert "sk-secret" not in json.dumps(entry)
    words = shlex.split(entry["curl"])
    assert words[0] == "curl"
    assert words[1].endswith("/v1/chat/completions")
    assert "authorization: Bearer $API_KEY" in words
    assert "x-tenant: a b" in words
    assert json.loads(words[words.index("--data-raw") + 1]) == body


def test_calls_and_embedding_inputs_are_in_it(make_api: Callable[..., Any]) -> None:
    api = make_api()
    api.chat(messages=MESSAGES, tools=[TOOL], tool_choice="required")
    entry = whole(api, last(api)["number"]).json()
    assert [(part["kind"], part["name"]) for part in entry["parts"]] == [("function_call", "get_order")]
    assert entry["source"] == "tool rule"
    api.post("/v1/embeddings", {"model": "bge-m3", "input": ["one", "two"]})
    entry = whole(api, last(api)["number"]).json()
    assert entry["request"]["input"] == ["one", "two"]
    assert entry["user"] == "one"
    assert (entry["parts"], entry["source"]) == (None, None)


@pytest.mark.parametrize("number", ["0", "99", "x", "9" * 30, "-1"])
def test_an_entry_that_is_not_there_is_a_404(make_api: Callable[..., Any], number: str) -> None:
    assert whole(make_api(), number).status_code == 404


def test_bodies_and_replies_have_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch, make_api: Callable[..., Any]) -> None:
    monkeypatch.setattr(journal, "MOST_HELD_BYTES", 8_000)
    api = make_api()
    for size in (1_500, 1_500, 1_500, 1_500, 1_500, 3_000):
        api.chat(messages=[{"role": "user", "content": "x" * size}], max_tokens=1)
    entries = api.request("GET", PATH).json()["entries"]
    shown = [whole(api, entry["number"]).json() for entry in entries]
    assert [entry["request"] is None for entry in shown] == [True, False, False, False, False, True]
    assert (shown[0]["curl"], shown[0]["parts"]) == (None, None)
    assert shown[0]["user"]  # the list keeps its texts
