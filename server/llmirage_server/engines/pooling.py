"""Pooling models: vLLM's /pooling, /classify and /score, Jina's, Cohere's, vLLM's and TEI's /rerank, NIM's /v1/ranking.

All are made of the vectors of this server's embeddings.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.embedding import EmbeddingModel, ReadingHandler, Vector, check_dimensions, vectors_of, written
from llmirage_shared.tokens import TokenIds
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import new_id

_MOST_TOKEN_VECTORS = 2_000  # of one request
_CLASS_STEEPNESS = 50.0  # of the logistic curve from the first number of a unit vector to a probability
_MOST_TOKEN_CHARACTERS = 128
_KEPT_VECTORS = 1024  # while scores are made: those of one query, and of most other requests
_HALF_AT, _SCORE_STEEPNESS = 0.3, 12.0  # of the logistic curve from the cosine of two embeddings to their score


class PoolingHandler(ReadingHandler):
    """Scores are between 0 and 1. What a text says decides its class, but the classes mean nothing."""

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

        body = await self.computed(exchange, request.model, ids, pooled, work)
        return exchange.pieces(body, b"application/json")

    async def classify(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.embeddings.ClassifyRequest.check)
        model, texts, ids = await self._read(exchange, request)

        classes = await self.computed(
            exchange, request.model, ids, texts, lambda: map(_class, vectors_of(request.model, model, texts))
        )
        body = list(_answer(request.model, "classify-", ids, ([each] for each in classes)))
        return exchange.pieces(body, b"application/json")

    async def _read(
        self, exchange: HttpExchange, request: schema.embeddings.EmbeddingRequest
    ) -> tuple[EmbeddingModel, list[str], list[TokenIds]]:
        inputs = await self.read_inputs(exchange, request)
        model = self.embedding_model(request.model)
        return model, *await self.texts_and_ids(exchange, inputs, model)

    async def rerank(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.embeddings.RerankRequest.check)
        if request.texts is not None:
            return await self._ranks(exchange, request, request.texts)
        if request.model is None or request.documents is None:
            raise errors.missing("documents" if request.model is not None else "model")
        documents = [document if isinstance(document, str) else document.text for document in request.documents]
        queries = [request.query] * len(documents)
        scores, tokens = await self._scores(exchange, request.model, queries, documents, request.max_tokens_per_doc)
        order = sorted(range(len(documents)), key=lambda index: (-scores[index], index))
        shown = request.return_documents is not False
        return await exchange.large_json(
            {
                "id": new_id("rerank-"),
                "model": request.model,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                "results": [
                    {
                        "index": index,
                        **({"document": {"text": documents[index]}} if shown else {}),
                        "relevance_score": scores[index],
                    }
                    for index in order[: request.top_n or None]
                ],
            }
        )

    async def _ranks(self, exchange: HttpExchange, request: schema.embeddings.RerankRequest, texts: list[str]) -> Response:
        """As TEI answers. raw_scores: before the logistic curve."""
        name = request.model or self._service.models.served[0]
        scores, _ = await self._scores(exchange, name, [request.query] * len(texts), texts)
        order = sorted(range(len(texts)), key=lambda index: (-scores[index], index))
        return await exchange.large_json(
            [
                {
                    "index": index,
                    "score": _logit(scores[index]) if request.raw_scores else scores[index],
                    **({"text": texts[index]} if request.return_text else {}),
                }
                for index in order
            ]
        )

    async def ranking(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.embeddings.RankingRequest.check)
        most = None
        if request.truncate == "END":
            most = self.embedding_model(request.model).max_input_tokens
        texts = [passage.text for passage in request.passages]
        scores, tokens = await self._scores(exchange, request.model, [request.query.text] * len(texts), texts, most)
        order = sorted(range(len(texts)), key=lambda index: (-scores[index], index))
        rankings = [{"index": index, "logit": _logit(scores[index])} for index in order]
        return await exchange.large_json({"rankings": rankings, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})

    async def score(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.embeddings.ScoreRequest.check)
        first, second = request.text_1 or request.queries, request.text_2 or request.documents
        if first is None or second is None:
            raise errors.missing("text_1" if first is None else "text_2")
        firsts = [first] if isinstance(first, str) else first
        seconds = [second] if isinstance(second, str) else second
        if len(firsts) == 1:
            firsts = firsts * len(seconds)
        if len(firsts) != len(seconds):
            raise errors.invalid_value("text_2", f"{len(firsts)} texts cannot be compared with {len(seconds)} one by one.")
        scores, tokens = await self._scores(exchange, request.model, firsts, seconds)
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
        usage: dict[str, Any] = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
        return exchange.json(
            {
                "id": new_id("score-"),
                "object": "list",
                "created": int(time.time()),
                "model": request.model,
                "data": data,
                "usage": {**usage, "prompt_tokens_details": None},
            }
        )

    async def _scores(
        self,
        exchange: HttpExchange,
        name: str,
        firsts: Sequence[str],
        seconds: Sequence[str],
        most_tokens: int | None = None,
    ) -> tuple[list[float], int]:
        """Return the score of each pair, and the number of tokens of all pairs. most_tokens: read of each of `seconds`.

        The cluster reads every pair as one prompt, as a cross-encoder does. Raises ApiError.
        """
        service, model = self._service, self.embedding_model(name)
        read = list(seconds)
        if most_tokens:
            tokenizer, most = await service.tokenizer(), most_tokens

            def beginning(text: str) -> str:
                return tokenizer.decode(tokenizer.encode(text[: _MOST_TOKEN_CHARACTERS * most])[:most])

            read = await self.in_turns(exchange, read, lambda: map(beginning, seconds))
        texts, ids_of_texts = await self.texts_and_ids(exchange, list(dict.fromkeys([*firsts, *read])), model)
        ids = dict(zip(texts, ids_of_texts, strict=True))
        pairs = [np.concatenate([ids[a], ids[b]]) for a, b in zip(firsts, read, strict=True)]

        def work() -> Iterator[float]:
            vector = lru_cache(_KEPT_VECTORS)(lambda text: next(vectors_of(name, model, [text])))
            for a, b in zip(firsts, read, strict=True):
                cosine = float(vector(a) @ vector(b))
                yield round(1.0 / (1.0 + math.exp(-_SCORE_STEEPNESS * (cosine - _HALF_AT))), 6)

        scores = await self.computed(exchange, name, pairs, texts, work)
        return scores, sum(map(len, pairs))


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
    positive = round(1.0 / (1.0 + math.exp(-_CLASS_STEEPNESS * float(vector[0]))), 6)
    probabilities = [round(1.0 - positive, 6), positive]
    found = {"label": f"LABEL_{int(positive > 0.5)}", "probs": probabilities, "num_classes": 2}
    return json.dumps(found, separators=(",", ":"))[1:-1].encode()


def _logit(score: float) -> float:
    inside = min(max(score, 1e-6), 1 - 1e-6)  # scores have six digits
    return round(math.log(inside / (1.0 - inside)), 6)
