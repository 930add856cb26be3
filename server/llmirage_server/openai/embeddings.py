"""POST /v1/embeddings. The cluster is charged the prefill of the inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.replies.scripts.rule import ScriptedVector
from llmirage_server.service.embedding import (
    EmbeddingModel,
    check_dimensions,
    computed,
    embedding_model,
    read_inputs,
    texts_and_ids,
    vectors_of,
    written,
)
from llmirage_server.service.service import ServiceHandler
from llmirage_shared.wire import schema
from llmirage_shared.wire.completions import Prompt


class EmbeddingsHandler(ServiceHandler):
    """Answers as the OpenAI API does."""

    async def create(self, exchange: HttpExchange) -> Response:
        service = self._service
        request = await exchange.checked(schema.embeddings.EmbeddingRequest.check, service.documented_only)
        inputs = await read_inputs(service, exchange, request)
        model = embedding_model(service, request.model)
        check_dimensions(model, request.dimensions)
        exchange.admit(request.model, _estimated_tokens(inputs))
        texts, ids = await texts_and_ids(service, exchange, inputs, model)
        scripts = service.scripts
        found = {} if scripts is None else {text: given for text in texts if (given := scripts.vector(text)) is not None}
        exchange.entry.asked("", texts[0], "", (), (), False)
        exchange.entry.rule = next((given.place for given in found.values()), "")
        tokens = sum(map(len, ids))
        body = await computed(
            service, exchange, request.model, ids, inputs, lambda: _answer(request, model, texts, tokens, found)
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
