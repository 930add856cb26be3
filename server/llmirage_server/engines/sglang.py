"""SGLang's own POST /generate, /abort_request and /health_generate."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.json_pieces import LazyList
from llmirage_server.replies.reply import Grammar
from llmirage_server.service.constraints import TEXT, ReplyConstraints, schema_problem
from llmirage_server.service.generation import Choice, Generation, TokenStream
from llmirage_server.service.logprobs import token_logprob
from llmirage_server.service.prompts import MOST_CHOICES, ContextWindow, EncodedPrompt
from llmirage_server.service.service import Service, ServiceHandler, check_choices
from llmirage_server.service.unstreamed import finish
from llmirage_shared.tokens import Tokenizer
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import read_prompts
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import DONE, event
from llmirage_shared.wire.sampling import Sampling

DEFAULT_NEW_TOKENS = 128  # sglang: SamplingParams.max_new_tokens
_MOST_FRAMES = 64  # for tokens that are due together: each frame repeats all text before it


class SglangHandler(ServiceHandler):
    """Answers as SGLang does: each frame of a stream has the whole text so far."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._aborts: dict[str, Callable[[], object]] = {}  # of the requests in progress, by rid

    async def generate(self, exchange: HttpExchange) -> Response:
        started_s = time.monotonic()
        service = self._service
        request = await exchange.checked(schema.engines.GenerateRequest.check)
        params = request.sampling_params or schema.engines.SglangSampling()
        prompts, batched = await self._prompts(exchange, request, params.n or 1)
        sampling = _sampling(request, params)
        served = service.models.asked(service.models.names(exchange)[0], exchange)
        param = "text" if request.text is not None else "input_ids"
        constraints = await exchange.planned(
            lambda: _constraints(params), "sampling_params.json_schema", service.text.plan_in_thread
        )
        rids = self._new_rids(request.rid, len(prompts) * sampling.n)
        with ExitStack() as in_progress:
            self._aborts |= dict.fromkeys(rids, lambda: None)
            in_progress.callback(self._forget, rids)
            generation = await service.generate(prompts, sampling, served, exchange, param, constraints)
            if request.return_logprob:
                first = request.logprob_start_len
                of_prompts = sum(len(prompt.ids) for prompt in prompts) if first is not None and first >= 0 else 0
                tokens = of_prompts * sampling.n + sum(len(choice.reply.ids) for choice in generation.choices)
                exchange.expect_logprobs(tokens * (1 + (request.top_logprobs_num or 0)), sampling.stream)
            tokenizer = await service.tokenizer()
            silent, instead = params.max_new_tokens == 0, generation.usage_instead or {}
            answers = [
                _SglangAnswer(choice, rid, request, tokenizer, silent, started_s, instead)
                for choice, rid in zip(generation.choices, rids, strict=True)
            ]
            one = not batched and sampling.n == 1
            if sampling.stream:
                stream = self._stream(generation, exchange, answers, one)
                stream.left = in_progress.pop_all().close
                return stream
            finishing = asyncio.ensure_future(finish(generation, exchange))
            self._aborts |= dict.fromkeys(rids, finishing.cancel)
            try:
                await finishing
            except asyncio.CancelledError:
                if not finishing.cancelled():  # this handler was cancelled, not the generation
                    finishing.cancel()
                    raise
        bodies = [answer.body() for answer in answers]
        return await exchange.large_json(bodies[0] if one else bodies)

    async def abort_request(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.engines.AbortRequest.check)
        rids = list(self._aborts) if request.abort_all else [request.rid or ""]
        for rid in rids:
            if abort := self._aborts.get(rid):
                abort()
        return exchange.text()

    async def health_generate(self, exchange: HttpExchange) -> Response:
        """One token through the whole cluster."""
        served = self._service.models.find(self._service.models.served[0])
        prompts = [EncodedPrompt(np.zeros(1, dtype=np.int32), "")]
        generation = await self._service.generate(prompts, Sampling(max_tokens=1, ignore_eos=True), served, exchange, "text")
        await finish(generation, exchange)
        return exchange.text()

    async def _prompts(
        self, exchange: HttpExchange, request: schema.engines.GenerateRequest, n: int
    ) -> tuple[list[EncodedPrompt], bool]:
        """Return the prompts, and whether they were given as a list."""
        if request.text is not None:
            texts = [request.text] if isinstance(request.text, str) else request.text
            read_prompts(request.text, "text", MOST_CHOICES)
            check_choices(len(texts), n, "text")
            served = self._service.models.find(self._service.models.served[0])
            encoded = await self._service.encode_texts(exchange, texts, ContextWindow(served.max_model_len, "text"))
            prompts = [EncodedPrompt(ids, text) for ids, text in zip(encoded, texts, strict=True)]
            return prompts, isinstance(request.text, list)
        if request.input_ids is None:
            raise errors.missing("text")
        given = await exchange.apart(lambda: read_prompts(request.input_ids, "input_ids", MOST_CHOICES))
        if any(isinstance(prompt, str) for prompt in given):
            raise errors.wrong_type("input_ids", "an array of token ids", request.input_ids)
        batched = isinstance(request.input_ids[0], list)
        return [EncodedPrompt(ids, "") for ids in given if not isinstance(ids, str)], batched

    def _stream(
        self, generation: Generation, exchange: HttpExchange, answers: list[_SglangAnswer], one: bool
    ) -> _NotifyingStream:
        for index, answer in enumerate(answers):
            answer.index = None if one else index

        def failed(error: ApiError) -> bytes:
            if error.code != _ABORTED:
                return event(exchange.dialect.event_error(error)) + DONE
            return b"".join([event(answer.body()) for answer in answers]) + DONE

        stream = _NotifyingStream(generation, exchange, answers, lambda: DONE, failed).start()
        aborted = ApiError("The request was aborted.", code=_ABORTED)
        self._aborts |= {answer.rid: lambda: stream.abort(aborted) for answer in answers}
        return stream

    def _new_rids(self, given: str | list[str] | None, count: int) -> list[str]:
        """Return a request id for each choice; raise ApiError unless all differ from each other and those in progress."""
        rids = _rids(given, count)
        known = set(self._aborts)
        for rid in rids:
            if rid in known:
                raise errors.invalid_value("rid", f"must be unique, but {errors.shorten(rid)} is the id of another request.")
            known.add(rid)
        return rids

    def _forget(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self._aborts.pop(rid, None)


_ABORTED = "aborted"


class _NotifyingStream(TokenStream):
    """Calls `left` when it is over, however it ended."""

    left: Callable[[], None]

    async def __call__(self, *connection: Any) -> None:
        try:
            await super().__call__(*connection)
        finally:
            self.left()


@dataclass(slots=True)
class _SglangAnswer:
    """One choice in SGLang's form, whole or as the writer of its frames."""

    choice: Choice
    rid: str
    request: schema.engines.GenerateRequest
    tokenizer: Tokenizer
    silent: bool  # no new tokens were asked for
    started_s: float
    usage_instead: Mapping[str, int]  # counts to report at the end instead of the real ones
    index: int | None = None  # among several

    def tokens(self, start: int, end: int) -> bytes:
        total = len(self.choice.reply.ids)
        stride = max(1, (end - start) // (1 if self.choice.joined else _MOST_FRAMES))
        places = [place for place in range(start + stride, end, stride) if place < total]
        places += [end] if end < total else []
        return b"".join([event(self._frame(place)) for place in places])

    def ending(self) -> bytes:
        return event(self.body())

    def body(self) -> dict[str, Any]:
        """All that has been produced, and the finish reason."""
        choice = self.choice
        reply, produced = choice.reply, choice.request.produced
        frame = self._frame(produced)
        reason: dict[str, Any] = {"type": "length", "length": frame["meta_info"]["completion_tokens"]}
        if produced < len(reply.ids):
            reason = {"type": "abort", "message": "Aborted"}
        elif reply.finish_reason == "stop":
            matched = self.tokenizer.end_id if reply.stop_reason is None else reply.stop_reason
            reason = {"type": "stop", "matched": matched}
        elif reply.finish_reason != "length":  # a script says so
            reason = {"type": reply.finish_reason}
        frame["meta_info"] |= {name: count for name, count in self.usage_instead.items() if name in frame["meta_info"]}
        frame["meta_info"]["finish_reason"] = reason
        frame["meta_info"]["e2e_latency"] = time.monotonic() - self.started_s
        return frame

    def _frame(self, place: int) -> dict[str, Any]:
        """Return the answer as it is when `place` tokens have come."""
        choice, request = self.choice, self.request
        reply = choice.reply
        shown = 0 if self.silent else place
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": None,
            "prompt_tokens": choice.request.prompt_tokens,
            "weight_version": "default",
            "total_retractions": choice.request.preemptions,
            "completion_tokens": shown,
            "cached_tokens": choice.request.cached_tokens,
        }
        if request.return_logprob:
            meta |= self._logprobs(shown)
        frame = {"text": "".join(reply.pieces[:shown]), "output_ids": reply.ids[:shown].tolist(), "meta_info": meta}
        return frame if self.index is None else {"index": self.index, **frame}

    def _logprobs(self, shown: int) -> dict[str, Any]:
        request, prompt = self.request, self.choice.request.prompt
        start = request.logprob_start_len
        first = len(prompt) if start is None or start < 0 else min(start, len(prompt))
        top = request.top_logprobs_num or 0
        ids = self.choice.reply.ids
        found: dict[str, Any] = {
            "input_token_logprobs": LazyList(
                lambda place: self._entry(prompt[place], place, place > 0), range(first, len(prompt))
            ),
            "output_token_logprobs": LazyList(lambda place: self._entry(ids[place], place), range(shown)),
        }
        if top:
            found["input_top_logprobs"] = LazyList(
                lambda place: self._top(prompt[place], place, top) if place else None, range(first, len(prompt))
            )
            found["output_top_logprobs"] = LazyList(lambda place: self._top(ids[place], place, top), range(shown))
        return found

    def _entry(self, id_: Any, place: int, known: bool = True) -> list[Any]:
        token = int(id_)
        logprob = token_logprob(token, place, self.tokenizer.vocab_size).logprob if known else None
        return [logprob, token, self._text(token)]

    def _top(self, token: Any, place: int, top: int) -> list[list[Any]]:
        found = token_logprob(int(token), place, self.tokenizer.vocab_size, top)
        return [[logprob, other, self._text(other)] for other, logprob in found.top]

    def _text(self, token: int) -> str | None:
        return self.tokenizer.decode([token]) if self.request.return_text_in_logprobs else None


def _rids(given: str | list[str] | None, count: int) -> list[str]:
    """Return a request id for each choice. Raises ApiError for a list of another length."""
    if isinstance(given, list):
        if len(given) != count:
            raise errors.invalid_value("rid", f"expected {count} of them, but got {len(given)} instead.")
        return given
    if given is not None:
        return [given] if count == 1 else [f"{given}_{index}" for index in range(count)]
    return [os.urandom(16).hex() for _ in range(count)]


def _sampling(request: schema.engines.GenerateRequest, params: schema.engines.SglangSampling) -> Sampling:
    limit = DEFAULT_NEW_TOKENS if params.max_new_tokens is None else max(1, params.max_new_tokens)
    if (params.min_new_tokens or 0) > limit:
        raise errors.invalid_value(
            "sampling_params.min_new_tokens",
            f"expected a value <= max_new_tokens ({limit}), but got {params.min_new_tokens}.",
        )
    stop = [params.stop] if isinstance(params.stop, str) else params.stop or []
    return Sampling(
        n=params.n or 1,
        max_tokens=limit,
        min_tokens=params.min_new_tokens or 0,
        ignore_eos=bool(params.ignore_eos),
        stop=tuple(string for string in stop if string),
        include_stop_str=bool(params.no_stop_trim),
        stop_token_ids=tuple(params.stop_token_ids or ()),
        seed=params.sampling_seed,
        greedy=params.temperature == 0,
        stream=bool(request.stream),
        priority=request.priority or 0,
    )


def _constraints(params: schema.engines.SglangSampling) -> ReplyConstraints:
    """Return the constraints. Raises ApiError for an invalid JSON Schema."""
    if params.json_schema is not None:
        try:
            json_schema = json.loads(params.json_schema)
        except (ValueError, RecursionError):
            raise errors.invalid_value("sampling_params.json_schema", "it is not valid JSON.") from None
        where = "sampling_params.json_schema"
        if problem := schema_problem(json_schema, where):
            raise errors.invalid_schema(where, problem, where, None)
        return ReplyConstraints(json_schema=json_schema, form_field=where)
    if params.regex is not None:
        return ReplyConstraints(grammar=Grammar("regex", params.regex), form_field="sampling_params.regex")
    if params.ebnf is not None:
        return ReplyConstraints(grammar=Grammar("lark", params.ebnf), form_field="sampling_params.ebnf")
    return TEXT
