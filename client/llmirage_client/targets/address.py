"""From what a user types after --url to the root of an API."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_ENDPOINTS = re.compile(r"/(chat/completions|completions|responses|models|embeddings)$")


def normalise_url(url: str) -> str:
    """The API root, such as http://localhost:8000/v1, without a slash at its end.

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
        raise ValueError(f"{url!r} has the scheme {parts.scheme!r}: only http and https are spoken here")
    if not host or re.search(r"[\s\x00-\x1f<>\"{}|\\^`]", text):
        raise ValueError(f"{url!r} is not a URL: give host:port or http://host:port")
    if port == 0:
        raise ValueError(f"{url!r} has port 0, on which nothing can listen")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{parts.hostname!r}: credentials in the URL are not supported, use --api-key or -H")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a query or fragment, which an API root cannot have")
    path = _ENDPOINTS.sub("", parts.path.rstrip("/")).rstrip("/")
    if not re.search(r"/v\d+\w*$", path):
        path += "/v1"
    return f"{parts.scheme.lower()}://{parts.netloc}{path}"
