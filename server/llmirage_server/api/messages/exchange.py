"""Errors and headers of the Messages API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmirage_server.api.exchange import Header, HttpExchange
from llmirage_shared.wire.errors import ApiError

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
                429: "rate_limit_error", 500: "api_error", 503: "overloaded_error", 529: "overloaded_error"}  # fmt: skip


class MessagesExchange(HttpExchange):
    """An exchange whose errors have Anthropic's form."""

    __slots__ = ()

    def api_headers(self) -> Sequence[Header]:
        return ((b"request-id", self.request_id),)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        return {**messages_error(error), "request_id": self.request_id.decode()}


def messages_error(error: ApiError) -> dict[str, Any]:
    """An error as the Messages API writes it."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error")
    message = error.message if error.param is None or error.param in error.message else f"{error.param}: {error.message}"
    return {"type": "error", "error": {"type": kind, "message": message}}
