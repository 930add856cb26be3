"""Scripted replies in every API: what a reply says, and what the client gets."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from scripted import MODEL, said

from llmirage_server.config import ConfigError
from llmirage_server.proxy.upstream import HttpUpstream

INTEGER_ID = {"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}, "required": ["id"]}
TOOL = {"type": "function", "function": {"name": "get_order", "parameters": INTEGER_ID}}


def conversation(*results: tuple[str, str], user: str = "Where is order 42?") -> list[dict[str, Any]]:
    """A user message, and after it one call with its result after the other."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": user}]
    for index, (name, content) in enumerate(results):
        call = {"id": f"c{index}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{index}", "content": content})
    return messages


CALL = {"tool_calls": [{"name": "get_order", "arguments": {"id": "{1}", "note": "for {1}"}}]}
ORDER = {"when": {"user": {"regex": r"order (\d+)"}}, "reply": CALL}


# --- every API, whole and streamed ----------------------------------------------------------------------------------------


def of_chat(body: Any) -> tuple[Any, ...]:
    message = body["choices"][0]["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return message["content"], calls, body["choices"][0]["finish_reason"]


def of_completions(body: Any) -> tuple[Any, ...]:
    return body["choices"][0]["text"], [], body["choices"][0]["finish_reason"]


def of_responses(body: Any) -> tuple[Any, ...]:
    texts = [part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]]
    calls = [(item["name"], item["arguments"]) for item in body["output"] if item["type"] == "function_call"]
    return "".join(texts) or None, calls, body["status"]


def of_messages(body: Any) -> tuple[Any, ...]:
    texts = [block["text"] for block in body["content"] if block["type"] == "text"]
    calls = [
        (block["name"], json.dumps(block["input"], separators=(",", ":"))) for block in body["content"] if "input" in block
    ]
    return "".join(texts) or None, calls, body["stop_reason"]


def of_generate(body: Any) -> tuple[Any, ...]:
    return body["text"], [], body["meta_info"]["finish_reason"]["type"]


MESSAGES = [{"role": "user", "content": "Hello"}]
ENDPOINTS: dict[str, tuple[str, dict[str, Any], Callable[[Any], tuple[Any, ...]], str]] = {
    "chat": ("/v1/chat/completions", {"model": MODEL, "messages": MESSAGES}, of_chat, "stop"),
    "completions": ("/v1/completions", {"model": MODEL, "prompt": "Hello", "max_tokens": 100}, of_completions, "stop"),
    "responses": ("/v1/responses", {"model": MODEL, "input": "Hello"}, of_responses, "completed"),
    "messages": ("/v1/messages", {"model": MODEL, "messages": MESSAGES, "max_tokens": 100}, of_messages, "end_turn"),
    "generate": ("/generate", {"text": "Hello"}, of_generate, "stop"),
}
SAID = "Grüße, {name}: 5 < 6 & 日本 \U0001f600"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_text_reaches_the_client_unchanged(scripted: Callable[..., Any], endpoint: str) -> None:
    path, body, read, ended = ENDPOINTS[endpoint]
    rule: Any = {"when": {"endpoint": endpoint, "user": "hello"}, "reply": SAID.replace("{name}", "{{name}}")}
    api = scripted(rule, fallback="error")
    assert read(api.post(path, body).json()) == (SAID, [], ended)
    rule["when"]["user"] = "goodbye"
    api.app.service.scripts.replace({"rules": [rule], "fallback": "error"})
    refused = api.post(path, body)
    assert (refused.status_code, "No rule of the script fits" in refused.text) == (404, True)


def streamed_text(text: str) -> str:
    """All that a stream shows of the answer, in whichever API."""
    parts = []
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        data = json.loads(line[6:])
        if "meta_info" in data:  # each frame has all text so far
            parts = [data["text"]]
        for choice in data.get("choices", ()):
            parts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        if data.get("type") == "response.output_text.delta":
            parts.append(data["delta"])
        if data.get("type") == "content_block_delta":
            parts.append(data["delta"]["text"])
    return "".join(parts)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_stream_says_the_same(scripted: Callable[..., Any], endpoint: str) -> None:
    path, body, *_ = ENDPOINTS[endpoint]
    api = scripted({"reply": SAID.replace("{name}", "{{name}}")})
    assert streamed_text(api.post(path, {**body, "stream": True}).text) == SAID


