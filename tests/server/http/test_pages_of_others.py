"""Calls that a page in a browser may make: requests of pages of other servers and of this one."""

from typing import Any

import pytest

from llmirage_server.config import ConfigError
from llmirage_server.config.file import make_config

MOZILLA = "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0"
IMAGE = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image", "user-agent": MOZILLA}
CONTROLS = [
    ("GET", "/flush_cache"), ("GET", "/start_profile"), ("POST", "/sleep"), ("GET", "/llmirage/journal"),
    ("DELETE", "/llmirage/journal"), ("GET", "/is_sleeping"), ("GET", "/llmirage/script"),
]  # fmt: skip
HOST = "localhost:8000"
FOREIGN: list[dict[str, str]] = [
    IMAGE,
    {**IMAGE, "sec-fetch-site": "same-site"},
    {"user-agent": MOZILLA, "referer": "http://evil.example/page"},  # without TLS, browsers say no more of an image
    {"user-agent": MOZILLA},  # and a page may hide that
    {"user-agent": MOZILLA, "origin": "https://evil.example"},
    {"user-agent": MOZILLA, "origin": "null"},
    {"user-agent": MOZILLA, "origin": f"http://{HOST}.evil.example"},
    {"user-agent": MOZILLA, "referer": f"http://evil.example/http://{HOST}/"},
    {"origin": "http://localhost:3000"},  # may call the API
]
OWN: list[dict[str, str]] = [
    {},
    {"user-agent": "curl/8.5.0"},
    {"user-agent": MOZILLA, "sec-fetch-site": "same-origin"},
    {"user-agent": MOZILLA, "sec-fetch-site": "none"},  # the address line
    {"user-agent": MOZILLA, "referer": f"http://{HOST}/"},
    {"user-agent": MOZILLA, "origin": f"http://{HOST}"},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize(("method", "path"), CONTROLS)
def test_other_pages_neither_change_nor_see_state(make_api: Any, method: str, path: str, headers: dict[str, str]) -> None:
    refused = make_api().request(method, path, headers={"host": HOST, **headers})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "foreign_origin")


@pytest.mark.parametrize("headers", OWN)
def test_the_own_page_and_programs_do(api: Any, headers: dict[str, str]) -> None:
    for path in ("/is_sleeping", "/flush_cache", "/llmirage/journal"):
        assert api.request("GET", path, headers={"host": HOST, **headers}).status_code == 200


CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://localhost.evil.example", "http://localhost.evil"]
)
def test_a_page_of_an_unknown_origin_calls_nothing(api: Any, origin: str) -> None:
    before = api.app.journal.last
    refused = api.post("/v1/chat/completions", CHAT, headers={"origin": origin, "content-type": "text/plain"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "foreign_origin")
    assert "access-control-allow-origin" not in refused.headers
    assert api.request("GET", "/v1/files", headers={"origin": origin}).status_code == 403
    preflight = {"origin": origin, "access-control-request-method": "POST"}
    asked = api.request("OPTIONS", "/v1/chat/completions", headers=preflight)
    assert (asked.status_code, "access-control-allow-origin" in asked.headers) == (400, False)
    assert api.app.journal.last == before


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:5173"])
def test_pages_of_this_machine_may_call_the_api(api: Any, origin: str) -> None:
    answered = api.post("/v1/chat/completions", CHAT, headers={"origin": origin})
    assert (answered.status_code, answered.headers["access-control-allow-origin"]) == (200, origin)


def test_cors_names_the_origins(make_api: Any) -> None:
    named = make_api(cors=("https://app.example",))
    for origin, status in (("https://app.example", 200), ("http://localhost:3000", 403)):
        assert named.post("/v1/chat/completions", CHAT, headers={"origin": origin}).status_code == status
    anything = make_api(cors=("*",)).post("/v1/chat/completions", CHAT, headers={"origin": "http://evil.example"})
    assert (anything.status_code, anything.headers["access-control-allow-origin"]) == (200, "*")
    with pytest.raises(ConfigError, match=r"cors 'app\.example' is no origin"):
        make_config(None, {"cors": ("app.example",)})


REBOUND = "evil.example:8000"


@pytest.mark.parametrize(
    "headers", [{"user-agent": MOZILLA}, {"sec-fetch-site": "same-origin"}, {"origin": f"http://{REBOUND}"}]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files", "/v1/models"])
def test_a_page_whose_name_resolves_to_this_machine_sees_nothing(api: Any, path: str, headers: dict[str, str]) -> None:
    refused = api.request("GET", path, headers={"host": REBOUND, **headers})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "foreign_origin")


def test_a_public_name_is_one_of_ours_where_a_key_or_an_option_says_so(make_api: Any) -> None:
    headers = {"host": REBOUND, "user-agent": MOZILLA}
    assert make_api(cors=(f"https://{REBOUND}",)).request("GET", "/v1/files", headers=headers).status_code == 200
    keyed = make_api(api_key=("secret",)).request("GET", "/v1/files", headers={**headers, "authorization": "Bearer secret"})
    assert keyed.status_code == 200
    assert make_api().request("GET", "/v1/files", headers={"host": REBOUND, "user-agent": "curl/8"}).status_code == 200
    assert make_api().request("GET", "/health", headers=headers).status_code == 200
