"""Whose API a server speaks: what differs, event by event, and what a load client measures of it."""

import dataclasses
import itertools
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from event_streams import json_events
from raw_asgi import RawAnswer

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.config.cluster import PoolConfig
from llmirage_server.http.dialect import DIALECTS as DIALECTS_BY_NAME
from llmirage_server.http.dialect import Dialect
from llmirage_shared import virtual_time

MODEL = "Qwen/Qwen3-30B-A3B"
DIALECTS = ("openai", "vllm", "sglang", "trtllm")
ENGINES = DIALECTS[1:]
TOOL = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
UNANSWERED = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "user", "content": "Hi"},
]


def choices_of(text: str) -> list[dict[str, Any]]:
    return [event["choices"][0] for event in json_events(text) if event["choices"]]


# --- which dialect ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "owner"),
    [
        ({}, "llmirage"),
        ({"engine": "vllm"}, "vllm"),
        ({"engine": "sglang"}, "sglang"),
        ({"engine": "trtllm"}, "tensorrt_llm"),
        ({"engine": "sglang", "dialect": "openai"}, "llmirage"),
        ({"dialect": "trtllm"}, "tensorrt_llm"),
    ],
)
def test_the_named_engine_decides_unless_a_dialect_is_given(make_api: Callable[..., Any], settings: Any, owner: str) -> None:
    [card] = make_api(**settings).request("GET", "/v1/models").json()["data"]
    assert card["owned_by"] == owner
    assert ("permission" in card) == (owner == "vllm")
    assert ("max_model_len" in card) == (owner != "tensorrt_llm")


def test_a_pool_of_a_cluster_file_names_an_engine_too() -> None:
    pools = ({"name": "a", "engine": "sglang"}, {"name": "b", "engine": "vllm"})
    app = create_app(ClusterConfig(pools=tuple(PoolConfig(**pool) for pool in pools)))
    assert app.service.dialect.name == "sglang"


ROWS = {  # of docs/dialects.md, by the field of Dialect that makes the difference
    "strict": "tool calls without answers, answers without calls",
    "error": "object of an error",
    "event_error": "the same in a stream",
    "chat_ends_with_token": "finish reason of a chat stream",
    "named_tool_finish": "finish reason when `tool_choice` names the tool",
    "owned_by": "`owned_by` in the list of models",
    "card_fields": "other fields there",
    "bare_health": "body of `/health`",
    "reasoning_in_usage": "`usage` of chat and completions",
    "vendor_caching": "cached tokens in `usage`",
    "sglext": "`return_cached_tokens_details`",
    "obfuscation": "`obfuscation` in chunks of chat and deltas of Responses",
}


def test_each_difference_has_its_row_in_the_docs() -> None:
    lines = (Path(__file__).parents[3] / "docs" / "dialects.md").read_text().splitlines()
    table = {
        title: cells
        for title, *cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|")
    }
    assert table[""] == [f"`{name}`" for name in DIALECTS]
    assert set(ROWS) == {field.name for field in dataclasses.fields(Dialect)} - {"name", "vendor"}
    for field, title in ROWS.items():
        values = [getattr(DIALECTS_BY_NAME[name], field) for name in DIALECTS]
        assert title in table, f"docs/dialects.md has no row for Dialect.{field}"
        if not callable(values[0]):
            told = [[cell == other for other in table[title]] for cell in table[title]]
            assert told == [[value == other for other in values] for value in values], field


# --- refusals -----------------------------------------------------------------------------------------------------------


