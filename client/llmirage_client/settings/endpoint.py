"""Settings of the endpoint: its address and connection, its API, the form of requests."""

# ruff: noqa: RUF009  what declares a setting is dataclasses.field with a fixed form of metadata

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from llmirage_client.settings import ContextModeName, EndpointName, SessionPrefix, ToolResults, UrlStrategy
from llmirage_client.settings.workload import WORKLOAD
from llmirage_shared.settings import is_no_file, switch, under

ENDPOINT = "Endpoint"
_endpoint, _workload = under(ENDPOINT), under(WORKLOAD)


def _path(text: str) -> str:
    """Return a path on the host. Raises ValueError."""
    if "://" in text or any(not "!" <= character <= "~" for character in text):
        raise ValueError(f"{text!r} is not a path on the host, such as /v2/chat")
    return "/" + text.lstrip("/")


def _headers(values: Any) -> tuple[tuple[str, str], ...]:
    """Return each "Name: value" as a pair. Raises ValueError."""
    if isinstance(values, Mapping):
        return tuple((str(name), str(value)) for name, value in values.items())
    pairs = []
    for text in values:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"{text!r} is not of the form 'Name: value'")
        pairs.append((name.strip(), value.strip()))
    return tuple(pairs)


def _extra_inputs(values: Any) -> dict[str, Any]:
    """Merge key:value texts and JSON objects, in order. A value that is JSON (a number, true, [..]) is taken as that."""
    if isinstance(values, Mapping):
        return dict(values)
    merged: dict[str, Any] = {}
    for text in values:
        if text.lstrip().startswith("{"):
            try:
                merged |= json.loads(text)
            except ValueError as error:
                raise ValueError(f"{text!r} is not a JSON object: {error}") from None
            continue
        key, colon, value = text.partition(":")
        if not colon or not key:
            raise ValueError(f"{text!r} is neither key:value nor a JSON object")
        try:
            merged[key] = json.loads(value)
        except ValueError:
            merged[key] = value
    return merged


@dataclass(frozen=True, kw_only=True)
class PromptSettings:
    """Settings of prompts that are given by their length."""

    session_prefix: SessionPrefix = _workload(
        "extend",
        "Prompts given as token counts: each extends the session's previous prompt, or shares no prefix with it.",
        study=True,
    )
    tokenizer: str | None = _workload(
        None,
        "Folder or Hugging Face name of the endpoint's tokenizer, for prompts of exact length.",
        unset="the built-in one, which `llmirage serve` uses",
        flag=True,
    )


@dataclass(frozen=True, kw_only=True)
class RequestSettings(PromptSettings):
    """Settings of the API, and of what requests have besides prompts."""

    context_mode: ContextModeName | None = _endpoint(
        None,
        "How turns become requests; overrides the file: deltas_without_responses, deltas_with_responses, "
        "message_array_with_responses, server_state or server_conversation (docs/context-modes.md).",
        metavar="MODE",
        unset="the file's",
    )
    endpoint_type: EndpointName | None = _endpoint(
        None,
        "API to use: messages is Anthropic's; raw sends the file's bodies unchanged to --endpoint-path.",
        unset="chat; completions for token ids, if the endpoint is llmirage or vLLM",
        usual="run",
        flag=True,
    )
    tool_results: ToolResults | None = _endpoint(
        None,
        "How the file's tool results follow a live reply: unchanged, with the ids of its tool calls, or exactly one "
        "per call.",
        unset="authored; fitted for responses and messages",
    )
    streaming: bool = _endpoint(True, "Request streamed replies.", carried=True)
    extra_inputs: Mapping[str, Any] = _endpoint(
        {},
        "Field to add to every request body; the file's `extra` overrides it; may be repeated.",
        metavar="KEY:VALUE|JSON",
        read=_extra_inputs,
        flag=True,
    )
    use_legacy_max_tokens: bool = switch(ENDPOINT, "Send max_tokens instead of max_completion_tokens.", carried=True)


