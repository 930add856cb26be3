"""Keys, rate limits, content types, sizes, browsers: what is decided before a body is looked at."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.config import ConfigError
from llmirage_server.http.access import Bucket, RateLimits, go_duration
from llmirage_server.http.exchange import HttpExchange
from llmirage_shared import virtual_time
from llmirage_shared.wire.errors import ApiError

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
KEYS = ("sk-first-key-of-all-0001", "other")


@pytest.fixture
def guarded(make_api: Callable[..., Any]) -> Any:
    return make_api(api_key=KEYS)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "headers",
    [bearer(KEYS[0]), bearer(KEYS[1]), {"x-api-key": KEYS[1]}, {"api-key": KEYS[0]}, {"authorization": "bearer other"}],
)
def test_each_key_opens(guarded: Any, headers: dict[str, str]) -> None:
    assert guarded.post("/v1/chat/completions", BODY, headers=headers).status_code == 200
    assert guarded.request("GET", "/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/tokenize", "/nowhere"])
def test_without_a_key_or_with_a_wrong_one_nothing_is_told(guarded: Any, path: str) -> None:
    missing = guarded.post(path, BODY)
    assert missing.status_code == 401
    assert missing.json()["error"]["type"] == "invalid_request_error"
    assert missing.json()["error"]["code"] is None
    assert missing.json()["error"]["message"].startswith("You didn't provide an API key.")
    assert missing.headers["x-request-id"].startswith("req_")
    wrong = guarded.post(path, BODY, headers=bearer("sk-wrong-key-that-is-long-9876"))
    assert wrong.status_code == 401
    assert wrong.json()["error"]["code"] == "invalid_api_key"
    message = wrong.json()["error"]["message"]
    assert message.startswith("Incorrect API key provided: ****")
    assert "9876" in message
    assert "sk" not in message
    assert "long" not in message


def test_the_messages_api_refuses_in_its_own_words(guarded: Any) -> None:
    refused = guarded.post("/v1/messages", BODY)
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"


def test_probes_and_preflights_need_no_key(guarded: Any) -> None:
    assert guarded.request("GET", "/health").status_code == 200
    assert guarded.request("GET", "/ping").status_code == 200
    preflight = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}
    assert guarded.request("OPTIONS", "/v1/chat/completions", headers=preflight).status_code == 200
    assert guarded.request("OPTIONS", "/v1/chat/completions").status_code == 401  # which is none
    assert "sk-first" not in guarded.request("GET", "/server_info", headers=bearer("other")).text


def test_odd_authorization_headers_are_only_wrong(guarded: Any) -> None:
    for value in ("", "Bearer", "Bearer ", "Basic abc", "Bearer \xff\xfe"):
        headers = {"authorization": value.encode("latin-1")}
        assert guarded.request("GET", "/v1/models", headers=headers).status_code == 401


def test_a_key_is_visible_ascii() -> None:
    from llmirage_server.config import ClusterConfig

    for key in ("", "a b", "ü"):
        with pytest.raises(ConfigError, match="api_key must be of visible ASCII characters"):
            ClusterConfig(api_key=(key,))


def test_requests_a_minute(make_api: Callable[..., Any]) -> None:
    api = make_api(rate_limit=3)
    for left in (2, 1, 0):
        response = api.post("/v1/chat/completions", BODY)
        assert response.status_code == 200
        assert response.headers["x-ratelimit-limit-requests"] == "3"
        assert response.headers["x-ratelimit-remaining-requests"] == str(left)
    assert response.headers["x-ratelimit-reset-requests"].startswith(("59", "1m0s"))
    refused = api.post("/v1/chat/completions", BODY | {"stream": True})
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert error["message"].startswith(
        f"Rate limit reached for {MODEL} on requests per min (RPM): Limit 3, Used 3, Requested 1."
    )
    assert 15 <= int(refused.headers["retry-after"]) <= 20
    assert 15_000 <= int(refused.headers["retry-after-ms"]) <= 20_000
    other = api.post("/v1/completions", {"model": MODEL, "prompt": "a"}, headers=bearer("somebody-else"))
    assert other.status_code == 200
    assert api.post("/v1/responses", {"model": MODEL, "input": "a"}).status_code == 429
    assert api.post("/v1/embeddings", {"model": "text-embedding-3-small", "input": "a"}).status_code == 429
    assert api.post("/tokenize", {"prompt": "a"}).status_code == 200  # costs a real API nothing
    messages = api.post("/v1/messages", BODY)
    assert (messages.status_code, messages.json()["error"]["type"]) == (429, "rate_limit_error")


def test_tokens_a_minute(make_api: Callable[..., Any]) -> None:
    api = make_api(token_limit=100)
    response = api.complete([5] * 40, max_tokens=20)
    assert response.headers["x-ratelimit-remaining-tokens"] == "40"
    streamed = api.complete([5] * 10, max_tokens=10, stream=True)
    assert streamed.headers["x-ratelimit-remaining-tokens"] in ("20", "21", "22", "23")
    refused = api.complete([5] * 40, max_tokens=20)
    assert refused.status_code == 429
    assert "on tokens per min (TPM): Limit 100, Used " in refused.json()["error"]["message"]
    vectors = api.post("/v1/embeddings", {"model": "text-embedding-3-small", "input": [[1, 2], [1, 2, 3]]})
    assert vectors.headers["x-ratelimit-remaining-tokens"] in ("15", "16", "17", "18")
    hopeless = api.complete([5] * 101, max_tokens=1)
    assert hopeless.status_code == 429
    assert "Request too large" in hopeless.json()["error"]["message"]
    assert hopeless.headers["x-should-retry"] == "false"


def test_what_was_used_comes_back_evenly() -> None:
    bucket = Bucket(60)
    bucket.refill(0.0)
    bucket.left -= 60
    bucket.refill(10.0)
    assert bucket.left == 10.0
    assert bucket.wait_s(15) == 5.0
    bucket.refill(1000.0)
    assert bucket.left == 60


async def some_exchange() -> HttpExchange:
    return HttpExchange({"type": "http", "method": "POST", "path": "/", "headers": []}, None)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 40)), max_size=60))
def test_no_minute_brings_more_than_two_limits(arrivals: list[tuple[float, int]]) -> None:
    """A full bucket and what comes back in a minute: never more in any minute."""
    now = [0.0]
    limits = RateLimits(None, 50, lambda: now[0])
    connection = virtual_time.run(some_exchange())
    served: list[tuple[float, int]] = []
    for wait_s, tokens in arrivals:
        now[0] += wait_s
        with contextlib.suppress(ApiError):
            limits.admit(connection, "m", tokens)
            served.append((now[0], tokens))
    for start_s, _ in served:
        assert sum(tokens for at_s, tokens in served if start_s <= at_s <= start_s + 60) <= 100


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0s"), (0.006, "6ms"), (0.5, "500ms"), (1.5, "1.5s"), (60, "1m0s"), (90.25, "1m30.25s"), (7380, "2h3m0s")],
)
def test_durations_as_go_writes_them(seconds: float, written: str) -> None:
    assert go_duration(seconds) == written


def test_without_limits_the_headers_are_there_all_the_same(api: Any) -> None:
    for response in (api.post("/v1/chat/completions", BODY), api.post("/v1/chat/completions", BODY | {"stream": True})):
        names = {name for name in response.headers if name.startswith("x-ratelimit-")}
        assert len(names) == 6
    assert not [name for name in api.request("GET", "/v1/models").headers if name.startswith("x-ratelimit-")]
    assert not [name for name in api.chat(n=0).headers if name.startswith("x-ratelimit-")]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_a_body_that_is_not_called_json_is_refused(api: Any, kind: str) -> None:
    response = api.post("/v1/chat/completions", BODY, headers={"content-type": kind})
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_content_type"
    assert kind in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"])
def test_json_by_any_name_is_read(api: Any, kind: str) -> None:
    assert api.post("/v1/chat/completions", BODY, headers={"content-type": kind}).status_code == 200


def test_a_body_that_is_too_large_is_refused(make_api: Any) -> None:
    api = make_api(max_body_mib=1)
    assert api.chat("word " * 100).status_code == 200
    response = api.chat("word " * 220_000)
    assert (response.status_code, response.headers["connection"]) == (413, "close")
    assert response.json()["error"]["code"] == "request_too_large"

    async def unannounced() -> Any:
        for _ in range(30):
            yield b" " * 40_000

    assert api.request("POST", "/v1/chat/completions", content=unannounced()).status_code == 413


def test_browsers_may_call(api: Any) -> None:
    asked = api.request(
        "OPTIONS",
        "/v1/responses",
        headers={
            "origin": "http://localhost:3000",
            "access-control-request-method": "POST",
            "access-control-request-headers": "x-y",
        },
    )
    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, "http://localhost:3000")
    assert asked.headers["access-control-allow-headers"] == "x-y"
    assert "POST" in asked.headers["access-control-allow-methods"]
    answered = api.post("/v1/chat/completions", BODY, headers={"origin": "http://localhost:3000"})
    assert answered.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert answered.headers["access-control-expose-headers"] == "*"


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/version", "/openapi.json"])
def test_head_is_get_without_a_body(api: Any, path: str) -> None:
    response = api.request("HEAD", path)
    assert response.status_code == 200
    assert response.headers["content-length"] == api.request("GET", path).headers["content-length"]


def test_processing_time_and_version_are_told(api: Any) -> None:
    response = api.post("/v1/chat/completions", BODY)
    assert int(response.headers["openai-processing-ms"]) >= 0
    assert response.headers["openai-version"] == "2020-10-01"
    assert response.headers["openai-organization"] == "llmirage"


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"max_tokens": 0}])
def test_the_messages_api_has_another_name_for_the_id_of_a_request(api: Any, more: dict[str, Any]) -> None:
    body = {"model": MODEL, "max_tokens": 3, "messages": [{"role": "user", "content": "Hello"}]}
    answer = api.post("/v1/messages", body | more)
    headers = answer.headers
    assert headers["request-id"] == headers["x-request-id"]
    if answer.status_code != 200:
        assert answer.json()["request_id"] == headers["request-id"]
    assert "request-id" not in api.chat(max_tokens=2).headers


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [1] * 600_010},
        {"prompt": "x", "metadata": {f"{number}": 0 for number in range(120_100)}},
        {"prompt": "\\", "a": '\\"', "metadata": {f'"\\{number}': "\\" for number in range(120_100)}},
    ],
)
def test_a_body_of_too_many_values_is_refused_before_it_is_read(api: Any, fields: Any) -> None:
    answer = api.post("/v1/completions", {"model": MODEL, **fields})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert "too many values: it has 600" in answer.json()["error"]["message"]


@pytest.mark.parametrize("text", ["a:b, " * 400_000, "\\" * 999_999 + '",:' * 400_000, '{"a": ["b", {}]}, ' * 90_000])
def test_what_a_text_holds_is_not_a_value_of_its_body(api: Any, text: str) -> None:
    answer = api.post("/v1/completions", {"model": MODEL, "prompt": text, "max_tokens": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_body_of_too_many_objects_is_refused_and_braces_in_texts_are_none(api: Any) -> None:
    answer = api.post("/v1/responses", {"model": MODEL, "input": [{}] * 20_010})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert "too many objects: at most 12000" in answer.json()["error"]["message"]
    assert api.chat("{" * 40_000, max_tokens=1).status_code == 200


def test_keys_may_stand_in_a_file(make_api: Any, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("first\n\n  second \n")
    api = make_api(api_key_file=str(tmp_path / "keys"), api_key=("third",))
    statuses = [
        api.request("GET", "/v1/models", headers=bearer(key)).status_code for key in ("first", "second", "third", "")
    ]
    assert statuses == [200, 200, 200, 401]
    (tmp_path / "keys").write_text("\n")
    with pytest.raises(ConfigError, match=r"api_key_file: .* it has no key"):
        make_api(api_key_file=str(tmp_path / "keys"))


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8000", 200), ("127.0.0.1:8000", 200), ("[::1]:8000", 200), ("app.localhost", 200), ("llmirage", 200),
     ("evil.example:8000", 403), ("evil.example.", 403), ("127.0.0.1.evil.example", 403)],
)  # fmt: skip
def test_a_public_name_of_this_machine_does_not_open_it(make_api: Any, host: str, status: int) -> None:
    for path in ("/llmirage/journal", "/llmirage/faults"):
        answer = make_api().request("GET", path, headers={"host": host})
        assert answer.status_code == status
        assert status == 200 or answer.json()["error"]["code"] == "not_local"
    assert make_api(open_admin=True).request("GET", "/llmirage/journal", headers={"host": host}).status_code == 200
    keyed = make_api(api_key=("k",)).request("GET", "/llmirage/journal", headers={"host": host, **bearer("k")})
    assert keyed.status_code == 200


@pytest.mark.parametrize("origin", ["http://[", "null", "evil"])
def test_an_origin_that_is_no_address_is_foreign(make_api: Any, origin: str) -> None:
    assert make_api().request("GET", "/llmirage/journal", headers={"origin": origin}).status_code == 403


@pytest.mark.parametrize(("address", "is_local"), [("127.0.0.1", True), ("::1", True), ("10.0.0.9", False)])
def test_other_machines_change_nothing_without_a_key(
    runner: asyncio.Runner, make_api: Any, address: str, is_local: bool
) -> None:
    def status(method: str, path: str, **settings: Any) -> int:
        async def ask() -> int:
            transport = httpx.ASGITransport(make_api(**settings).app, client=(address, 5))
            async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=bearer("k")) as client:
                return (await client.request(method, path)).status_code

        return runner.run(ask())

    for method, path in (("POST", "/sleep"), ("POST", "/reset_prefix_cache"), ("GET", "/llmirage/journal")):
        assert (status(method, path) == 200) == is_local
        assert status(method, path, api_key=("k",)) == 200
        assert status(method, path, open_admin=True) == 200
    assert status("GET", "/v1/models") == 200