def test_engines_take_histories_whose_tool_calls_have_no_answer(make_api: Callable[..., Any]) -> None:
    body = {"model": MODEL, "messages": UNANSWERED, "made_up": 1}
    for dialect in ENGINES:
        assert make_api(dialect=dialect).post("/v1/chat/completions", body).status_code == 200
    refused = make_api().post("/v1/chat/completions", body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages.[1].role")


def test_engines_take_such_histories_as_messages_too(make_api: Callable[..., Any]) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "call_s:1", "content": "sunny"}
    said: dict[str, Any] = {"role": "user", "content": "Weather?"}
    histories = [
        [said, {"role": "assistant", "content": [use]}, said],
        [said, {"role": "assistant", "content": [use]}],
        [said, {"role": "assistant", "content": "Hm."}, {"role": "user", "content": [result]}],
    ]
    for messages in histories:
        body = {"model": MODEL, "messages": messages, "max_tokens": 9}
        for dialect in ENGINES:
            api = make_api(dialect=dialect)
            assert api.post("/v1/messages", body).status_code == 200
            assert api.post("/v1/messages/count_tokens", body).status_code == 200
        assert make_api().post("/v1/messages", body).status_code == 400


# --- errors -------------------------------------------------------------------------------------------------------------


def test_errors_have_the_form_of_the_engine(make_api: Callable[..., Any]) -> None:
    def found(dialect: str, path: str = "/v1/chat/completions", body: Any = None) -> Any:
        given = {"model": MODEL, "messages": [{"role": "user", "content": 5}]} if body is None else body
        response = make_api(dialect=dialect).post(path, given)
        assert response.status_code in (400, 404)
        return response.json()

    info = {"type": "Bad Request", "param": "messages[0].content", "code": 400}
    assert found("openai")["error"].items() >= {"type": "invalid_request_error", "code": "invalid_type"}.items()
    assert found("vllm")["error"].items() >= info.items()
    assert found("sglang").items() >= {"object": "error", **info}.items()
    assert found("trtllm").items() >= {"object": "error", **info}.items()
    assert found("sglang", "/v1/responses", {"model": MODEL, "input": 5})["error"]["code"] == 400
    assert found("vllm", body={"model": MODEL, "messages": []})["error"]["type"] == "BadRequestError"
    for engine in ENGINES:
        assert found(engine, "/v1/unknown") == {"detail": "Not Found"}
        assert found(engine, "/v1/messages", {"model": MODEL})["type"] == "error"  # Anthropic's own


@pytest.mark.parametrize("dialect", ENGINES)
def test_without_a_key_an_engine_says_one_word(make_api: Callable[..., Any], dialect: str) -> None:
    response = make_api(dialect=dialect, api_key=("secret",)).chat()
    assert (response.status_code, response.json()) == (401, {"error": "Unauthorized"})


# --- events -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("more", [{}, {"logprobs": True}])
def test_the_last_event_of_a_chat(make_api: Callable[..., Any], dialect: str, more: Any) -> None:
    choices = choices_of(make_api(dialect=dialect).chat(max_tokens=5, stream=True, **more).text)
    in_token = dialect in ("vllm", "trtllm")
    assert len(choices) == 1 + 5 + (not in_token)  # the role comes first
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert bool(choices[-1]["delta"].get("content")) is in_token
    plain = make_api(dialect=dialect).chat(max_tokens=5, **more).json()["choices"][0]["message"]["content"]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == plain


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"return_token_ids": True}])
def test_the_last_token_of_a_completion_has_the_finish_reason(make_api: Callable[..., Any], dialect: str, more: Any) -> None:
    api = make_api(dialect=dialect)
    choices = choices_of(api.complete(max_tokens=5, stream=True, **more).text)
    assert [choice["finish_reason"] for choice in choices] == [None] * 4 + ["length"]
    assert "".join(choice["text"] for choice in choices) == api.complete(max_tokens=5).json()["choices"][0]["text"]
    if "return_token_ids" in more:
        assert [len(choice["token_ids"]) for choice in choices] == [1] * 5
    if "logprobs" in more:
        assert [len(choice["logprobs"]["tokens"]) for choice in choices] == [1] * 5


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_called_once(make_api: Callable[..., Any], dialect: str, stream: bool) -> None:
    api = make_api(dialect=dialect)
    text = "Compare the weather: get_weather for Paris, get_weather for London and get_weather for Rome."
    finish = "tool_calls" if dialect == "sglang" else "stop"
    choice = {"type": "function", "function": {"name": "get_weather"}}
    answer = api.chat(text, tools=[{"type": "function", "function": TOOL}], tool_choice=choice, stream=stream)
    if stream:
        choices = choices_of(answer.text)
        calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
        assert ({call["index"] for call in calls}, choices[-1]["finish_reason"]) == ({0}, finish)
        assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"city": "Paris"}
        assert [call["function"]["name"] for call in calls if "name" in call["function"]] == ["get_weather"]
        return
    [whole] = answer.json()["choices"]
    assert ([call["function"]["name"] for call in whole["message"]["tool_calls"]], whole["finish_reason"]) == (
        ["get_weather"],
        finish,
    )
    answered = api.post(
        "/v1/responses",
        {
            "model": MODEL,
            "input": text,
            "tools": [{"type": "function", **TOOL}],
            "tool_choice": {"type": "function", "name": "get_weather"},
        },
    ).json()
    assert [item["type"] for item in answered["output"]] == ["function_call"]
    message = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": text}]}
    tools = [{"name": "get_weather", "input_schema": TOOL["parameters"]}]
    content = api.post(
        "/v1/messages", message | {"tools": tools, "tool_choice": {"type": "tool", "name": "get_weather"}}
    ).json()["content"]
    assert [part["type"] for part in content] == ["tool_use"]


CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize("chat", [False, True])
def test_each_event_of_a_late_stream_has_the_usage_of_its_own_token(api: Any, chat: bool) -> None:
    ask = api.chat if chat else api.complete
    found = [
        event["usage"]["completion_tokens"]
        for event in json_events(ask(max_tokens=4, stream=True, stream_options=CONTINUOUS).text)
    ]
    assert found == ([0, 1, 2, 3, 4, 4, 4] if chat else [1, 2, 3, 4, 4])


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("tools", [False, True])
def test_the_tokens_of_a_speculative_step_are_one_event(path: str, tools: bool) -> None:
    """Four drafts that are all accepted: five tokens a step."""
    draft: dict[str, Any] = {
        "speculative_method": "draft_model",
        "draft_model": "Qwen/Qwen3-0.6B",
        "num_speculative_tokens": 4,
    }
    app = create_app(ClusterConfig(dialect="vllm", acceptance_rate=1.0, **draft))
    chat = path.startswith("chat")
    if tools and not chat:
        pytest.skip("completions have no tools")
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 21, "stream": True, "stream_options": CONTINUOUS}
    body |= {"messages": [{"role": "user", "content": "Weather in Paris"}]} if chat else {"prompt": "Hello"}
    if tools:
        body |= {"max_tokens": 200, "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
    events = [event for _, event in virtual_time.run(timed_events(app, f"/v1/{path}", body))]
    counts = [event["usage"]["completion_tokens"] for event in events if event["choices"]]
    if tools:
        arguments = "".join(
            call["function"]["arguments"]
            for event in events
            if event["choices"]
            for call in event["choices"][0]["delta"].get("tool_calls", ())
        )
        assert json.loads(arguments) == {"city": "Paris"}
        assert all(later - earlier > 1 for earlier, later in itertools.pairwise(counts[2:-1]))
        return
    assert counts == [*([0] if chat else []), 1, 6, 11, 16, 21]


# --- usage --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_cached_tokens_and_where_they_came_from(make_api: Callable[..., Any], dialect: str) -> None:
    api = make_api(dialect=dialect)
    text = "The same words again. " * 300
    first, again = (api.chat(text, max_tokens=2, return_cached_tokens_details=True).json() for _ in range(2))
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 1000 > first["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert ("reasoning_tokens" in again["usage"]) == (dialect == "sglang")
    details = {"cached_tokens_details": {"device": cached, "host": 0}}
    assert again.get("sglext") == (details if dialect == "sglang" else None)
    streamed = api.chat(
        text, max_tokens=2, return_cached_tokens_details=True, stream=True, stream_options={"include_usage": True}
    )
    *_, before, last = json_events(streamed.text)
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
    assert ((before["choices"], before.get("sglext")) == ([], details)) == (dialect == "sglang")
    assert api.complete(text, max_tokens=2, return_cached_tokens_details=True).json().get("sglext", {}).keys() == (
        {"cached_tokens_details"} if dialect == "sglang" else set()
    )


def test_the_usage_need_not_report_the_cache(make_api: Callable[..., Any]) -> None:
    api = make_api(enable_cache_report=False)
    assert api.chat(max_tokens=2).json()["usage"]["prompt_tokens_details"] is None
    streamed = api.complete(max_tokens=2, stream=True, stream_options=CONTINUOUS)
    assert [event["usage"]["prompt_tokens_details"] for event in json_events(streamed.text)] == [None] * 3
    message = {
        "model": MODEL,
        "max_tokens": 2,
        "messages": [{"role": "user", "content": "Hello again. " * 500}],
        "cache_control": {"type": "ephemeral"},
    }
    assert [api.post("/v1/messages", message).json()["usage"]["cache_read_input_tokens"] > 5 for _ in range(2)] == [
        False,
        True,
    ]


# --- what a load client measures ----------------------------------------------------------------------------------------


async def timed_events(app: LlmirageApp, path: str, body: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
    """The events of a stream, and when each left."""
    parts = (await RawAnswer().ask(app, path, body)).parts
    return [(at_s, event) for at_s, data in parts for event in json_events(data.decode())]


def is_output(choice: dict[str, Any]) -> bool:
    """What load clients (vllm bench serve, AIPerf) count as output: not the role alone, not an empty delta."""
    if "text" in choice:
        return True
    return bool(choice["delta"].get("content"))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_client_reads_the_times_that_were_ordered(dialect: Any, path: str) -> None:
    """Every event of a completion counts as one token: an event for the finish reason alone would read as a gap of 0."""
    app = create_app(ClusterConfig(dialect=dialect, ttft_ms=200.0, itl_ms=10.0))
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 10, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"messages": [{"role": "user", "content": "Hello"}]} if path.startswith("chat") else {"prompt": "Hello"}
    events = virtual_time.run(timed_events(app, f"/v1/{path}", body))
    times = [at for at, event in events if event["choices"] and is_output(event["choices"][0])]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(gaps) == 9
    assert times[0] == pytest.approx(0.2, rel=0.05)
    assert sum(gaps) / len(gaps) == pytest.approx(0.01, rel=0.01)
    assert events[-1][1]["usage"]["completion_tokens"] == 10


# --- the server itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_health_and_version(make_api: Callable[..., Any], dialect: str) -> None:
    api = make_api(dialect=dialect)
    health: httpx.Response = api.request("GET", "/health")
    assert (health.status_code, bool(health.content)) == (200, dialect == "openai")
    told = api.request("GET", "/version").json()["version"]
    assert (told == version("llmirage")) == (dialect == "openai")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_profile_may_be_started_and_stopped(make_api: Callable[..., Any], dialect: str, method: str) -> None:
    api = make_api(dialect=dialect)
    for path, said in (
        ("/start_profile", "Start profiling.\n"),
        ("/stop_profile", "Stop profiling. This will take some time.\n"),
    ):
        answer = api.request(method, path)
        assert (answer.status_code, answer.text) == (200, said if dialect == "sglang" else "")
        assert api.request(method, path, headers={"origin": "http://elsewhere"}).status_code == 403


@pytest.mark.parametrize(("more", "least"), [({"ignore_eos": True}, 300), ({"min_tokens": 250}, 250)])
def test_a_message_is_as_long_as_a_load_client_wants(api: Any, more: Any, least: int) -> None:
    body = {"model": MODEL, "max_tokens": 300, "messages": [{"role": "user", "content": "Hello"}]}
    plain, answer = (api.post("/v1/messages", given).json()["usage"]["output_tokens"] for given in (body, body | more))
    assert plain < least <= answer <= 300


def test_min_tokens_of_a_message_are_a_whole_number(api: Any) -> None:
    body = {"model": MODEL, "max_tokens": 300, "messages": [{"role": "user", "content": "Hello"}], "min_tokens": -1}
    assert api.post("/v1/messages", body).status_code == 400
