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
        "Endpoint: host:port or a full URL, with or without /v1; several, repeated or separated by commas, share the load.",
        short="u",
        metavar="URL",
        read=lambda urls: urls if isinstance(urls, str) else ",".join(urls),
        usual=True,
    )
    url_strategy: UrlStrategy | None = _endpoint(
        None,
        "How several URLs share the load: round robin by request, or one URL for a conversation and its forks.",
        unset="round_robin; sticky if the server keeps the history",
    )
    api_key: str | None = _endpoint(
        None,
        "API key, sent as 'Authorization: Bearer KEY', or as 'x-api-key: KEY' to the Messages API.",
        metavar="KEY",
        unset="OPENAI_API_KEY or ANTHROPIC_API_KEY from the environment, for https and localhost only",
        usual=True,
    )
    headers: tuple[tuple[str, str], ...] = _endpoint(
        (),
        "Add this header to every request; may be repeated.",
        flag="header",
        short="H",
        metavar="NAME:VALUE",
        read=_headers,
    )
    context_mode: ContextModeName | None = _endpoint(
        None,
        "How turns become requests; overrides the file: deltas_without_responses, deltas_with_responses, "
        "message_array_with_responses, server_state or server_conversation (docs/context-modes.md).",
        metavar="MODE",
        unset="the file's",
    )
    request_timeout_seconds: float = _endpoint(
        600.0, "Time limit of a request; after it the request is recorded as failed.", metavar="S", above=0, infinite=True
    )
    connect_timeout_seconds: float = _endpoint(
        30.0, "Time limit of connecting, TLS handshake included.", metavar="S", above=0, infinite=True
    )
    preflight: bool = _endpoint(
        True, "Ask the endpoint before the load starts whether it answers and knows the model and the key."
    )
    retries: int = _endpoint(
        0,
        "Retry a request up to N times after a connection failure or HTTP 408, 409, 429, 5xx; retries count in its latency.",
        least=0,
    )
    http2: bool = switch(
        ENDPOINT, "Speak HTTP/2: as negotiated with https, at once with http. Costs this client far more CPU (docs/load.md)."
    )
    tls_ca: str | None = _endpoint(None, "Trust only these certificate authorities (PEM).", metavar="FILE", check=is_no_file)
    tls_insecure: bool = switch(ENDPOINT, "Do not verify the server's certificate.")
    tls_cert: str | None = _endpoint(None, "Client certificate (PEM), for mutual TLS.", metavar="FILE", check=is_no_file)
    tls_key: str | None = _endpoint(
        None,
        "Key of the client certificate, if --tls-cert has none.",
        metavar="FILE",
        check=is_no_file,
        needs="{} needs {tls_cert}, the certificate of that key",
    )
