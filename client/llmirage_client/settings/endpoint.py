"""Where requests go, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmirage_client.choices import ContextModeName, UrlStrategy
from llmirage_client.load.request_options import ENDPOINT
from llmirage_client.settings.places import is_no_file
from llmirage_shared.settings import switch, under

_endpoint = under(ENDPOINT)


def _headers(values: Any) -> tuple[tuple[str, str], ...]:
    """Each "Name: value" as a pair."""
    if isinstance(values, Mapping):
        return tuple((str(name), str(value)) for name, value in values.items())
    pairs = []
    for text in values:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"{text!r} is not of the form 'Name: value'")
        pairs.append((name.strip(), value.strip()))
    return tuple(pairs)


class ConnectionSettings:
    """url: one text, with commas between several."""

    url: str = _endpoint(
        ("localhost:8000",),
        "The endpoint: host:port or a full URL, with or without /v1. Given several times, or with commas, the load is "
        "spread over all.",
        short="u",
        metavar="URL",
        read=lambda urls: urls if isinstance(urls, str) else ",".join(urls),
    )
    url_strategy: UrlStrategy | None = _endpoint(
        None,
        "Spread over several URLs: each request to the next, or each conversation with its forks to one.",
        unset="round_robin; sticky where the server keeps the history",
    )
    api_key: str | None = _endpoint(
        None,
        "Sent as 'Authorization: Bearer KEY', to the Messages API as 'x-api-key: KEY'.",
        metavar="KEY",
        unset="OPENAI_API_KEY or ANTHROPIC_API_KEY of the environment, over https or to this machine only",
    )
    headers: tuple[tuple[str, str], ...] = _endpoint(
        (), "A header for every request; may be repeated.", flag="header", short="H", metavar="NAME:VALUE", read=_headers
    )
    context_mode: ContextModeName | None = _endpoint(
        None,
        "How turns become requests, over what the file says: deltas_without_responses, deltas_with_responses, "
        "message_array_with_responses, server_state or server_conversation (docs/context-modes.md).",
        metavar="MODE",
        unset="the file's",
    )
    request_timeout_seconds: float = _endpoint(
        600.0, "Give a request up after so long; it is recorded as failed.", metavar="S", above=0, infinite=True
    )
    connect_timeout_seconds: float = _endpoint(
        30.0, "Give up connecting after so long, TLS included.", metavar="S", above=0, infinite=True
    )
    retries: int = _endpoint(
        0,
        "Send a request up to N more times after a failed connection or HTTP 408, 409, 429, 5xx; lost time counts.",
        least=0,
    )
    tls_ca: str | None = _endpoint(
        None, "Trust these certificate authorities (PEM) and no others.", metavar="FILE", check=is_no_file
    )
    tls_insecure: bool = switch(ENDPOINT, "Trust any certificate.")
    tls_cert: str | None = _endpoint(
        None, "Our certificate (PEM), for endpoints that ask for one.", metavar="FILE", check=is_no_file
    )
    tls_key: str | None = _endpoint(
        None,
        "Its key, where --tls-cert has none.",
        metavar="FILE",
        check=is_no_file,
        needs="{}: a key alone is nothing to show, give {tls_cert} too",
    )
