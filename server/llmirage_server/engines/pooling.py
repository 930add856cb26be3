"""vLLM's POST /pooling and /classify: the vectors of this server's embeddings, and classes made of them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from itertools import islice

from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.embedding import (
    EmbeddingModel,
    Vector,
    check_dimensions,
    computed,
    embedding_model,
    read_inputs,
    texts_and_ids,
    vectors_of,
    written,
)
from llmirage_server.service.service import ServiceHandler
from llmirage_shared.tokens import TokenIds
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import new_id

_MOST_TOKEN_VECTORS = 2_000  # of one request
_STEEPNESS = 50.0  # of the logistic curve from the first number of a unit vector to a probability


class PoolingHandler(ServiceHandler):
    """Answers as vLLM does. What a text says decides the class, but the classes mean nothing."""

    async def pooling(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.embeddings.PoolingRequest.check)
        if request.encoding_format == "base64":
            raise errors.unsupported("encoding_format", "Only 'float' is supported for /pooling.")
        model, texts, ids = await self._read(exchange, request)
        check_dimensions(model, request.dimensions)
        by_token = request.task == "token_embed"
        if by_token and sum(map(len, ids)) > _MOST_TOKEN_VECTORS:
            raise ApiError(f"Requested vectors of more than {_MOST_TOKEN_VECTORS} tokens.", param="input")
        tokenizer = await self._service.tokenizer()
        pooled = texts
        if by_token:
            pooled = [tokenizer.decode(each[place : place + 1]) for each in ids for place in range(len(each))]

        def work() -> Iterator[bytes]:
            vectors = written(vectors_of(request.model, model, pooled, request.dimensions))
            found = (_list(islice(vectors, len(each))) for each in ids) if by_token else ([each] for each in vectors)
            return _answer(request.model, "pool-", ids, ([b'"object":"pooling","data":', *each] for each in found))

        body = await computed(self._service, exchange, request.model, ids, pooled, work)
        return exchange.pieces(body, b"application/json")

    async def classify(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.embeddings.ClassifyRequest.check)
        model, texts, ids = await self._read(exchange, request)

        classes = await computed(
            self._service, exchange, request.model, ids, texts, lambda: map(_class, vectors_of(request.model, model, texts))
        )
        body = list(_answer(request.model, "classify-", ids, ([each] for each in classes)))
        return exchange.pieces(body, b"application/json")

    async def _read(
        self, exchange: HttpExchange, request: schema.embeddings.EmbeddingRequest
    ) -> tuple[EmbeddingModel, list[str], list[TokenIds]]:
        inputs = await read_inputs(self._service, exchange, request)
        model = embedding_model(self._service, request.model)
        return model, *await texts_and_ids(self._service, exchange, inputs, model)


def _answer(model: str, prefix: str, ids: list[TokenIds], data: Iterable[list[bytes]]) -> Iterator[bytes]:
    """Yield the answer. data: for each input the fields of its object, as JSON in pieces."""
    tokens = sum(map(len, ids))
    head = {
        "id": new_id(prefix),
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "usage": {
            "prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None
        },
    }  # fmt: skip
    yield json.dumps(head)[:-1].encode() + b',"data":['
    for index, entry in enumerate(data):
        yield b'%s{"index":%d,' % (b"," if index else b"", index)
        yield from entry
        yield b"}"
    yield b"]}"


def _list(entries: Iterable[bytes]) -> list[bytes]:
    """Return a JSON array."""
    pieces = [piece for entry in entries for piece in (b",", entry)]
    return [b"[", *pieces[1:], b"]"]


def _class(vector: Vector) -> bytes:
    positive = round(1.0 / (1.0 + math.exp(-_STEEPNESS * float(vector[0]))), 6)
    probabilities = [round(1.0 - positive, 6), positive]
    found = {"label": f"LABEL_{int(positive > 0.5)}", "probs": probabilities, "num_classes": 2}
    return json.dumps(found, separators=(",", ":"))[1:-1].encode()
