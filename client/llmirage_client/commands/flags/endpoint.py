"""Options that say where requests go and what is in each of them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from llmirage_client.commands.flags.sections import flag, together

if TYPE_CHECKING:
    from llmirage_client.targets.endpoint import EndpointSettings
    from llmirage_client.targets.spread import UrlStrategy
    from llmirage_client.workload.session import Workload

_SECTION = "Endpoint"
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)
_FILE = click.Path(exists=True, dir_okay=False)
_MODES = (  # those of load.context_modes, which is not loaded for a help text
    "deltas_without_responses",
    "deltas_with_responses",
    "message_array_with_responses",
    "server_state",
    "server_conversation",
)
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


def _urls(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> str:
    """One text, with commas between several."""
    return ",".join(values)


def _path(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    if "://" in value or any(not "!" <= character <= "~" for character in value):
        raise click.BadParameter(f"{value!r} is not a path on the host, such as /v2/chat")
    return "/" + value.lstrip("/")


def _header(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Each "Name: value" as a pair."""
    pairs = []
    for text in values:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter(f"{text!r} is not of the form 'Name: value'")
        pairs.append((name.strip(), value.strip()))
    return tuple(pairs)


def _extra_inputs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Each key:value, or a JSON object, merged in order. A value that is JSON (a number, true, [..]) is taken as that."""
    merged: dict[str, Any] = {}
    for text in values:
        if text.lstrip().startswith("{"):
            try:
                merged |= json.loads(text)
            except ValueError as error:
                raise click.BadParameter(f"{text!r} is not a JSON object: {error}") from None
            continue
        key, colon, value = text.partition(":")
        if not colon or not key:
            raise click.BadParameter(f"{text!r} is neither key:value nor a JSON object")
        try:
            merged[key] = json.loads(value)
        except ValueError:
            merged[key] = value
    return merged


endpoint_flags = together(
    flag(
        _SECTION,
        "--url",
        "-u",
        multiple=True,
        callback=_urls,
        default=("localhost:8000",),
        show_default=True,
        metavar="URL",
        help="The endpoint: host:port or a full URL, with or without /v1. Given several times, or with commas, the load is "
        "spread over all.",
    ),
    flag(
        _SECTION,
        "--url-strategy",
        type=click.Choice(["round_robin", "sticky"]),
        help="Spread over several URLs: each request to the next, or each conversation with its forks to one.  "
        "[default: round_robin; sticky where the server keeps the history]",
    ),
    flag(
        _SECTION,
        "--model",
        "-m",
        metavar="NAME",
        help="Model for requests that name none.  [default: the only one the endpoint lists]",
    ),
    flag(
        _SECTION,
        "--api-key",
        metavar="KEY",
        help="Sent as 'Authorization: Bearer KEY', to the Messages API as 'x-api-key: KEY'.  [default: OPENAI_API_KEY or "
        "ANTHROPIC_API_KEY of the environment, over https or to this machine only]",
    ),
    flag(
        _SECTION,
        "--header",
        "-H",
        "headers",
        multiple=True,
        callback=_header,
        metavar="NAME:VALUE",
        help="A header for every request; may be repeated.",
    ),
    flag(
        _SECTION,
        "--extra-inputs",
        multiple=True,
        callback=_extra_inputs,
        metavar="KEY:VALUE|JSON",
        help="Fields added to every request body, below the file's own `extra`; may be repeated.",
    ),
    flag(
        _SECTION,
        "--endpoint-type",
        type=click.Choice(["chat", "completions", "responses", "messages", "raw"]),
        help="API to speak: messages is Anthropic's, raw sends the file's whole bodies to --endpoint-path.  [default: chat; "
        "completions for token ids, where the endpoint is llmirage or vLLM]",
    ),
    flag(
        _SECTION,
        "--endpoint-path",
        "--custom-endpoint",
        "--endpoint",
        "endpoint_path",
        callback=_path,
        metavar="PATH",
        help="Path on the host instead of the API's own, such as /v2/chat.",
    ),
    flag(
        _SECTION,
        "--context-mode",
        type=click.Choice(_MODES),
        metavar="MODE",
        help="How turns become requests, over what the file says: deltas_without_responses, deltas_with_responses, "
        "message_array_with_responses, server_state or server_conversation (docs/context-modes.md).  [default: the file's]",
    ),
    flag(
        _SECTION,
        "--tool-results",
        type=click.Choice(["authored", "matched", "fitted"]),
        help="The file's tool results after a live reply: as they are, with the ids of its calls, or exactly one for each "
        "call.  [default: authored; fitted for responses and messages]",
    ),
    flag(_SECTION, "--streaming/--no-streaming", default=True, show_default=True, help="Ask for streamed replies."),
    flag(
        _SECTION,
        "--request-timeout-seconds",
        type=_ABOVE_ZERO,
        default=600.0,
        show_default=True,
        metavar="S",
        help="Give a request up after so long; it is recorded as failed.",
    ),
    flag(
        _SECTION,
        "--connect-timeout-seconds",
        type=_ABOVE_ZERO,
        default=30.0,
        show_default=True,
        metavar="S",
        help="Give up connecting after so long, TLS included.",
    ),
    flag(
        _SECTION,
        "--retries",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help="Send a request up to N more times after a failed connection or HTTP 408, 409, 429, 5xx; lost time counts.",
    ),
    flag(_SECTION, "--tls-ca", type=_FILE, metavar="FILE", help="Trust these certificate authorities (PEM) and no others."),
    flag(_SECTION, "--tls-insecure", is_flag=True, help="Trust any certificate."),
    flag(_SECTION, "--tls-cert", type=_FILE, metavar="FILE", help="Our certificate (PEM), for endpoints that ask for one."),
    flag(_SECTION, "--tls-key", type=_FILE, metavar="FILE", help="Its key, where --tls-cert has none."),
    flag(
        _SECTION,
        "--session-header",
        metavar="NAME",
        help="Send the conversation's id under this name instead of X-Correlation-ID.",
    ),
    flag(_SECTION, "--use-legacy-max-tokens", is_flag=True, help="Send max_tokens instead of max_completion_tokens."),
)


def endpoint_of(settings: dict[str, Any]) -> EndpointSettings:
    """Raises click.UsageError for what cannot be an endpoint."""
    from llmirage_client.load.context_modes import ON_SERVER
    from llmirage_client.targets.address import normalise_url
    from llmirage_client.targets.endpoint import EndpointSettings
    from llmirage_client.targets.tls import Tls

    try:
        urls = tuple(normalise_url(url) for url in settings["url"].split(","))
        if settings["tls_key"] and not settings["tls_cert"]:
            raise ValueError("--tls-key: a key alone is nothing to show, give --tls-cert too")
        tls = Tls(settings["tls_ca"], settings["tls_insecure"], settings["tls_cert"], settings["tls_key"])
        tls.context()
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    on_server = settings["context_mode"] in ON_SERVER
    strategy: UrlStrategy = settings["url_strategy"] or ("sticky" if on_server else "round_robin")
    if on_server and len(urls) > 1 and strategy != "sticky":
        raise click.UsageError(
            f"--context-mode {settings['context_mode']} needs --url-strategy sticky: one server keeps the history"
        )
    return EndpointSettings(
        urls=urls,
        api_key=settings["api_key"] or _key_of_environment(urls, settings["endpoint_type"] == "messages"),
        api=settings["endpoint_type"] or "chat",
        headers=settings["headers"],
        timeout_s=settings["request_timeout_seconds"],
        connect_timeout_s=settings["connect_timeout_seconds"],
        retries=settings["retries"],
        url_strategy=strategy,
        keeps_conversations=settings["context_mode"] == "server_conversation",
        tls=tls,
    )


def endpoint_fields(workload: Workload, settings: dict[str, Any]) -> dict[str, Any]:
    """Fields of RunOptions. Raises click.UsageError for what makes no sense together."""
    from llmirage_client.load.context_modes import ON_SERVER

    kind = settings["endpoint_type"]
    if kind == "raw":
        if settings["endpoint_path"] is None:
            raise click.UsageError("--endpoint-type raw needs --endpoint-path: there is no usual path")
        if any(session.mode != "verbatim" for session in workload.sessions.values()):
            raise click.UsageError(
                f"--endpoint-type raw sends whole request bodies, which a {workload.format} file does not have: take chat, "
                "completions, responses or messages; --endpoint-path goes with each of them"
            )
    if kind == "completions":
        _check_prompts(workload)
    if settings["context_mode"] in ON_SERVER and kind != "responses":
        raise click.UsageError(
            f"--context-mode {settings['context_mode']} needs --endpoint-type responses: only this API keeps histories"
        )
    return {
        "model": settings["model"] or "",
        "endpoint_type": kind,
        "endpoint_path": settings["endpoint_path"],
        "tool_results": settings["tool_results"],
        "streaming": settings["streaming"],
        "extra_inputs": settings["extra_inputs"],
        "use_legacy_max_tokens": settings["use_legacy_max_tokens"],
        "session_header": settings["session_header"],
    }


def _check_prompts(workload: Workload) -> None:
    """Raises click.UsageError that names every turn which no prompt of text can carry."""
    from llmirage_client.targets.endpoints.completions import CompletionsEndpoint
    from llmirage_client.workload.session import Problem, WorkloadError
    from llmirage_shared.chat_template import ChatTemplateError

    endpoint = CompletionsEndpoint()
    problems = []
    for session in workload.sessions.values():
        for index, turn in enumerate(session.turns):
            try:
                endpoint.items(turn.messages)
            except ChatTemplateError as error:
                problems.append(Problem(str(error), session.line, f"turns.{index}.messages"))
    if problems:
        raise click.UsageError(str(WorkloadError(workload.path, problems)))


def in_context_mode_of(workload: Workload, settings: dict[str, Any]) -> Workload:
    """The workload in the mode that the command line asks for. Raises click.UsageError where it has no such choice."""
    from llmirage_client.load.context_modes import in_context_mode

    if settings["context_mode"] is None:
        return workload
    try:
        return in_context_mode(workload, settings["context_mode"])
    except ValueError as error:
        raise click.UsageError(f"--context-mode {settings['context_mode']}: {error}") from None


def _key_of_environment(urls: tuple[str, ...], messages: bool) -> str | None:
    """A key that was not given for this run goes only where nobody can read it on the way."""
    private = all(url.startswith("https:") or urlsplit(url).hostname in _THIS_MACHINE for url in urls)
    return os.environ.get("ANTHROPIC_API_KEY" if messages else "OPENAI_API_KEY") if private else None
