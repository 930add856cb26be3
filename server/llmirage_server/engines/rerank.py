"""Jina's, Cohere's, vLLM's and TEI's /rerank, NIM's /v1/ranking, vLLM's /score: the similarity of texts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.embedding import computed, embedding_model, in_turns, texts_and_ids, vectors_of
from llmirage_server.service.service import ServiceHandler
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.output import new_id

_MOST_TOKEN_CHARACTERS = 128
_KEPT_VECTORS = 1024  # while scores are made: those of one query, and of most other requests
_HALF_AT, _STEEPNESS = 0.3, 12.0  # of the logistic curve from the cosine of two embeddings to their score


class RerankHandler(ServiceHandler):
    """Scores are between 0 and 1, from the embeddings of this server."""

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
            most = embedding_model(self._service, request.model).max_input_tokens
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
        service, model = self._service, embedding_model(self._service, name)
        read = list(seconds)
        if most_tokens:
            tokenizer, most = await service.tokenizer(), most_tokens

            def beginning(text: str) -> str:
                return tokenizer.decode(tokenizer.encode(text[: _MOST_TOKEN_CHARACTERS * most])[:most])

            read = await in_turns(service, exchange, read, lambda: map(beginning, seconds))
        texts, ids_of_texts = await texts_and_ids(service, exchange, list(dict.fromkeys([*firsts, *read])), model)
        ids = dict(zip(texts, ids_of_texts, strict=True))
        pairs = [np.concatenate([ids[a], ids[b]]) for a, b in zip(firsts, read, strict=True)]

        def work() -> Iterator[float]:
            vector = lru_cache(_KEPT_VECTORS)(lambda text: next(vectors_of(name, model, [text])))
            for a, b in zip(firsts, read, strict=True):
                yield _score(float(vector(a) @ vector(b)))

        scores = await computed(service, exchange, name, pairs, texts, work)
        return scores, sum(map(len, pairs))


def _score(cosine: float) -> float:
    return round(1.0 / (1.0 + math.exp(-_STEEPNESS * (cosine - _HALF_AT))), 6)


def _logit(score: float) -> float:
    inside = min(max(score, 1e-6), 1 - 1e-6)  # scores have six digits
    return round(math.log(inside / (1.0 - inside)), 6)
