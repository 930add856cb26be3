"""Paths and keys of other vendors: Azure's `/openai/...`, OpenRouter's `/api/v1/...`, and keys of their answers.

A request below such a prefix is answered by the route of its path in OpenAI's API, in the vendor's dialect: what the vendor
writes otherwise (errors, bodies, verdicts of filters) is a field of `Dialect` or its `Vendor`.

Azure: the REST reference of Azure OpenAI (data plane, 2024-10-21 and v1), and responses that its users recorded. OpenRouter:
openrouter.ai/docs (API reference, errors, model fallbacks, reasoning tokens, usage accounting), November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from llmirage_server.http.dialect import ASKED_PATH, DIALECT, Dialect, Vendor
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.generation import Generation
from llmirage_server.service.models import ServedModels
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import ChunkFrame, encoded, event

_MOUNTED_FROM = "root_path"  # Starlette's key for the prefix that has led here


class VendorPaths:
    """ASGI application below a vendor's prefix, which hands requests back to the router as those of OpenAI's paths."""

    def __init__(self, dialect: Dialect, own_path: Callable[[str], tuple[str, Mapping[str, Any]]]) -> None:
        """own_path: from what follows the prefix, the path in OpenAI's API and more keys of the scope."""
        self._dialect = dialect
        self._own_path = own_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked: str = scope["path"]
        path, more = self._own_path(asked.removeprefix(scope[_MOUNTED_FROM]))
        own = {"path": path, _MOUNTED_FROM: scope["app_root_path"], "path_params": {}, ASKED_PATH: asked}
        await scope["router"]({**scope, **own, DIALECT: self._dialect, **more}, receive, send)


def vendor_paths(dialect: Dialect, models: ServedModels) -> Mapping[str, ASGIApp]:
    """Return the application below each prefix."""
    return {
        "/openai": VendorPaths(_azure(dialect), _azure_path),
        "/api/v1": VendorPaths(_openrouter(dialect, models), lambda rest: (f"/v1{rest}", {})),
    }


# --- Azure --------------------------------------------------------------------------------------------------------------

_DEPLOYMENT = "llmirage.deployment"  # key in a scope
# A name may have slashes, so what follows it is told apart by the endpoints that deployments have.
_OF_DEPLOYMENT = re.compile(
    r"/deployments/(.+?)(/(?:chat/completions|completions|embeddings|responses|(?:audio|images)/.+))"
)
_DATED = re.compile(r"\d{4}-\d\d-\d\d(-preview)?")
_V1_VERSIONS = (None, "v1", "preview", "latest")
_NO_DEPLOYMENT = (
    "The API deployment for this resource does not exist. If you created the deployment within the last 5 minutes, please "
    "wait a moment and try again."
)
_NO_ACCESS = (
    "Access denied due to invalid subscription key or wrong API endpoint. Make sure to provide a valid key for an active "
    "subscription and use a correct regional API endpoint for your resource."
)
_V1_DEPLOYMENTS = "/openai/v1/deployments/"


def _azure(dialect: Dialect) -> Dialect:
    vendor = Vendor(_refused_version, _deployed, content_filters=True)
    return replace(dialect, error=_azure_error, event_error=_azure_error, vendor=vendor)


def _azure_path(rest: str) -> tuple[str, Mapping[str, Any]]:
    if rest.startswith("/v1/"):
        return rest, {}
    if (found := _OF_DEPLOYMENT.fullmatch(rest)) is not None:
        return f"/v1{found[2]}", {_DEPLOYMENT: found[1]}
    return f"/v1{rest}", {}


def _refused_version(scope: Scope) -> ApiError | None:
    """Return the error for a missing or unknown `api-version`. The v1 API needs none; all others need a date."""
    versions = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("api-version", [None])
    asked: str = scope[ASKED_PATH]
    if asked.startswith(_V1_DEPLOYMENTS):
        hint = "the v1 API has no deployments in its paths: use the client OpenAI, not AzureOpenAI, with this base URL"
        return ApiError(f"Resource not found ({hint}).", status=404, code="404")
    if asked.startswith("/openai/v1/"):
        return None if versions[-1] in _V1_VERSIONS else ApiError("API version not supported", code="BadRequest")
    if versions[-1] is None or not _DATED.fullmatch(versions[-1]):
        return ApiError("Resource not found", status=404, code="404")
    return None


