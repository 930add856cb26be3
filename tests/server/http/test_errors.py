"""Whatever a client sends, it gets an error object it can act on, and never a 5xx."""

import gzip
import json
import zlib
from typing import Any

import pytest
from api_errors import CHAT, TEXT, USER, assert_error

from llmirage_server.http.exchange import MOST_BODY_BYTES


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b"hello",
        b"[]",
        b"null",
        b"5",
        b'"x"',
        b"\xff\xfe",
        b'{"a": NaN}',
        b"[" * 100_000,
        b'{"n": %s}' % (b"9" * 5000),
    ],
)
def test_a_body_that_is_no_json_object_is_a_400(api: Any, path: str, body: bytes) -> None:
    assert_error(api.post(path, body), 400, None, None, "We could not parse the JSON body of your request.")


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_missing_chat_field_is_named(api: Any, missing: str) -> None:
    body = {key: value for key, value in CHAT.items() if key != missing}
    response = api.post("/v1/chat/completions", body)
    assert_error(response, 400, missing, "missing_required_parameter", f"Missing required parameter: '{missing}'.")
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_missing_prompt_is_named(api: Any) -> None:
    response = api.post("/v1/completions", {"model": "Qwen/Qwen3-30B-A3B-Instruct-2507"})
    assert_error(response, 400, "prompt", "missing_required_parameter", "Missing required parameter: 'prompt'.")


def test_an_unknown_model_is_a_404_where_only_served_ones_are_accepted(make_api: Any) -> None:
    api = make_api(accept_models="served")
    response = api.post("/v1/chat/completions", CHAT | {"model": "gpt-99"})
    assert_error(
        response, 404, "model", "model_not_found", "The model `gpt-99` does not exist or you do not have access to it."
    )
    assert_error(api.request("GET", "/v1/models/gpt-99"), 404, "model", "model_not_found", "`gpt-99`")


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(make_api: Any) -> None:
    api = make_api(max_model_len=100)
    response = api.post("/v1/completions", TEXT | {"prompt": list(range(100))})
    expected = "This model's maximum context length is 100 tokens. However, your prompt resulted in 100 tokens."
    assert_error(response, 400, "prompt", "context_length_exceeded", expected)
    response = api.chat("word " * 200, stream=True)
    expected = "This model's maximum context length is 100 tokens. However, your messages resulted in"
    assert_error(response, 400, "messages", "context_length_exceeded", expected)


def test_a_prompt_that_leaves_too_little_for_max_tokens_is_refused_with_the_sum(make_api: Any) -> None:
    response = make_api(max_model_len=100).post("/v1/completions", TEXT | {"prompt": list(range(90)), "max_tokens": 11})
    expected = "you requested 101 tokens (90 in the prompt, 11 in the completion)"
    assert_error(response, 400, "prompt", "context_length_exceeded", expected)


def test_a_request_that_just_fits_is_answered(make_api: Any) -> None:
    response = make_api(max_model_len=100).post("/v1/completions", TEXT | {"prompt": list(range(90)), "max_tokens": 10})
    assert response.json()["usage"]["total_tokens"] == 100


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("POST", "/v1/images/generations"), ("DELETE", "/v1"), ("GET", "/v1/models/")]
)
def test_an_unknown_url_is_a_404_in_the_same_shape(api: Any, method: str, path: str) -> None:
    if path == "/v1/models/":
        assert_error(api.request(method, path), 404, "model", "model_not_found", "``")
    else:
        assert_error(api.request(method, path), 404, None, "unknown_url", f"Invalid URL ({method} {path})")


@pytest.mark.parametrize(
    "path", ["/v1/images/generations", "/v1/vector_stores", "/v1/realtime", "/v1/fine_tuning/jobs/a/events"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_what_is_not_simulated_says_so(api: Any, method: str, path: str) -> None:
    assert_error(api.request(method, path), 404, None, "unknown_url", "not simulated by llmirage")
    assert "not simulated" not in api.request(method, path.replace("/v1/", "/v1/x")).text


@pytest.mark.parametrize("path", ["/v1/messages/a/b", "/v1/messages/batches/a/b"])
def test_an_unknown_path_of_the_messages_api_has_its_form(api: Any, path: str) -> None:
    response = api.request("GET", path)
    body = response.json()
    assert response.status_code == 404
    assert body["type"] == "error"
    assert body["error"]["type"] == "not_found_error"
    assert f"(GET {path})" in body["error"]["message"]
    assert body["request_id"] == response.headers["request-id"]


@pytest.mark.parametrize(
    ("method", "path", "allow"), [("GET", "/v1/completions", "POST"), ("POST", "/v1/models", "GET, HEAD")]
)
def test_a_wrong_method_is_a_405_that_says_which_is_right(api: Any, method: str, path: str, allow: str) -> None:
    response = api.request(method, path)
    assert_error(response, 405, None, "method_not_supported", f"Not allowed to {method}")
    assert response.headers["allow"] == allow


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\x00", "😀", "<|end_of_turn|>", "\u2028", " ", ""])
@pytest.mark.parametrize("stream", [False, True])
def test_odd_text_is_answered(make_api: Any, api: Any, text: str, stream: bool) -> None:
    assert api.chat(text, max_tokens=3, stream=stream).status_code == 200
    echo = make_api(replies="echo")
    assert echo.chat(text, max_tokens=3, stream=stream).status_code == 200


def test_odd_names_are_only_unknown_models(make_api: Any) -> None:
    api = make_api(accept_models="served")
    for name in ("\ud800", "\x00", "", "a" * 10_000):
        assert_error(
            api.post("/v1/chat/completions", CHAT | {"model": name}), 404, "model", "model_not_found", "does not exist"
        )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/pooling", {"input": "x"}),
        ("/classify", {"input": "x"}),
    ],
)  # fmt: skip
def test_a_name_of_a_model_has_at_most_1000_characters(api: Any, path: str, body: dict[str, Any]) -> None:
    assert api.post(path, body | {"model": "m" * 1000}).status_code == 200
    for name in ("m" * 1001, "m" * 1000 + "/text-embedding-3-small"):
        assert_error(api.post(path, body | {"model": name}), 404, "model", "model_not_found", "at most 1,000 characters")


