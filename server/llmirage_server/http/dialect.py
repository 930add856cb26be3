"""Dialects: the API imitated where APIs differ. Each difference is a field here and a row of docs/dialects.md.

Read from the sources of vLLM 0.33 (vllm/entrypoints), SGLang 0.5.23 (sglang/srt/entrypoints) and TensorRT-LLM's
tensorrt_llm/serve. What an engine has beside OpenAI's API (endpoints, fields of requests) is there in every dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from starlette.types import Scope

from llmirage_shared.wire.errors import ApiError

DialectName = Literal["openai", "vllm", "sglang", "trtllm"]
ErrorForm = Callable[[ApiError, str], dict[str, Any]]  # by the path of the request

# Keys in the scope of a request that came to another vendor's path: its dialect, and the path.
DIALECT, ASKED_PATH = "llmirage.dialect", "llmirage.asked_path"

# Codes of errors that an engine's web framework finds, before its own code has the request.
_FRAMEWORK_CODES = frozenset(("missing_required_parameter", "invalid_type"))
_FEWEST_CACHED, _CACHE_STEP = 1024, 128  # tokens, by OpenAI's guide to prompt caching
_KINDS = {404: "NotFoundError", 500: "InternalServerError", 503: "ServiceUnavailableError"}
_UNAUTHORIZED: Mapping[str, Any] = {"error": "Unauthorized"}
_ROUTER_CODES = {"unknown_url": "Not Found", "method_not_supported": "Method Not Allowed"}


def _openai(error: ApiError, path: str = "") -> dict[str, Any]:
    return error.body()


def _of_framework(error: ApiError) -> dict[str, Any] | None:
    """Return the answer of FastAPI itself, or of the check of keys in front of it, in all three engines."""
    if error.code in _ROUTER_CODES:
        return {"detail": _ROUTER_CODES[error.code]}
    return dict(_UNAUTHORIZED) if error.status == 401 else None


def _info(error: ApiError) -> dict[str, Any]:
    """Return the fields that all three engines give an error; the code is the HTTP status."""
    if error.code in _FRAMEWORK_CODES:
        kind = HTTPStatus.BAD_REQUEST.phrase
    elif error.status in _KINDS or error.status == 400:
        kind = _KINDS.get(error.status, "BadRequestError")
    else:
        kind = HTTPStatus(error.status).phrase
    return {"message": error.message, "type": kind, "param": error.param, "code": error.status}


def _vllm(error: ApiError, path: str = "") -> dict[str, Any]:
    return _of_framework(error) or {"error": _info(error)}


def _flat(error: ApiError, path: str) -> dict[str, Any]:
    return _of_framework(error) or {"object": "error", **_info(error)}


def _sglang(error: ApiError, path: str) -> dict[str, Any]:
    """Only the Responses API has an envelope."""
    return _vllm(error, path) if path.startswith("/v1/responses") else _flat(error, path)


def _enveloped(error: ApiError) -> dict[str, Any]:
    return {"error": {"object": "error", **_info(error)}}


@dataclass(slots=True, frozen=True)
class Vendor:
    """The differences of a vendor's API with paths of its own (vendors.py).

    refused: the error for a request that its URL alone rules out. own_body: the body of a request in OpenAI's fields; raises
    ApiError. content_filters: chat and completions have verdicts of filters. model_card: an entry of the list of models, by
    name, time of creation and context length.
    """

    refused: Callable[[Scope], ApiError | None] | None = None
    own_body: Callable[[dict[str, Any], Scope], dict[str, Any]] | None = None
    content_filters: bool = False
    model_card: Callable[[str, int, int], dict[str, Any]] | None = None


OF_OPENAI = Vendor()


@dataclass(slots=True, frozen=True)
class Dialect:
    """The differences between servers that speak the same API."""

    name: DialectName
    strict: bool  # refuse what OpenAI refuses and engines take
    error: ErrorForm  # the object of an error response
    event_error: Callable[[ApiError], dict[str, Any]]  # in a stream
    chat_ends_with_token: bool  # the event of the last token has the finish reason; else one of its own
    named_tool_finish: str  # the finish reason of a reply with the call that `tool_choice` names
    owned_by: str  # in the list of models
    card_fields: tuple[str, ...]  # of a model there, beside OpenAI's
    bare_health: bool  # /health has no body
    reasoning_in_usage: bool  # `reasoning_tokens` stands in the usage itself, too
    sglext: bool  # answers `return_cached_tokens_details`
    obfuscation: bool = False  # pads the events of chat and Responses unless `include_obfuscation` is false
    vendor_caching: bool = False  # cached tokens are counted as OpenAI and Anthropic do, not as the radix tree has them
    vendor: Vendor = OF_OPENAI

    def cached(self, tokens: int) -> int:
        """Return how many tokens of a prompt the usage of OpenAI's APIs reports as cached, of those that the cluster has."""
        if not self.vendor_caching:
            return tokens
        return tokens // _CACHE_STEP * _CACHE_STEP if tokens >= _FEWEST_CACHED else 0


_CARD = ("root", "parent", "max_model_len")

DIALECTS: Mapping[DialectName, Dialect] = {
    "openai": Dialect("openai", True, _openai, _openai, False, "stop", "llmirage", _CARD, False, False, False, True, True),
    "vllm": Dialect("vllm", False, _vllm, _vllm, True, "stop", "vllm", (*_CARD, "permission"), True, False, False),
    "sglang": Dialect("sglang", False, _sglang, _enveloped, False, "tool_calls", "sglang", _CARD, True, True, True),
    "trtllm": Dialect("trtllm", False, _flat, _enveloped, True, "stop", "tensorrt_llm", (), True, False, False),
}
OPENAI = DIALECTS["openai"]
