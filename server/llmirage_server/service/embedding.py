"""Inputs of requests that get vectors, and the vectors: embeddings, moderations, scores, poolings."""

from __future__ import annotations

import asyncio
import base64
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.json_pieces import written_vectors
from llmirage_server.replies.embedding import DECIMALS, embed, near, shortened
from llmirage_server.replies.scripts.rule import ScriptedVector
from llmirage_server.service.models import LONGEST_NAME
from llmirage_server.service.service import LONG_CHARACTERS, ServiceHandler
from llmirage_server.service.unstreamed import prefill
from llmirage_shared.tokens import TokenIds, Tokenizer
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import Prompt, joined, read_prompts
from llmirage_shared.wire.errors import ApiError

_MANY_INPUTS, _FEW_INPUTS = 16, 64
_TURN_S = 0.05  # of the thread, beside one input: then others have their turn
_VECTORS = 32  # that are made and written at once: up to 20 ms, and a million characters
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
_GENERATIVE_DIMENSIONS = 1536  # of the vectors of a model that generates text


class ReadingHandler(ServiceHandler):
    """Endpoints of requests of which the cluster only reads the inputs."""

    async def read_inputs(self, exchange: HttpExchange, request: schema.embeddings.EmbeddingRequest) -> Sequence[Prompt]:
        """Return the texts or token ids of a request; a conversation is one input. Raises ApiError."""
        if request.messages is None:
            if "input" not in request.model_fields_set:
                raise errors.missing("input")
            return await exchange.apart(lambda: read_prompts(request.input, "input", schema.embeddings.MOST_INPUTS))
        messages = [joined(message) for message in exchange.body["messages"]]
        return [
            await self._service.encode_chat(
                exchange, messages, None, add_generation_prompt=bool(request.add_generation_prompt)
            )
        ]

    def embedding_model(self, name: str) -> EmbeddingModel:
        """Return the embedding model of that name, or a served model that embeds, too. Raises ApiError if it is unknown."""
        known = _BY_NAME.get(name.rpartition("/")[2].lower())
        if known is not None and len(name) <= LONGEST_NAME:
            return known
        return EmbeddingModel(_GENERATIVE_DIMENSIONS, self._service.models.find(name).max_model_len, True)

    async def computed(
        self,
        exchange: HttpExchange,
        name: str,
        prompts: Sequence[TokenIds],
        inputs: Sequence[Prompt],
        work: Callable[[], Iterable[T]],
    ) -> list[T]:
        """Let the cluster read the prompts, and return what the work yields for the inputs.

        Of many inputs that may be a hundred megabytes: it is made when the cluster has read them, for one request at a time.
        """
        reading = prefill(self._service, name, prompts, exchange)
        if len(inputs) <= _FEW_INPUTS:
            _, found = await asyncio.gather(reading, self.in_turns(exchange, inputs, work))
            return found
        await reading
        async with self._service.text.many_vectors:
            return await self.in_turns(exchange, inputs, work)

    async def in_turns(self, exchange: HttpExchange, inputs: Sequence[Prompt], work: Callable[[], Iterable[T]]) -> list[T]:
        """Return what the work yields; from a thread if the number or length of inputs would hold up the streams of others.

        In the thread requests take turns: one with twenty inputs does not wait for the thousands of another.
        """
        if len(inputs) <= _MANY_INPUTS and sum(map(len, inputs)) <= LONG_CHARACTERS:
            return list(work())
        found: list[T] = []
        rest = iter(work())

        def turn() -> bool:
            ends_s = time.perf_counter() + _TURN_S
            for item in rest:
                found.append(item)
                if time.perf_counter() > ends_s:
                    return True
            return False

        while await exchange.queued(self._service.text.vectors_in_thread, turn):
            pass
        return found

    async def texts_and_ids(
        self, exchange: HttpExchange, inputs: Sequence[Prompt], model: EmbeddingModel
    ) -> tuple[list[str], list[TokenIds]]:
        """Return the text of each input and its token ids.

        Raises ApiError for one input with too many tokens, or all together.
        """
        tokenizer = await self._service.tokenizer()
        found = await self.in_turns(exchange, inputs, lambda: _texts_and_ids(inputs, model, tokenizer))
        return [text for text, _ in found], [ids for _, ids in found]