@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
def test_calls_refusals_thoughts_and_json_in_each_api(scripted: Callable[..., Any], endpoint: str) -> None:
    path, body, read, ended = ENDPOINTS[endpoint]
    api = scripted(
        {"when": {"nth": 1}, "reply": {"text": "One moment.", **CALL_OF_42}},
        {"when": {"nth": 2}, "reply": {"json": {"a": [1, "{model}"]}}},
        {"when": {"nth": 3}, "reply": {"reasoning": "Let me see", "text": "Yes"}},
        {"reply": {"refusal": "I won't."}},
    )
    called = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}[endpoint]
    assert read(api.post(path, body).json()) == ("One moment.", [("get_order", '{"id":42}')], called)
    assert read(api.post(path, body).json()) == (f'{{"a":[1,"{MODEL}"]}}', [], ended)
    thinking = api.post(path, body)
    assert read(thinking.json())[0] == "Yes"
    if endpoint == "responses":  # which shows no thoughts without being asked for them
        assert thinking.json()["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    else:
        assert "Let me see" in thinking.text
    refused = api.post(path, body).json()
    assert "I won't." in json.dumps(refused)
    if endpoint == "chat":
        assert refused["choices"][0]["message"]["refusal"] == "I won't."


CALL_OF_42 = {"tool_calls": [{"name": "get_order", "arguments": {"id": 42}}]}


@pytest.mark.parametrize(
    ("endpoint", "reason", "shown"),
    [
        ("chat", "content_filter", "content_filter"),
        ("chat", "length", "length"),
        ("chat", "tool_calls", "tool_calls"),
        ("completions", "content_filter", "content_filter"),
        ("messages", "content_filter", "refusal"),
        ("messages", "length", "max_tokens"),
        ("responses", "content_filter", "incomplete"),
        ("responses", "length", "incomplete"),
    ],
)
def test_finish_reasons(scripted: Callable[..., Any], endpoint: str, reason: str, shown: str) -> None:
    path, body, read, _ = ENDPOINTS[endpoint]
    answer = scripted({"reply": {"text": "Cut", "finish_reason": reason}}).post(path, body).json()
    assert read(answer) == ("Cut", [], shown)
    if endpoint == "responses":
        assert answer["incomplete_details"] == {"reason": {"length": "max_output_tokens"}.get(reason, reason)}


# --- an agent's loop --------------------------------------------------------------------------------------------------


def test_a_tool_is_called_once_and_its_result_is_quoted(scripted: Callable[..., Any]) -> None:
    """The rule that calls a tool leaves requests with results to the next one, wherever that stands."""
    api = scripted(ORDER, {"when": {"tool_result": "get_order"}, "reply": "It is {result.status}: {result}"})
    assert said(api.chat(messages=conversation(), tools=[TOOL])) == [("get_order", '{"id":42,"note":"for 42"}')]
    result = '{"status": "shipped"}'
    assert said(api.chat(messages=conversation(("get_order", result)), tools=[TOOL])) == f"It is shipped: {result}"


def test_only_the_newest_results_count(scripted: Callable[..., Any]) -> None:
    """Otherwise the rule for the first tool's result would match for ever."""
    api = scripted(
        {"when": {"tool_result": "a"}, "reply": {"tool_calls": [{"name": "b"}]}},
        {"when": {"tool_result": {"name": "b", "content": {"regex": "(?P<what>o.)"}}}, "reply": "{what} {results.a}"},
    )
    assert said(api.chat(messages=conversation(("a", "1")))) == [("b", "{}")]
    assert said(api.chat(messages=conversation(("a", "1"), ("b", "all ok")))) == "ok 1"


@pytest.mark.parametrize("endpoint", ["messages", "responses"])
def test_results_in_the_other_apis(scripted: Callable[..., Any], endpoint: str) -> None:
    path, body, read, _ = ENDPOINTS[endpoint]
    api = scripted(ORDER, {"when": {"tool_result": "get_order"}, "reply": "{user} -> {result}"}, fallback="error")
    if endpoint == "messages":
        use = {"type": "tool_use", "id": "t1", "name": "get_order", "input": {"id": 42}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "shipped"}]}
        more = {"messages": [
            {"role": "user", "content": "order 42"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]}  # fmt: skip
    else:
        more = {"input": [
            {"role": "user", "content": "order 42"},
            {"type": "function_call", "call_id": "t1", "name": "get_order", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "t1", "output": "shipped"},
        ]}  # fmt: skip
    assert read(api.post(path, body | more).json())[0] == "order 42 -> shipped"


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ({"tool_calls": [{"name": "get_order", "arguments": {"id": "x{1}"}}]}, "id: 'x42' is not of type 'integer'"),
        ({"tool_calls": [{"name": "get_ordr", "arguments": {}}]}, "no tool 'get_ordr' (did you mean 'get_order'?)"),
        ({"text": "{results.get_order.id}"}, "{results.get_order.id} needs a result of get_order"),
    ],
)
def test_what_a_rule_cannot_do_is_told_with_its_place(scripted: Callable[..., Any], reply: Any, told: str) -> None:
    api = scripted({"when": {"user": {"regex": r"order (\d+)"}}, "reply": [reply, "later"]})
    refused = api.chat(messages=conversation(), tools=[TOOL])
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "script_error")
    assert error["message"].startswith("script rules[0]: ")
    assert told in error["message"]


