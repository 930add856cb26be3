"""POST /v1/embeddings and /v1/moderations, for which the cluster reads the inputs: it is charged their prefill."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap

from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.replies.moderation import judgement
from llmirage_server.replies.scripts.rule import ScriptedVector
from llmirage_server.service.embedding import (
    MOST_TOKENS_TOGETHER,
    EmbeddingModel,
    ReadingHandler,
    check_dimensions,
    vectors_of,
    written,
)
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import Prompt
from llmirage_shared.wire.output import new_id


class EmbeddingsHandler(ReadingHandler):
    """Answers as the OpenAI API does."""

    async def create(self, exchange: HttpExchange) -> Response:
        service = self._service
        request = await exchange.checked(schema.embeddings.EmbeddingRequest.check, service.documented_only)
        inputs = await self.read_inputs(exchange, request)
        model = self.embedding_model(request.model)
        check_dimensions(model, request.dimensions)
        exchange.admit(request.model, _estimated_tokens(inputs))
        texts, ids = await self.texts_and_ids(exchange, inputs, model)
        scripts = service.scripts
        found = {} if scripts is None else {text: given for text in texts if (given := scripts.vector(text)) is not None}
        exchange.entry.asked("", texts[0], "", (), (), False)
        exchange.entry.rule = next((given.place for given in found.values()), "")
        tokens = sum(map(len, ids))
        body = await self.computed(
            exchange, request.model, ids, inputs, lambda: _answer(request, model, texts, tokens, found)
        )
        return exchange.pieces(body, b"application/json")


def _estimated_tokens(inputs: Sequence[Prompt]) -> int:
    """Tokens before tokenization: four characters each, as the API's rate limits estimate."""
    return sum(-(-len(given) // 4) if isinstance(given, str) else len(given) for given in inputs)


def _answer(
    request: schema.embeddings.EmbeddingRequest,
    model: EmbeddingModel,
    texts: Sequence[str],
    tokens: int,
    scripted: Mapping[str, ScriptedVector],
) -> Iterator[bytes]:
    vectors = vectors_of(request.model, model, texts, request.dimensions, scripted)
    yield b'{"object":"list","data":'
    for index, vector in enumerate(written(vectors, request.encoding_format)):
        begin = b"," if index else b"["
        yield b'%s{"object":"embedding","index":%d,"embedding":' % (begin, index)
        yield vector
        yield b"}"
    usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
    yield b'],"model":%s,"usage":%s}' % (json.dumps(request.model).encode(), usage)


MODELS = (
    "omni-moderation-latest",
    "omni-moderation-2024-09-26",
    "text-moderation-latest",
    "text-moderation-stable",
    "text-moderation-007",
)
_READS = EmbeddingModel(dimensions=0, max_input_tokens=MOST_TOKENS_TOGETHER)


class ModerationsHandler(ReadingHandler):
    """The scores are made here. Images are accepted and never flagged."""

    async def create(self, exchange: HttpExchange) -> Response:
        """Answers as the OpenAI API does: one result for each text of a list, one for all parts of a message."""
        service = self._service
        request = await exchange.checked(schema.embeddings.ModerationRequest.check, service.documented_only)
        model = MODELS[0] if request.model is None else request.model
        if model not in MODELS:
            service.models.find(model)
        if isinstance(request.input, str):
            judged = [(request.input, True, False)]
        else:
            texts = [item for item in request.input if isinstance(item, str)]
            parts = [item for item in request.input if not isinstance(item, str)]
            if texts and parts:
                raise errors.wrong_type("input", "strings alone or objects alone", request.input)
            judged = [(text, True, False) for text in texts]
            if parts:
                texts_of_parts = [part.text for part in parts if part.type == "text"]
                judged = [("\n".join(texts_of_parts), bool(texts_of_parts), len(texts_of_parts) < len(parts))]

        texts = [text for text, _, _ in judged]
        _, ids = await self.texts_and_ids(exchange, texts, _READS)
        results = await self.computed(exchange, model, ids, texts, lambda: starmap(_result, judged))
        head = json.dumps({"id": new_id("modr-"), "model": model}, ensure_ascii=False, separators=(",", ":"))
        body = b'%s,"results":[%s]}' % (head[:-1].encode("utf-8", "replace"), b",".join(results))
        return exchange.content(body, b"application/json")


def _result(text: str, has_text: bool, has_image: bool) -> bytes:
    """One result as JSON. Each is written alone: the encoder lets no other thread run until it is done."""
    return json.dumps(judgement(text, has_text, has_image), separators=(",", ":")).encode()