def check_dimensions(model: EmbeddingModel, dimensions: int | None) -> None:
    """Raise ApiError for more dimensions than the model has, or any if it has no choice."""
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


def _texts_and_ids(inputs: Sequence[Prompt], model: EmbeddingModel, tokenizer: Tokenizer) -> Iterator[tuple[str, TokenIds]]:
    together = 0
    for place, given in enumerate(inputs, 1):
        if isinstance(given, str) and (found := tokenizer.tokens_beyond(given, model.max_input_tokens)) is not None:
            raise _too_long_input(model, found, "at least ")
        ids = tokenizer.encode(given) if isinstance(given, str) else given
        if len(ids) > model.max_input_tokens:
            raise _too_long_input(model, len(ids))
        together += len(ids)
        if together > MOST_TOKENS_TOGETHER:
            kind, least = "max_tokens_per_request", "" if place == len(inputs) else "at least "
            problem = f"Requested {least}{together} tokens, max {MOST_TOKENS_TOGETHER} tokens per request"
            raise ApiError(problem, type=kind, code=kind)
        yield given if isinstance(given, str) else _text_of_ids(given, tokenizer), ids


def _too_long_input(model: EmbeddingModel, count: int, least: str = "") -> ApiError:
    return ApiError(
        f"This model's maximum context length is {model.max_input_tokens} tokens, however you requested {least}{count} "
        f"tokens ({least}{count} in your prompt; 0 for the completion). Please reduce your prompt; or completion length.",
        param="input",
        code="context_length_exceeded",
    )


def _text_of_ids(ids: npt.NDArray[np.int32], tokenizer: Tokenizer) -> str:
    """Ids of another vocabulary become words, so that inputs with common ids have similar vectors."""
    unknown = [f"#{token}" for token in ids[ids >= tokenizer.vocab_size].tolist()]
    return " ".join([tokenizer.decode(ids[ids < tokenizer.vocab_size]), *unknown])


def vectors_of(
    name: str,
    model: EmbeddingModel,
    texts: Iterable[str],
    dimensions: int | None = None,
    scripted: Mapping[str, ScriptedVector] = MappingProxyType({}),
) -> Iterator[Vector]:
    """Yield vectors, float64, shape (dimensions,) each: unit vectors, but for those that a script gives.

    Vectors of different models are not related. scripted: by text. Raises ApiError for a scripted one that is too long.
    """
    seed = zlib.crc32(name.rpartition("/")[2].lower().encode("utf-8", "replace"))
    for text in texts:
        given = scripted.get(text)
        if given is None or given.near:
            vector = embed(text, model.dimensions, seed) if given is None else near(text, given.near, model.dimensions, seed)
            yield vector if dimensions is None else shortened(vector, dimensions)
            continue
        wanted = dimensions or model.dimensions
        if len(given.vector) > wanted:
            problem = f"{given.place}: its vector has {len(given.vector)} numbers, and the request asks for {wanted}"
            raise ApiError(problem, code="script_error")
        yield np.pad(np.array(given.vector), (0, wanted - len(given.vector)))


def written(vectors: Iterator[Vector], encoding_format: str | None = None) -> Iterator[bytes]:
    """Yield each vector as JSON."""
    if encoding_format == "base64":
        for vector in vectors:
            yield b'"' + base64.b64encode(vector.astype("<f4").tobytes()) + b'"'
    while some := list(islice(vectors, _VECTORS)):
        yield from written_vectors(np.stack(some), DECIMALS)
