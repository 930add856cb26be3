"""The endpoint that a run asks, and what its API cannot say."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from llmirage_client.load.context_modes import ON_SERVER, in_context_mode
from llmirage_client.targets.address import normalise_url
from llmirage_client.targets.endpoint import EndpointSettings, Tls
from llmirage_client.targets.endpoints.completions import CompletionsEndpoint
from llmirage_client.targets.httpx_transport import proxy_of
from llmirage_client.workload.session import Problem, Workload, WorkloadError
from llmirage_shared.chat_template import ChatTemplateError
from llmirage_shared.settings import ConfigError

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


def endpoint_of(settings: Mapping[str, Any]) -> EndpointSettings:
    """Raises ConfigError for what cannot be an endpoint."""
    mode, api = settings["context_mode"], settings["endpoint_type"]
    certificate, key = settings["tls_cert"], settings["tls_key"]
    try:
        urls = tuple(normalise_url(url) for url in settings["url"].split(","))
        proxies = {url: proxy for url in urls if (proxy := proxy_of(url)) is not None}
        tls = Tls(settings["tls_ca"], settings["tls_insecure"], certificate, key)
        if certificate or not key:  # else the contradiction is told with all others
            tls.context()
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    return EndpointSettings(
        urls=urls,
        api_key=settings["api_key"] or _key_of_environment(urls, proxies, api == "messages"),
        api=api or "chat",
        headers=settings["headers"],
        timeout_s=settings["request_timeout_seconds"],
        connect_timeout_s=settings["connect_timeout_seconds"],
        retries=settings["retries"],
        url_strategy=settings["url_strategy"] or ("sticky" if mode in ON_SERVER else "round_robin"),
        preflight=settings["preflight"],
        keeps_conversations=mode == "server_conversation",
        tls=tls,
        http2=settings["http2"],
        proxies=proxies,
    )


def for_endpoint(workload: Workload, settings: Mapping[str, Any]) -> Workload:
    """The workload in the context mode that was asked for. Raises ConfigError where the API cannot say what is in it."""
    mode, api = settings["context_mode"], settings["endpoint_type"]
    if api == "raw" and any(session.mode != "verbatim" for session in workload.sessions.values()):
        raise ConfigError(
            [
                f"--endpoint-type raw sends whole request bodies, which a {workload.format} file does not have: take chat, "
                "completions, responses or messages; --endpoint-path goes with each of them"
            ]
        )
    if api == "completions":
        _check_prompts(workload)
    if mode is None:
        return workload
    try:
        return in_context_mode(workload, mode)
    except ValueError as error:
        raise ConfigError([f"--context-mode {mode}: {error}"]) from None


def _check_prompts(workload: Workload) -> None:
    """Raises ConfigError that names every turn which no prompt of text can carry."""
    endpoint = CompletionsEndpoint()
    problems = []
    for session in workload.sessions.values():
        for index, turn in enumerate(session.turns):
            try:
                endpoint.items(turn.messages)
            except ChatTemplateError as error:
                problems.append(Problem(str(error), session.line, f"turns.{index}.messages"))
    if problems:
        raise ConfigError([str(WorkloadError(workload.path, problems))])


def _key_of_environment(urls: tuple[str, ...], proxied: Collection[str], messages: bool) -> str | None:
    """A key that was not given for this run is sent only where it cannot be read on the way."""
    here = {url for url in urls if urlsplit(url).hostname in _THIS_MACHINE and url not in proxied}
    private = all(url.startswith("https:") or url in here for url in urls)
    return os.environ.get("ANTHROPIC_API_KEY" if messages else "OPENAI_API_KEY") if private else None
