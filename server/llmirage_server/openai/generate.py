"""vLLM's endpoints for routers that render prompts themselves: prompts as token ids, and token ids in, token ids out.

A `.../render` answers with the body of a POST to /inference/v1/generate.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.json_pieces import LazyList
from llmirage_server.service.constraints import completion_constraints
from llmirage_server.service.generation import Choice, Generation, TokenStream
from llmirage_server.service.logprobs import prompt_fields, reply_logprobs, token_logprob
from llmirage_server.service.prompts import EncodedPrompt
from llmirage_server.service.service import ServiceHandler
from llmirage_server.service.unstreamed import finish
from llmirage_shared.tokens import Tokenizer
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import ChatRequest, TextRequest, read_ids
from llmirage_shared.wire.output import DONE, event
from llmirage_shared.wire.sampling import Sampling

_PARAMS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
    "prompt_logprobs", "logit_bias", "skip_special_tokens", "include_stop_str_in_output",
)  # fmt: skip


def rendered(
    request_id: str,
    ids: npt.NDArray[np.int32],
    request: ChatRequest | TextRequest,
    asked: Mapping[str, Any],
    max_model_len: int,
) -> dict[str, Any]:
    """Return vLLM's GenerateRequest of a prompt. asked: the body of the request."""
    sampling, form = request.sampling, completion_constraints(request.body)
    left = max(max_model_len - len(ids), 0)
    params = {name: asked[name] for name in _PARAMS if asked.get(name) is not None}
    if sampling.logprobs is not None:
        params["logprobs"] = sampling.logprobs
    if form.json_schema is not None:
        params["structured_outputs"] = {"json": form.json_schema}
    elif (grammar := form.grammar) is not None:
        name = "grammar" if grammar.syntax == "lark" else grammar.syntax
        params["structured_outputs"] = {name: list(grammar.choices) if name == "choice" else grammar.definition}
    params |= {
        "n": sampling.n,
        "max_tokens": left if sampling.max_tokens is None else min(sampling.max_tokens, left),
        "min_tokens": sampling.min_tokens,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
    }
    return {
        "request_id": request_id,
        "token_ids": ids.tolist(),
        "features": None,
        "sampling_params": params,
        "model": asked.get("model"),
        "stream": sampling.stream,
        "stream_options": asked.get("stream_options") if sampling.stream else None,
        "cache_salt": asked.get("cache_salt"),
        "priority": sampling.priority,
        "kv_transfer_params": asked.get("kv_transfer_params"),
    }


_UNLESS_ASKED = (
    "prompt_logprobs", "prompt_token_ids", "mm_placeholders", "metrics", "kv_transfer_params", "ec_transfer_params",
)  # fmt: skip


class GenerateHandler(ServiceHandler):
    """Answers as vLLM does. The reply is to a prompt without a conversation: it calls no tools and does not refuse."""

    async def generate(self, exchange: HttpExchange) -> Response:
        service = self._service
        request = await exchange.checked(schema.engines.TokensRequest.check)
        params, sampling = _sampling(request)
        model = service.models.names(exchange)[0] if request.model is None else request.model
        served = service.models.asked(model, exchange)
        ids = await exchange.apart(lambda: read_ids(request.token_ids, "token_ids"))
        prompts, constraints = [EncodedPrompt(ids, "")], completion_constraints(params)
        generation = await service.generate(prompts, sampling, served, exchange, "token_ids", constraints)
        given = None if exchange.header(b"x-request-id") else request.request_id
        head = {"request_id": f"generate-tokens-{given or exchange.request_id.decode()}", "output_mode": request.output_mode}
        tokenizer = await service.tokenizer()
        choices = [_TokensAnswer(*each, head, generation, sampling, tokenizer) for each in enumerate(generation.choices)]
        if sampling.stream:

            def closing() -> bytes:
                last = event({**head, "choices": [], "usage": generation.shown_usage()}) if sampling.include_usage else b""
                return last + DONE

            return TokenStream(generation, exchange, choices, closing).start()
        await finish(generation, exchange)
        answer = {**head, "model": model, "created": int(time.time()), "usage": generation.shown_usage()}
        answer |= dict.fromkeys(_UNLESS_ASKED) | prompt_fields(generation.choices[0], sampling, tokenizer)
        answer |= generation.handed_over
        return await exchange.large_json(
            {**answer, "choices": [choice.part(0, len(choice.choice.reply.ids)) for choice in choices]}
        )


def _sampling(request: schema.engines.TokensRequest) -> tuple[schema.engines.VllmSampling, Sampling]:
    """Return the parameters, with those of the request itself, and what they mean. Raises ApiError for contradictions."""
    if not isinstance(request.token_ids, list):
        raise errors.wrong_type("token_ids", "an array of token ids", request.token_ids)
    own = ("stream", "stream_options", "priority", "return_token_ids")
    params = request.sampling_params.model_copy(update={name: getattr(request, name) for name in own})
    if params.detokenize is False and (params.stop or request.output_mode == "text"):
        field = "stop" if params.stop else "output_mode"
        raise errors.only_with("sampling_params.detokenize", f"'{field}' needs 'sampling_params.detokenize' to be true.")
    return params, params.sampling(params.max_tokens, params.logprobs)


@dataclass(slots=True)
class _TokensAnswer:
    """One choice, whole or as the writer of its events."""

    index: int
    choice: Choice
    head: dict[str, Any]
    generation: Generation
    sampling: Sampling
    tokenizer: Tokenizer

    def tokens(self, start: int, end: int) -> bytes:
        steps = [(start, end)] if self.choice.joined else pairwise(range(start, end + 1))
        return b"".join([event(self._event(*step)) for step in steps])

    def ending(self) -> bytes:
        return b""  # the event of the last token has the finish reason

    def _event(self, start: int, end: int) -> dict[str, Any]:
        usage = self.generation.usage_at(self.choice, end) if self.sampling.usage_in_every_chunk else None
        first = self.sampling.return_token_ids and start == self.index == 0
        prompt = {"prompt_token_ids": self.choice.request.prompt.tolist()} if first else {}
        return {**self.head, "usage": usage, **prompt, "choices": [self.part(start, end)]}

    def part(self, start: int, end: int) -> dict[str, Any]:
        """Return the choice with the tokens from `start` to `end`."""
        reply, text = self.choice.reply, self.head["output_mode"] == "text"
        part = {
            "index": self.index,
            "finish_reason": reply.finish_reason if end == len(reply.ids) else None,
            "token_ids": reply.ids[start:end].tolist(),
            "routed_experts": None,
            "sampling_mask": None,
            "logprobs": None,
        }
        if text:
            part["text"] = "".join(reply.pieces[start:end])
        if (entries := reply_logprobs(self.choice, self.sampling, self.tokenizer)) is not None:
            part["logprobs"] = {"content": LazyList(entries.entry if text else self._entry, range(start, end))}
        return part

    def _entry(self, place: int) -> dict[str, Any]:
        """Return the log probability of a token: vLLM names the sampled one first, and it alone for `logprobs: 0`."""
        id_ = int(self.choice.reply.ids[place])
        found = token_logprob(id_, place, self.tokenizer.vocab_size, max(1, self.sampling.logprobs or 0))
        ranked = {
            token: {"token_id": token, "logprob": logprob, "rank": rank}
            for rank, (token, logprob) in enumerate(found.top, 1)
        }
        own = ranked.pop(id_)
        return {**own, "top_logprobs": [own, *ranked.values()]}
