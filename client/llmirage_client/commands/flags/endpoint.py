"""Options that say where requests go and what is in each of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.flags.sections import flag, together

if TYPE_CHECKING:
    from llmirage_client.targets.endpoint import Endpoint
    from llmirage_client.workload.session import Workload

_SECTION = "Endpoint"
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)


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
        default="localhost:8000",
        show_default=True,
        metavar="URL",
        help="The endpoint: host:port or a full URL, with or without /v1.",
    ),
    flag(
        _SECTION,
        "--model",
        "-m",
        metavar="NAME",
        help="Model for requests that name none.  [default: the only one the endpoint lists]",
    ),
    flag(_SECTION, "--api-key", metavar="KEY", help="Sent as 'Authorization: Bearer KEY'."),
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
        type=click.Choice(["chat", "completions"]),
        help="API to speak.  [default: chat; completions for token ids, where the endpoint is llmirage or vLLM]",
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
        "--session-header",
        metavar="NAME",
        help="Send the conversation's id under this name instead of X-Correlation-ID.",
    ),
    flag(_SECTION, "--use-legacy-max-tokens", is_flag=True, help="Send max_tokens instead of max_completion_tokens."),
)


def endpoint_of(settings: dict[str, Any]) -> Endpoint:
    """Raises click.UsageError for a URL that is none."""
    from llmirage_client.targets.address import normalise_url
    from llmirage_client.targets.endpoint import Endpoint

    try:
        url = normalise_url(settings["url"])
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return Endpoint(url, settings["api_key"], settings["headers"], settings["request_timeout_seconds"])


def endpoint_fields(workload: Workload, settings: dict[str, Any]) -> dict[str, Any]:
    """Fields of RunOptions. Raises click.UsageError for what makes no sense together."""
    if settings["endpoint_type"] == "completions" and any(
        s.mode not in ("tokens", "verbatim") for s in workload.sessions.values()
    ):
        raise click.UsageError(
            f"--endpoint-type completions cannot carry the messages of a {workload.format} file: use chat"
        )
    return {
        "model": settings["model"] or "",
        "endpoint_type": settings["endpoint_type"],
        "streaming": settings["streaming"],
        "extra_inputs": settings["extra_inputs"],
        "use_legacy_max_tokens": settings["use_legacy_max_tokens"],
        "session_header": settings["session_header"],
    }