def _session_headers(value: Any) -> tuple[str, ...]:
    """Return the kinds of headers. Raises ValueError."""
    parts = [value] if isinstance(value, str) else value
    kinds = tuple(kind.strip() for part in parts for kind in str(part).split(","))
    if unknown := [kind for kind in kinds if kind not in ("dynamo", "smg")]:
        raise ValueError(f"{unknown[0]!r} is neither dynamo nor smg")
    return kinds


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """Settings of the endpoint's address, and of connections to it."""

    url: tuple[str, ...] = _endpoint(
        ("localhost:8000",),
        "Endpoint: host:port or a full URL, with or without /v1; several, repeated or separated by commas, share the load.",
        short="u",
        metavar="URL",
        read=lambda urls: tuple(part for url in urls for part in url.split(",")),
        usual=True,
    )
    url_strategy: UrlStrategy | None = _endpoint(
        None,
        "How several URLs share the load: one URL for a conversation and its forks (sticky), or round robin by request.",
        unset="sticky",
        carried=True,
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
        spelled="header",
        short="H",
        metavar="NAME:VALUE",
        read=_headers,
        flag=True,
    )
    request_timeout_seconds: float = _endpoint(
        600.0,
        "Time limit of a request; after it the request is recorded as failed.",
        metavar="S",
        above=0,
        infinite=True,
        carried=True,
    )
    connect_timeout_seconds: float = _endpoint(
        30.0, "Time limit of connecting, TLS handshake included.", metavar="S", above=0, infinite=True
    )
    max_reply_mib: int = _endpoint(
        64,
        "Memory that one reply may take while it is read; longer ones are recorded as failed.",
        metavar="MIB",
        least=1,
        most=65536,
    )
    preflight: bool = _endpoint(
        True, "Ask the endpoint before the load starts whether it answers and knows the model and the key."
    )
    fail_on_mismatch: bool = switch(
        ENDPOINT,
        "Exit with status 3 if replies are not what was asked: other lengths, another model (docs/load.md).",
        flag=True,
    )
    verify_cache: bool = switch(
        ENDPOINT,
        "Compare the prefix hits that this run's prompts allow with those that the endpoint had, and say what is wrong "
        "(docs/load.md).",
    )
    retries: int = _endpoint(
        0,
        "Retry a request up to N times after a connection failure or HTTP 408, 409, 429, 5xx; retries count in its latency.",
        least=0,
        flag=True,
    )
    http2: bool = switch(
        ENDPOINT, "Speak HTTP/2: as negotiated with https, at once with http. Costs this client far more CPU (docs/load.md)."
    )
    tls_ca: str | None = _endpoint(None, "Trust only these certificate authorities (PEM).", metavar="FILE", check=is_no_file)
    tls_insecure: bool = switch(ENDPOINT, "Do not verify the server's certificate.", flag=True)
    tls_cert: str | None = _endpoint(None, "Client certificate (PEM), for mutual TLS.", metavar="FILE", check=is_no_file)
    tls_key: str | None = _endpoint(
        None,
        "Key of the client certificate, if tls_cert has none.",
        metavar="FILE",
        check=is_no_file,
        needs="{} needs {tls_cert}, the certificate of that key",
    )
    model: str | None = _endpoint(
        None,
        "Model of requests that do not name one.",
        aliases=("model_names",),
        short="m",
        unset="the only one the endpoint lists",
        usual=True,
    )
    endpoint_path: str | None = _endpoint(
        None,
        "Path to use instead of the API's own, such as /v2/chat.",
        aliases=("custom_endpoint", "endpoint"),
        metavar="PATH",
        read=_path,
        carried=True,
    )
    session_header: str | None = _endpoint(
        None, "Header for the conversation's id, instead of X-Correlation-ID.", carried=True
    )
    session_headers: tuple[str, ...] = _endpoint(
        (),
        "Headers of gateways that name the session, too: dynamo (X-Dynamo-Session-ID and -Parent-Session-ID), smg "
        "(X-SMG-Routing-Key), both with a comma between them.",
        metavar="dynamo,smg",
        read=_session_headers,
        carried=True,
    )


_ENDPOINTS = re.compile(r"/(chat/completions|completions|responses|models|embeddings)$")


def normalise_url(url: str) -> str:
    """Return the API root, such as http://localhost:8000/v1, without a slash at its end.

    Takes host:port or a full URL, with or without scheme (http), with or without /v1, also a whole endpoint's URL. Another
    path than /v1 is kept as it is, because gateways mount APIs where they like: https://host/openai/v2 stays, and
    https://host/openai becomes https://host/openai/v1. Raises ValueError, in one sentence, for what cannot be one.
    """
    text = url.strip()
    if not text:
        raise ValueError("the URL is empty: give host:port or http://host:port")
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme.lower() not in ("http", "https"):
        raise ValueError(f"{url!r} has the scheme {parts.scheme!r}: only http and https are supported")
    if not host or re.search(r"[\s\x00-\x1f<>\"{}|\\^`]", text):
        raise ValueError(f"{url!r} is not a URL: give host:port or http://host:port")
    if port == 0:
        raise ValueError(f"{url!r} has port 0, which is not a valid port")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{parts.hostname!r}: credentials in the URL are not supported, use --api-key or -H")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a query or fragment, which is not allowed in an API root")
    path = _ENDPOINTS.sub("", parts.path.rstrip("/")).rstrip("/")
    if not re.search(r"/v\d+\w*$", path):
        path += "/v1"
    return f"{parts.scheme.lower()}://{parts.netloc}{path}"
