"""POST /v1/embeddings. The cluster reads what is embedded; the vectors are made here."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
from starlette.responses import Response

from llmirage_server.api.exchange import Exchange
from llmirage_server.api.generation import Service
from llmirage_server.api.prefill import prefill
from llmirage_server.api.text import LONG_CHARACTERS
from llmirage_shared.tokens import TokenIds, Tokenizer
from llmirage_shared.wire import errors
from llmirage_shared.wire.completions import Prompt, read_prompts
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.json_body import parse_object

if TYPE_CHECKING:
    from llmirage_shared.wire.schema.embeddings import EmbeddingRequest

MOST_INPUTS = 2048
MOST_TOKENS_TOGETHER = 300_000

T = TypeVar("T")
Vector = npt.NDArray[np.float64]


@dataclass(slots=True, frozen=True)
class EmbeddingModel:
    """dimensions: of a whole vector. shortens: whether a request may ask for fewer."""

    dimensions: int
    max_input_tokens: int
    shortens: bool = False


# From OpenAI's model pages and the models' cards on Hugging Face (2026-11).
EMBEDDING_MODELS = {
    "text-embedding-3-small": EmbeddingModel(1536, 8192, True),
    "text-embedding-3-large": EmbeddingModel(3072, 8192, True),
    "text-embedding-ada-002": EmbeddingModel(1536, 8192),
    "Qwen3-Embedding-0.6B": EmbeddingModel(1024, 32768, True),
    "Qwen3-Embedding-4B": EmbeddingModel(2560, 32768, True),
    "Qwen3-Embedding-8B": EmbeddingModel(4096, 32768, True),
    "bge-m3": EmbeddingModel(1024, 8192),
    "bge-large-en-v1.5": EmbeddingModel(1024, 512),
    "all-MiniLM-L6-v2": EmbeddingModel(384, 256),
    "nomic-embed-text-v1.5": EmbeddingModel(768, 8192, True),
    "e5-mistral-7b-instruct": EmbeddingModel(4096, 32768),
}
_BY_NAME = {name.lower(): model for name, model in EMBEDDING_MODELS.items()}
_GENERATIVE_DIMENSIONS = 1536  # of the vectors of models that are served for their words


class EmbeddingsEndpoint:
    """Answers as the OpenAI API does."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, exchange: Exchange) -> Response:
        from llmirage_shared.wire.schema.embeddings import EmbeddingRequest
        from llmirage_shared.wire.schema.validation import check

        request = check(EmbeddingRequest, parse_object(await exchange.body()))
        self._service.check_fields(request, "embeddings")
        inputs = read_prompts(request.input, "input")
        if len(inputs) > MOST_INPUTS:
            raise errors.array_too_long("input", MOST_INPUTS, len(inputs))
        model = embedding_model(self._service, request.model)
        check_dimensions(model, request.dimensions)
        if self._service.limits is not None:
            self._service.limits.admit(exchange, request.model, _about_tokens(inputs))
        tokenizer = (await self._service.text.get()).encoder.tokenizer
        texts, ids = await aside(inputs, lambda: texts_and_ids(inputs, model, tokenizer))
        _, body = await asyncio.gather(
            prefill(self._service, request.model, ids, exchange),
            aside(inputs, lambda: _answer(request, model, texts, sum(map(len, ids)))),
        )
        return exchange.content(body, b"application/json")


def _about_tokens(inputs: Sequence[Prompt]) -> int:
    """Before anything is tokenized: four characters a token, as the API's rate limits estimate."""
    return sum(-(-len(given) // 4) if isinstance(given, str) else len(given) for given in inputs)


def embedding_model(service: Service, name: str) -> EmbeddingModel:
    """What a name stands for: an embedding model, or any other that requests may use. Raises ApiError."""
    known = _BY_NAME.get(name.rpartition("/")[2].lower())
    if known is not None:
        return known
    return EmbeddingModel(_GENERATIVE_DIMENSIONS, service.models.find(name).max_model_len, True)


def check_dimensions(model: EmbeddingModel, dimensions: int | None) -> None:
    """Raises ApiError where a model has not so many, or has no choice of them."""
    if dimensions is None:
        return
    if not model.shortens:
        raise ApiError("This model does not support specifying dimensions.", param="dimensions")
    if dimensions > model.dimensions:
        raise ApiError(
            f"Invalid value for 'dimensions' = {dimensions}. Must be less than or equal to {model.dimensions}.",
            param="dimensions",
            code="invalid_value",
        )


async def aside(inputs: Sequence[Prompt], work: Callable[[], T]) -> T:
    """Do the work; in a thread, where it would hold up the streams of others."""
    if sum(map(len, inputs)) > LONG_CHARACTERS:
        return await asyncio.to_thread(work)
    return work()


def texts_and_ids(inputs: Sequence[Prompt], model: EmbeddingModel, tokenizer: Tokenizer) -> tuple[list[str], list[TokenIds]]:
    """The text of each input and its tokens. Raises ApiError when one has too many, or all together."""
    texts, ids = [], []
    for given in inputs:
        texts.append(given if isinstance(given, str) else _text_of_ids(given, tokenizer))
        ids.append(tokenizer.encode(given) if isinstance(given, str) else given)
        count = len(ids[-1])
        if count > model.max_input_tokens:
            raise ApiError(
                f"This model's maximum context length is {model.max_input_tokens} tokens, however you requested "
                f"{count} tokens ({count} in your prompt; 0 for the completion). Please reduce your prompt; or "
                "completion length.",
                param="input",
                code="context_length_exceeded",
            )
    if (together := sum(map(len, ids))) > MOST_TOKENS_TOGETHER:
        kind = "max_tokens_per_request"
        raise ApiError(f"Requested {together} tokens, max {MOST_TOKENS_TOGETHER} tokens per request", type=kind, code=kind)
    return texts, ids


def _text_of_ids(ids: npt.NDArray[np.int32], tokenizer: Tokenizer) -> str:
    """Ids of another vocabulary are words, too: what they have in common shows."""
    unknown = [f"#{token}" for token in ids[ids >= tokenizer.vocab_size].tolist()]
    return " ".join([tokenizer.decode(ids[ids < tokenizer.vocab_size]), *unknown])


def vectors_of(name: str, model: EmbeddingModel, texts: Sequence[str], dimensions: int | None = None) -> list[Vector]:
    """Unit vectors, shape (dimensions,) each. Every model has a space of its own."""
    from llmirage_server.replies.embedding import embed, shortened

    seed = zlib.crc32(name.rpartition("/")[2].lower().encode("utf-8", "replace"))
    vectors = [embed(text, model.dimensions, seed) for text in texts]
    return vectors if dimensions is None else [shortened(vector, dimensions) for vector in vectors]


def _answer(request: EmbeddingRequest, model: EmbeddingModel, texts: Sequence[str], tokens: int) -> bytes:
    vectors = vectors_of(request.model, model, texts, request.dimensions)
    # One by one, so that the interpreter can turn to others in between.
    data = [
        b'{"object":"embedding","index":%d,"embedding":%s}' % (index, _written(vector, request.encoding_format))
        for index, vector in enumerate(vectors)
    ]
    name = json.dumps(request.model).encode()
    usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
    return b'{"object":"list","data":[%s],"model":%s,"usage":%s}' % (b",".join(data), name, usage)


def _written(vector: Vector, encoding_format: str | None) -> bytes:
    if encoding_format == "base64":
        return b'"' + base64.b64encode(vector.astype("<f4").tobytes()) + b'"'
    return json.dumps(vector.tolist(), separators=(",", ":")).encode()
