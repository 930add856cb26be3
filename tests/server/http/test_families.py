"""Families of endpoints: each can be left out, and what is left answers as before."""

from collections.abc import Callable
from typing import Any

import pytest

from llmirage_server.app import FAMILIES, Family, LlmirageApp

CALLS: dict[Family, tuple[str, str]] = {
    "openai": ("GET", "/v1/models"),
    "stored": ("GET", "/v1/batches"),
    "anthropic": ("GET", "/v1/messages/batches"),
    "engines": ("GET", "/version"),
    "admin": ("GET", "/llmirage/journal"),
}


def paths(app: LlmirageApp, *families: Family) -> set[str]:
    return {route.path for route in app.family_routes(families)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_can_be_left_out(make_api: Callable[..., Any], family: Family) -> None:
    api = make_api()
    rest = [other for other in FAMILIES if other != family]
    assert paths(api.app, family) | paths(api.app, *rest) == paths(api.app, *FAMILIES)
    api.app.make_routes()
    api.app.router.routes = api.app.family_routes(rest)
    status = {name: api.request(*CALLS[name]).status_code for name in FAMILIES}
    assert status == {name: 404 if name == family else 200 for name in FAMILIES}


def test_files_of_both_apis_share_a_path_and_each_works_alone(make_api: Callable[..., Any]) -> None:
    api = make_api()
    given: list[tuple[list[Family], dict[str, str], str]] = [
        (["stored", "anthropic"], {"x-api-key": "k"}, "next_page"),
        (["stored", "anthropic"], {}, "object"),
        (["anthropic"], {}, "next_page"),
        (["stored"], {"x-api-key": "k"}, "object"),
    ]
    api.app.make_routes()
    for families, headers, key in given:
        api.app.router.routes = api.app.family_routes(families)
        assert key in api.request("GET", "/v1/files", headers=headers).json()