def test_arguments_as_text_go_out_as_they_are(scripted: Callable[..., Any]) -> None:
    """Models invent tools and write broken JSON; clients must be tested with that."""
    api = scripted({"reply": {"tool_calls": [{"name": "no_such_tool", "arguments": '{"id": {'}]}})
    assert said(api.chat(messages=conversation(), tools=[TOOL])) == [("no_such_tool", '{"id": {')]


# --- what is reported -------------------------------------------------------------------------------------------------


def test_a_fixed_length_is_exact(scripted: Callable[..., Any]) -> None:
    reply = scripted({"reply": {"tokens": 77}}).chat().json()
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (77, "stop")
    cut = scripted({"reply": {"tokens": 77, "finish_reason": "length"}}).chat().json()
    assert (cut["usage"]["completion_tokens"], cut["choices"][0]["finish_reason"]) == (77, "length")


def test_no_reply_is_longer_than_the_context_window(scripted: Callable[..., Any]) -> None:
    usage = scripted({"reply": {"tokens": 1_000_000}}, settings={"max_model_len": 500}).chat().json()["usage"]
    assert usage["total_tokens"] == 500


@pytest.mark.parametrize("text", ["{user}" * 100_000, "x" * 1_100_000])
def test_a_text_that_grows_without_end_is_refused(scripted: Callable[..., Any], text: str) -> None:
    refused = scripted({"reply": text}).chat()
    assert refused.status_code == 400
    assert "would have more than 1000000 characters" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields", [{"logprobs": True}, {"return_token_ids": True}, {"stream": True, "logprobs": True}], ids=str
)
def test_fields_about_tokens_work_with_scripts(scripted: Callable[..., Any], fields: Any) -> None:
    reply = scripted({"reply": "Hello there"}).chat(**fields)
    assert reply.status_code == 200
    assert "Hello" in reply.text


def test_max_tokens_and_stop_strings_hold(scripted: Callable[..., Any]) -> None:
    api = scripted({"reply": "one two three four five six seven"})
    cut = api.chat(max_tokens=3).json()
    assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 3)
    stopped = api.chat(stop=[" four"]).json()["choices"][0]
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("one two three", "stop")


@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
def test_usage_is_what_the_script_says(scripted: Callable[..., Any], endpoint: str) -> None:
    path, body, *_ = ENDPOINTS[endpoint]
    usage = {"prompt_tokens": 1000, "cached_tokens": 900, "completion_tokens": 50, "reasoning_tokens": 20}
    api = scripted({"reply": {"text": "a", "usage": usage}})
    shown = api.post(path, body).json()["usage"]
    if endpoint == "messages":
        assert (shown["input_tokens"], shown["cache_read_input_tokens"], shown["output_tokens"]) == (100, 900, 50)
    else:
        assert shown["total_tokens"] == 1050
        assert "900" in json.dumps(shown)
        assert "20" in json.dumps(shown)


def test_a_reply_that_says_nothing_is_generated(scripted: Callable[..., Any], api: Any) -> None:
    plain = api.chat(max_tokens=20).json()["choices"][0]["message"]["content"]
    scripted_reply = scripted({"reply": {"usage": {"completion_tokens": 5}}}).chat(max_tokens=20).json()
    assert scripted_reply["choices"][0]["message"]["content"] == plain
    assert scripted_reply["usage"]["completion_tokens"] == 5


def test_json_must_fit_the_schema_that_the_request_asks_for(scripted: Callable[..., Any]) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    api = scripted({"when": {"nth": 1}, "reply": {"json": {"age": "{user}"}}}, {"reply": {"json": {"age": 5}}})
    assert "does not fit the JSON Schema" in api.chat(response_format=form).json()["error"]["message"]
    assert said(api.chat(response_format=form)) == '{"age":5}'


@pytest.mark.parametrize("endpoint", ["chat", "messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_what_no_rule_fits_goes_to_the_upstream(
    make_api: Callable[..., Any], scripted: Callable[..., Any], endpoint: str, stream: bool
) -> None:
    path, body, *_ = ENDPOINTS[endpoint]
    upstream = scripted({"reply": "from upstream"})
    api = make_api(upstream="http://upstream/v1", upstream_key="sk-up")
    api.app.upstream = HttpUpstream("http://upstream/v1", "sk-up", httpx.ASGITransport(upstream.app))
    api.post("/llmirage/script", {"rules": [{"when": {"user": "hell"}, "reply": "from here"}], "fallback": "upstream"})
    assert "from here" in api.post(path, body).text
    other = {**body, "messages": [{"role": "user", "content": "Grüße"}], "stream": stream}
    passed = api.post(path, other).text
    assert (streamed_text(passed) if stream else passed).count("from upstream") == 1
    seen = upstream.app.journal.entries[-1]
    assert (seen.user, seen.stream) == ("Grüße", stream)
    entry = api.app.journal.entries[-1]
    assert (entry.rule, entry.status, entry.outcome) == ("fallback: upstream", 200, "complete")


def test_an_upstream_must_be_there(scripted: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="fallback: upstream needs the address of another server: --upstream URL"):
        scripted(fallback="upstream")
