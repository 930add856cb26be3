"""The endpoint of a run."""

from __future__ import annotations

import os
from collections.abc import Collection
from urllib.parse import urlsplit

from llmirage_client.settings.contradictions import RunSettings
from llmirage_client.targets.address import normalise_url
from llmirage_client.targets.endpoint import EndpointSettings, Tls
from llmirage_client.targets.httpx_transport import proxy_of
from llmirage_shared.settings import ConfigError

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


def endpoint_of(settings: RunSettings) -> EndpointSettings:
    """Return the endpoint of the settings. Raises ConfigError for one that cannot be."""
    mode, api = settings.context_mode, settings.endpoint_type
    certificate, key = settings.tls_cert, settings.tls_key
    try:
        urls = tuple(normalise_url(url) for url in settings.url)
        proxies = {url: proxy for url in urls if (proxy := proxy_of(url)) is not None}
        tls = Tls(settings.tls_ca, settings.tls_insecure, certificate, key)
        if certificate or not key:  # else the contradiction is told with all others
            tls.context()
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    return EndpointSettings(
        urls=urls,
        api_key=settings.api_key or _key_of_environment(urls, proxies, api == "messages"),
        api=api or "chat",
        headers=settings.headers,
        timeout_s=settings.request_timeout_seconds,
        connect_timeout_s=settings.connect_timeout_seconds,
        most_reply_bytes=settings.max_reply_mib << 20,
        retries=settings.retries,
        url_strategy=settings.url_strategy or "sticky",
        preflight=settings.preflight,
        keeps_conversations=mode == "server_conversation",
        tls=tls,
        http2=settings.http2,
        proxies=proxies,
    )


def _key_of_environment(urls: tuple[str, ...], proxied: Collection[str], messages: bool) -> str | None:
    """Return the environment's key where nobody can read it on the way."""
    here = {url for url in urls if urlsplit(url).hostname in _THIS_MACHINE and url not in proxied}
    private = all(url.startswith("https:") or url in here for url in urls)
    return os.environ.get("ANTHROPIC_API_KEY" if messages else "OPENAI_API_KEY") if private else None