def _deployed(body: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Return the body with the URL's deployment as its model, and the paths of batches as OpenAI writes them."""
    if (name := scope.get(_DEPLOYMENT)) is not None:
        return {**body, "model": name}
    endpoint = body.get("endpoint")
    if scope["path"] == "/v1/batches" and isinstance(endpoint, str) and not endpoint.startswith("/v1/"):
        return {**body, "endpoint": f"/v1{endpoint}"}
    return body


def _azure_error(error: ApiError, path: str = "") -> dict[str, Any]:
    """Return a code and a message for what Azure's gateway refuses, and OpenAI's form for what the model's API refuses."""
    code, message = error.code, error.message
    if error.status == 401:
        code, message = "401", _NO_ACCESS
    elif code == "model_not_found":
        code, message = "DeploymentNotFound", " (".join([_NO_DEPLOYMENT, *message.split(" (")[1:]])
    elif code == "unknown_url" or error.status in (403, 405, 429) or error.status >= 500:
        code = str(error.status)
    elif code not in ("404", "BadRequest"):
        return error.body()
    return {"error": {"code": code, "message": message}}


# Azure's content filters never find anything here; their categories and form, and the chunks that have them, are those of
# streams recorded from Azure OpenAI in August 2026 (models of GPT-5.4): a first event without choices for the prompts, then
# an object for each choice, empty in chunks without text.
_SAFE: Mapping[str, Any] = {
    category: {"filtered": False, "severity": "safe"} for category in ("hate", "self_harm", "sexual", "violence")
}
_UNDETECTED: Mapping[str, Any] = {"filtered": False, "detected": False}
_OF_TEXT = {**_SAFE, "protected_material_code": _UNDETECTED, "protected_material_text": _UNDETECTED}
_KEY = "content_filter_results"


def _of_prompts(prompts: int) -> dict[str, Any]:
    results = {**_SAFE, "jailbreak": _UNDETECTED}
    return {"prompt_filter_results": [{"prompt_index": index, _KEY: results} for index in range(prompts)]}


def filtered(completion: dict[str, Any], prompts: int = 1) -> dict[str, Any]:
    """Return a whole completion with verdicts on its prompts and choices; tool calls have empty ones."""
    choices = [
        {**choice, _KEY: _OF_TEXT if choice.get("text") or choice.get("message", {}).get("content") else {}}
        for choice in completion["choices"]
    ]
    return {**completion, "choices": choices, **_of_prompts(prompts)}


def filtered_opening(prompts: int = 1) -> bytes:
    """Return the first event of a stream."""
    return event({"choices": [], "created": 0, "id": "", "model": "", "object": "", **_of_prompts(prompts)})


def filtered_frame(frame: ChunkFrame) -> ChunkFrame:
    """Return the frame of a choice's chunks with verdicts."""
    said, silent = (b"," + encoded({_KEY: results})[1:-1] for results in (_OF_TEXT, {}))
    return frame.with_keys(said, silent)


# --- OpenRouter ---------------------------------------------------------------------------------------------------------

_GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_AUTO = "openrouter/auto"  # any model will do
# What chooses among providers or changes a prompt on its way: there is one provider here, and prompts stay as they are.
_ROUTING = ("models", "provider", "route", "transforms", "plugins", "usage", "preset", "trace", "debug", "image_config")
_CHAT_PARAMETERS = (
    "frequency_penalty", "include_reasoning", "logit_bias", "logprobs", "max_tokens", "min_p", "presence_penalty",
    "reasoning", "repetition_penalty", "response_format", "seed", "stop", "structured_outputs", "temperature", "tool_choice",
    "tools", "top_k", "top_logprobs", "top_p",
)  # fmt: skip


def _openrouter(dialect: Dialect, models: ServedModels) -> Dialect:
    vendor = Vendor(own_body=lambda body, scope: _routed(body, scope["path"], models), model_card=_openrouter_card)
    return replace(dialect, error=_openrouter_error, event_error=_openrouter_event_error, vendor=vendor)


def _routed(body: dict[str, Any], path: str, models: ServedModels) -> dict[str, Any]:
    """Return the body in OpenAI's fields, with the first of its models that is served. Raises ApiError for a wrong type."""
    if path not in _GENERATING:
        return body
    named = [body.get("model"), *_list_of_names(body.get("models"))]
    names = [models.served[0] if name == _AUTO else name for name in named if name is not None] or [models.served[0]]
    routed = {key: value for key, value in body.items() if key not in _ROUTING}
    routed["model"] = next((name for name in names if isinstance(name, str) and models.serves(name)), names[0])
    if path in ("/v1/chat/completions", "/v1/completions") and body.get("stream"):
        options = body.get("stream_options")
        routed["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    if path == "/v1/chat/completions" and (reasoning := routed.pop("reasoning", None)) is not None:
        routed = {**_of_reasoning(reasoning), **routed}
    return routed


def _list_of_names(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise errors.wrong_type("models", "an array of strings", value)
    for index, name in enumerate(value):
        if not isinstance(name, str):
            raise errors.wrong_type(f"models[{index}]", "a string", name)
    return value


def _of_reasoning(value: Any) -> dict[str, Any]:
    """Return OpenAI's and vLLM's fields for OpenRouter's object. Raises ApiError unless it is one."""
    if not isinstance(value, dict):
        raise errors.wrong_type("reasoning", "an object", value)
    fields: dict[str, Any] = {"include_reasoning": False} if value.get("exclude") is True else {}
    if value.get("enabled") is False:
        return {**fields, "reasoning_effort": "none"}
    if (effort := value.get("effort")) is not None:
        return {**fields, "reasoning_effort": effort}
    if value.get("max_tokens") is not None or value.get("enabled") is True:
        return {**fields, "reasoning_effort": "medium"}
    return fields


def _openrouter_error(error: ApiError, path: str = "") -> dict[str, Any]:
    return {"error": {"message": error.message, "code": error.status}}


def _openrouter_event_error(error: ApiError) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
    return {**_openrouter_error(error), "choices": [choice]}


def _openrouter_card(name: str, created: int, context_tokens: int) -> dict[str, Any]:
    return {
        "id": name,
        "canonical_slug": name,
        "hugging_face_id": name,
        "name": name,
        "created": created,
        "description": "Simulated by llmirage.",
        "context_length": context_tokens,
        "architecture": {
            "modality": "text+image->text",
            "input_modalities": ["text", "image"],
            "output_modalities": ["text"],
            "tokenizer": "Other",
            "instruct_type": None,
        },
        "pricing": {"prompt": "0", "completion": "0", "request": "0", "image": "0"},
        "top_provider": {"context_length": context_tokens, "max_completion_tokens": context_tokens, "is_moderated": False},
        "per_request_limits": None,
        "supported_parameters": list(_CHAT_PARAMETERS),
        "default_parameters": None,
    }


# --- SGLang -------------------------------------------------------------------------------------------------------------


def cached_details(generation: Generation, exchange: HttpExchange) -> dict[str, Any]:
    """Return SGLang's `sglext`: where the cached tokens of a prompt came from, for requests that ask for it.

    With KV offload the cluster does not know it by prompt.
    """
    if not (exchange.dialect.sglext and exchange.body.get("return_cached_tokens_details") is True):
        return {}
    if any(instance.tiers for instance in generation.responses.driver.snapshot()):
        return {}
    return {"sglext": {"cached_tokens_details": {"device": generation.choices[0].request.cached_tokens, "host": 0}}}
