"""From what a user types after --url to the root of an API, and what kind of endpoint is there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from llmirage_client.targets.fault import Fault
from llmirage_client.targets.wire_json import parse

if TYPE_CHECKING:
    from llmirage_client.targets.target import EndpointTarget
import re
from urllib.parse import urlsplit

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


PROBE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class EndpointInfo:
    """kind: llmirage and vllm take token ids as prompts of /completions. models: names it serves, in its order.

    max_model_len: the first model's context length in tokens, where it is told. error: why nothing could be learned.
    """

    kind: Literal["llmirage", "vllm", "other"] = "other"
    models: list[str] = field(default_factory=list)
    max_model_len: int | None = None
    error: str | None = None


async def probe(target: EndpointTarget, timeout_s: float = PROBE_TIMEOUT_S) -> EndpointInfo:
    """Ask for GET /models once.

    Never raises: an endpoint that does not answer properly is of kind "other", with no models.
    """
    try:
        async with asyncio.timeout(timeout_s):
            status, body = await target.get("/models")
    except TimeoutError:
        return EndpointInfo(error=f"no answer within {timeout_s:g} s")
    except Fault as error:
        return EndpointInfo(error=str(error))
    if status != 200:
        return EndpointInfo(error=f"HTTP {status}")
    try:
        value = parse(body)
    except ValueError:
        return EndpointInfo(error="the list of models is not JSON")
    data = value.get("data") if isinstance(value, dict) else None
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    models = [entry["id"] for entry in entries if isinstance(entry.get("id"), str)]
    owners = {entry.get("owned_by") for entry in entries}
    limits = [entry["max_model_len"] for entry in entries if isinstance(entry.get("max_model_len"), int)]
    kind: Literal["llmirage", "vllm", "other"] = (
        "llmirage" if "llmirage" in owners else "vllm" if "vllm" in owners else "other"
    )
    return EndpointInfo(kind, models, limits[0] if limits else None)
