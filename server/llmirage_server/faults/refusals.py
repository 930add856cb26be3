"""Faults before the reply: errors instead of it, rate limits, and time in which nothing happens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

from llmirage_server.faults.fault import InjectedFault, duration, parameter
from llmirage_shared.settings import ConfigError
from llmirage_shared.wire.errors import INVALID_REQUEST, ApiError

# What the OpenAI API says with a status: type, code, message. https://platform.openai.com/docs/guides/error-codes
_SAID: dict[int, tuple[str, str | None, str]] = {
    401: (INVALID_REQUEST, "invalid_api_key", "Incorrect API key provided."),
    404: (INVALID_REQUEST, "model_not_found", "The model does not exist or you do not have access to it."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached. Please try again later."),
    500: ("server_error", None, "The server had an error while processing your request. Sorry about that!"),
    503: ("server_error", "service_unavailable", "The engine is currently overloaded, please try again later."),
    529: ("server_error", "overloaded", "Overloaded."),
}


def _text_problem(text: str | None) -> str | None:
    return None if text is None or text.isprintable() else "must be of printable characters"


@dataclass(frozen=True, kw_only=True)
class StatusFault(InjectedFault):
    """An error response with this status, in the form of the API, instead of the reply."""

    kind = "status"
    example = "{kind: status, status: 429, retry_after_s: 2, times: 2}"

    status: int = parameter(500, "HTTP status.", least=400, most=599)
    retry_after_s: float | None = parameter(
        None, "Retry-After of the response, in seconds of the client's clock.", unset="none", least=0, most=86_400
    )
    message: str | None = parameter(None, "The error's message.", unset="that of the OpenAI API", check=_text_problem)
    code: str | None = parameter(None, "The error's code.", unset="that of the OpenAI API", check=_text_problem)

    @property
    def refusal(self) -> ApiError:
        return error_of_status(self.status, self.message, self.code, self.retry_after_s)


@dataclass(frozen=True, kw_only=True)
class AddedTtft(InjectedFault):
    """The request reaches the cluster so much later: the time to the first token grows by it."""

    kind = "ttft"
    example = "{kind: ttft, added_s: 5, probability: 0.1}"

    added_s: float = duration(2.0, "Seconds of the cluster's time.")

    @property
    def hold_s(self) -> float:
        return self.added_s


@dataclass(frozen=True, kw_only=True)
class RateLimitFault(InjectedFault):
    """Token buckets for each API key, with x-ratelimit headers and 429: as --rate-limit, for the requests that match."""

    kind = "rate_limit"
    example = "{kind: rate_limit, requests_per_min: 60, model: gpt-4o}"

    requests_per_min: int | None = parameter(None, "Requests per minute and key.", unset="no limit", least=1)
    tokens_per_min: int | None = parameter(
        None, "Prompt tokens plus max_tokens, per minute and key.", unset="no limit", least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if problems := list(self._problems()):
            raise ConfigError(problems)

    def _problems(self) -> Iterator[str]:
        if self.requests_per_min is None and self.tokens_per_min is None:
            yield "needs requests_per_min or tokens_per_min"

    @property
    def limits(self) -> tuple[int | None, int | None]:
        return self.requests_per_min, self.tokens_per_min


def error_of_status(status: int, message: str | None, code: str | None, retry_after_s: float | None = None) -> ApiError:
    """The error that the OpenAI API sends with a status. retry_after_s: rounded up to whole seconds in Retry-After."""
    kind, usual_code, usual = _SAID.get(status, (INVALID_REQUEST if status < 500 else "server_error", None, _phrase(status)))
    headers = []
    if retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(retry_after_s)))
        headers.append((b"retry-after-ms", b"%d" % math.ceil(retry_after_s * 1000)))
    return ApiError(message or usual, status=status, type=kind, code=code or usual_code, headers=headers)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase + "."
    except ValueError:
        return f"Status {status}."