@pytest.mark.parametrize("text", ["x", "", "³", "--5", "1.0", "9" * 5000, "%20", "١"])
@pytest.mark.parametrize(
    ("path", "name"), [("/v1/chat/completions", "limit"), ("/v1/responses/resp_x", "starting_after")], ids=["page", "stream"]
)
def test_numbers_in_urls_are_read_with_care(api: Any, path: str, name: str, text: str) -> None:
    response = api.request("GET", path, params={name: text})
    assert_error(response, 400, name, "invalid_type", "expected an integer")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ("/v1/chat/completions", {"tools": [{"type": "custom", "custom": {"name": "a!"}}]}, "tools[0].custom.name"),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "response_format.json_schema.name",
        ),
        ("/v1/responses", {"tools": [{"type": "function", "name": "a.b"}]}, "tools[0].name"),
        ("/v1/responses", {"tools": [{"type": "teleport"}]}, "tools[0].type"),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "?", "schema": {}}}}, "text.format.name"),
        ("/v1/responses", {"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_names_that_are_none(api: Any, path: str, body: dict[str, Any], param: str) -> None:
    asked = {"messages": [USER]} if "chat" in path else {"input": "Hello"}
    answer = api.post(path, {"model": "Qwen/Qwen3-30B-A3B-Instruct-2507", **asked, **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, "invalid_value")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP", "identity"])
def test_a_packed_body_is_unpacked(api: Any, encoding: str) -> None:
    body = json.dumps(CHAT).encode()
    packed = {"gzip": gzip.compress(body), "deflate": zlib.compress(body), "identity": body}
    answer = api.post("/v1/chat/completions", packed[encoding.lower()], headers={"content-encoding": encoding})
    assert answer.status_code == 200, answer.text


def test_a_body_that_cannot_be_unpacked_is_refused(api: Any) -> None:
    body = json.dumps(CHAT).encode()
    path = "/v1/chat/completions"
    assert_error(api.post(path, body, headers={"content-encoding": "br"}), 415, None, "unsupported_content_encoding", "'br'")
    assert_error(api.post(path, body, headers={"content-encoding": "gzip"}), 400, None, None, "content-encoding")
    bomb = gzip.compress(bytes(MOST_BODY_BYTES + 10))
    assert_error(api.post(path, bomb, headers={"content-encoding": "gzip"}), 413, None, "request_too_large", "too large")


def test_a_number_that_no_float_holds_is_no_json(api: Any) -> None:
    for path in ("/v1/chat/completions", "/v1/responses/input_tokens", "/v1/conversations"):
        assert_error(api.post(path, b'{"a": 1e999}'), 400, None, None, "1e999 is too large a number")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/conversations", {"banana": 1}),
        ("/v1/moderations", {"input": "x", "banana": 1}),
        ("/v1/responses/input_tokens", {"input": "x", "banana": 1}),
    ],
)
def test_small_endpoints_refuse_unknown_fields_too(api: Any, path: str, body: dict[str, Any]) -> None:
    assert_error(api.post(path, body), 400, "banana", "unknown_parameter", "Unknown parameter: 'banana'.")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": ""}]}),
        ("messages", {"messages": [{"role": "user", "content": ""}], "max_tokens": 5}),
        ("completions", {"prompt": ""}),
        ("responses", {"input": ""}),
    ],
)
def test_a_prompt_far_beyond_the_window_is_refused_unread(api: Any, path: str, body: dict[str, Any]) -> None:
    text = " ".join(map(str, range(200_000)))
    written = json.dumps({"model": CHAT["model"], **body}).replace('""', json.dumps(text))
    answer = api.post(f"/v1/{path}", written.encode())
    assert answer.status_code == 400
    told = "prompt is too long: " if path == "messages" else "resulted in at least "
    assert told in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/conversations", "/llmirage/script"])
def test_a_long_name_is_not_repeated_in_full(api: Any, path: str) -> None:
    answer = api.post(path, {"k" * 1_000_000: 1, "model": "m", "messages": [{"role": "user", "content": "a"}], "input": "a"})
    assert answer.status_code == 400
    assert "kkkk" in answer.json()["error"]["message"]
    assert len(answer.content) < 10_000
