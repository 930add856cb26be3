"""Paths of APIs that this server does not simulate: a 404 in the API's own form names the API and a substitute."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llmirage_server.http.dialect import ErrorForm
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

_GEMINI_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
                  429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}  # fmt: skip


def _gemini(error: ApiError) -> dict[str, Any]:
    status = _GEMINI_STATUS.get(error.status, "INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT")
    return {"error": {"code": error.status, "message": error.message, "status": status}}


def _error(error: ApiError) -> dict[str, Any]:
    return {"error": error.message}


def _message(error: ApiError) -> dict[str, Any]:
    return {"message": error.message}


def _mistral(error: ApiError) -> dict[str, Any]:
    return {"object": "error", "message": error.message, "type": error.type, "param": error.param, "code": error.code}


def _hugging_face(error: ApiError) -> dict[str, Any]:
    return {"error": error.message, "error_type": "not_found" if error.status == 404 else "validation"}


def _replicate(error: ApiError) -> dict[str, Any]:
    return {"title": "Not found" if error.status == 404 else "Refused", "detail": error.message, "status": error.status}


_FORMS: Mapping[str, Callable[[ApiError], dict[str, Any]]] = {
    "Gemini": _gemini, "Vertex AI": _gemini, "Bedrock": _message, "Cohere": _message, "Ollama": _error, "LM Studio": _error,
    "Triton": _error, "Mistral": _mistral, "Hugging Face": _hugging_face, "Replicate": _replicate,
}  # fmt: skip
_HEADERS = {"Bedrock": ((b"x-amzn-errortype", b"ResourceNotFoundException"),)}


@dataclass(slots=True, frozen=True)
class Absent:
    """Paths of one API, or of a part of it. Errors there have its form, if `_FORMS` has one, else that of the dialect.

    paths: each with all below it, unless it ends with `!`; `*` stands for any text. what, instead: of the sentence that a
    request gets; "" if nothing here does instead.
    """

    api: str
    paths: Sequence[str]
    what: str
    instead: str = ""

    def error(self, method: str, path: str) -> ApiError:
        end = f"; {self.instead}." if self.instead else "."
        return errors.unknown_url(method, path, f"{self.what}: not simulated by llmirage{end}", _HEADERS.get(self.api, ()))


def _openai(name: str, what: str, instead: str = "") -> Absent:
    return Absent("OpenAI", (f"/v1/{name}",), what, instead)


def _exact(prefix: str, names: str) -> list[str]:
    """Return the paths of these names, without what is below them."""
    return [f"{prefix}{name}!" for name in names.split()]


_CHAT = "use POST /v1/chat/completions (OpenAI) or POST /v1/messages (Anthropic)"
_EMBED = "use POST /v1/embeddings"
_JOURNAL = "GET /llmirage/journal shows the last requests"
_GEMINI_CALLS = "generateContent streamGenerateContent countTokens embedContent batchEmbedContents predict"
_BEDROCK_CALLS = "invoke invoke-with-response-stream converse converse-stream count-tokens"
ABSENT = (
    Absent("Gemini", ("/v1beta/openai",), "Gemini's OpenAI-compatible API", "use the base URL .../v1"),
    Absent("Gemini", _exact("/v1/models/*:", _GEMINI_CALLS), "The Gemini API", _CHAT),
    Absent("Gemini", ("/v1beta", "/v1alpha", "/upload/v1beta"), "The Gemini API", _CHAT),
    Absent("Vertex AI", ("/v1/projects/*/locations", "/v1beta1", "/v1/publishers"), "Vertex AI", _CHAT),
    Absent("Bedrock", _exact("/model/*/", _BEDROCK_CALLS), "Amazon Bedrock's API", _CHAT),
    Absent("Bedrock", ("/async-invoke", "/guardrail"), "Amazon Bedrock's API", _CHAT),
    Absent("Ollama", _exact("/api/", "chat generate"), "Ollama's own API", f"{_CHAT}, which Ollama has too"),
    Absent("Ollama", _exact("/api/", "embed embeddings"), "Ollama's own API", f"{_EMBED}, which Ollama has too"),
    Absent("Ollama", _exact("/api/", "tags show ps"), "Ollama's own API", "use GET /v1/models, which Ollama has too"),
    Absent("Ollama", _exact("/api/", "pull push create copy delete version"), "Ollama's own API", "any model is served"),
    Absent("Ollama", ("/api/blobs",), "Ollama's own API", "any model is served"),
    Absent("LM Studio", ("/api/v0",), "LM Studio's own API", _CHAT),
    Absent("OpenRouter", _exact("/v1/", "key credits generation auth/key activity"), "Accounts of OpenRouter", _JOURNAL),
    Absent("OpenRouter", ("/v1/keys", "/v1/providers"), "Accounts and providers of OpenRouter", _JOURNAL),
    Absent("Cohere", [*_exact("/v1/", "chat generate summarize"), "/v2/chat"], "Cohere's chat API", _CHAT),
    Absent("Cohere", [*_exact("/v1/", "embed embed-jobs"), "/v2/embed"], "Cohere's embeddings", _EMBED),
    Absent("Cohere", _exact("/v1/", "classify tokenize detokenize check-api-key"), "Cohere's API", "use POST /v2/rerank"),
    Absent("Mistral", ("/v1/fim",), "Mistral's fill-in-the-middle", "use POST /v1/completions with `suffix`"),
    Absent("Mistral", ("/v1/agents",), "Mistral's agents", _CHAT),
    Absent("Mistral", ("/v1/ocr", "/v1/libraries"), "Mistral's documents", "messages of chat take files as parts"),
    Absent("Azure", ("/models/chat/completions", "/models/embeddings", "/models/info"), "Azure AI Inference",
           "use /openai/v1 or /openai/deployments/NAME"),
    Absent("Hugging Face", ("/generate_stream", "/hf-inference", "/models/*"), "Text Generation Inference", _CHAT),
    Absent("Hugging Face", ("/info!", "/chat_tokenize!"), "Text Generation Inference", "use GET /v1/models"),
    Absent("Replicate", ("/v1/predictions", "/v1/models/*/predictions!"), "Replicate's API", _CHAT),
    Absent("llama.cpp", _exact("/", "completion infill props apply-template lora-adapters"), "llama.cpp's own API", _CHAT),
    Absent("llama.cpp", ("/slots",), "llama.cpp's own API", "GET /load shows the queues"),
    Absent("llama.cpp", ("/embedding!",), "llama.cpp's own API", _EMBED),
    Absent("SageMaker", ("/invocations!",), "SageMaker's endpoint", _CHAT),
    Absent("Triton", ("/v2/models", "/v2/repository"), "Triton's API", _CHAT),
    Absent("Anthropic", ("/v1/complete!",), "Anthropic's text completions", "use POST /v1/messages"),
    Absent("Anthropic", ("/v1/organizations",), "Administration of organizations (Anthropic)", _JOURNAL),
    _openai("images", "Image generation", "the tool `image_generation` of /v1/responses gives an image of one pixel"),
    _openai("videos", "Video generation"),
    _openai("audio", "Speech, transcription and translation", "messages of /v1/chat/completions take `input_audio`"),
    _openai("realtime", "The Realtime API", "/v1/responses takes WebSocket connections"),
    _openai("vector_stores", "Vector stores", "the tool `file_search` of /v1/responses finds without them"),
    _openai("uploads", "Uploads in parts", "use POST /v1/files"),
    _openai("fine_tuning", "Fine-tuning", "requests may name any fine-tuned model"),
    _openai("assistants", "The Assistants API", "use /v1/responses with /v1/conversations"),
    _openai("threads", "The Assistants API", "use /v1/responses with /v1/conversations"),
    _openai("evals", "Evals"),
    _openai("containers", "Containers", "the tool `code_interpreter` of /v1/responses needs none"),
    _openai("skills", "Skills"),
    _openai("chatkit", "ChatKit", "use /v1/responses"),
    _openai("content_provenance_checks", "Content provenance checks"),
    _openai("organization", "Administration of organizations", _JOURNAL),
    _openai("projects", "Administration of projects", _JOURNAL),
    _openai("v1", "A path with /v1 twice", "take it from the client's base URL"),
    Absent("OpenAI", _exact("/", "chat/completions completions responses embeddings models"), "A path without /v1",
           "give the client the base URL .../v1"),
    Absent("Anthropic", _exact("/", "messages messages/count_tokens"), "A path without /v1",
           "clients of Anthropic add it to their base URL, others do not"),
)  # fmt: skip
"""Paths that a wider path would hide come first."""


def absent_at(path: str) -> Absent | None:
    """Return the part of an API that a path belongs to, None for any other path."""
    pattern, parts = _compiled()
    found = pattern.fullmatch(path)
    return None if found is None or found.lastgroup is None else parts[found.lastgroup]


@lru_cache(maxsize=1)
def _compiled() -> tuple[re.Pattern[str], Mapping[str, Absent]]:
    parts = {f"p{number}": part for number, part in enumerate(ABSENT)}
    alternatives = [f"(?P<{name}>{'|'.join(map(_pattern, part.paths))})" for name, part in parts.items()]
    return re.compile("|".join(alternatives), re.DOTALL), parts


def _pattern(path: str) -> str:
    written = re.escape(path.removesuffix("!")).replace(r"\*", ".+")
    return written if path.endswith("!") else f"{written}(?:/.*)?"


def in_callers_form(form: ErrorForm) -> ErrorForm:
    """Return a form of errors that is the given one, but at paths of other APIs theirs."""

    def written(error: ApiError, path: str) -> dict[str, Any]:
        there = absent_at(path)
        own = None if there is None else _FORMS.get(there.api)
        return form(error, path) if own is None else own(error)

    return written
