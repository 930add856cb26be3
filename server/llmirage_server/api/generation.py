"""The one path that chat and completions share: from prompt tokens to replies under way in the cluster."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from llmirage_server.api.access import RateLimits
from llmirage_server.api.exchange import ClientGoneError, Exchange
from llmirage_server.api.models import ServedModel, ServedModels
from llmirage_server.api.shape import TEXT, Shape
from llmirage_server.api.state import MemoryState, State
from llmirage_server.api.text import TextLoader
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import RouterError
from llmirage_server.drivers.live import Driver
from llmirage_server.replies.refusals import is_refused
from llmirage_server.replies.reply import Reply, ReplyRequest, ReplySource
from llmirage_server.replies.stops import stopped_at_token, with_end_shown
from llmirage_server.replies.structured.grammar import GrammarError
from llmirage_server.replies.structured.pattern import PatternError
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.telemetry.metrics import Metrics
from llmirage_shared.tokens import TokenIds, Tokenizer
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.responses import usage
from llmirage_shared.wire.sampling import Sampling

if TYPE_CHECKING:
    from llmirage_shared.wire.schema.base import WireModel
    from llmirage_shared.wire.schema.extensions import Api

logger = logging.getLogger("llmirage")


@dataclass(slots=True, frozen=True)
class Prompt:
    """One prompt of a request. ids: int32, shape (prompt_tokens,). user_text: what the reply answers to."""

    ids: npt.NDArray[np.int32]
    user_text: str
    echo: str = ""  # the prompt's text where the reply must repeat it


class OpenResponse(Protocol):
    """A response under way, which can be ended from outside."""

    def abort(self, error: ApiError) -> None: ...


class Service:
    """What the endpoints share."""

    def __init__(
        self, driver: Driver, text: TextLoader, models: ServedModels, system_fingerprint: str, state: State | None = None
    ) -> None:
        self.driver = driver
        self.text = text
        self.models = models
        self.system_fingerprint = system_fingerprint
        self.state = state or MemoryState()
        self.open_responses: set[OpenResponse] = set()
        self.limits: RateLimits | None = None
        self.refuses_unknown_fields = True
        self.metrics = Metrics(lambda: models.served)
        self.under_way: set[Generation] = set()
        self._refusal: Callable[[], ApiError] | None = None  # of all new requests
        self._request_ids = itertools.count()

    def close(self) -> None:
        """End every response under way with an error the client understands, and refuse new ones."""
        self.pause(errors.shutting_down)
        self.state.close()

    def pause(self, refusal: Callable[[], ApiError]) -> None:
        """End every response under way with this error, and refuse new ones with it, until `resume`."""
        self._refusal = refusal
        for response in list(self.open_responses):
            response.abort(refusal())

    def resume(self) -> None:
        self._refusal = None

    def check_open(self) -> None:
        """Raises ApiError while all new requests are refused."""
        if self._refusal is not None:
            raise self._refusal()

    def new_request(self, prompt: TokenIds, output: TokenIds, model: str, **fields: Any) -> Request:
        """A request for the cluster, which no other has the id of."""
        return Request(next(self._request_ids), prompt, output, model=model, **fields)

    def check_fields(
        self, request: WireModel, api: Api, error: Callable[[str], ApiError] = errors.unknown_parameter
    ) -> None:
        """Raises ApiError for a field that neither the API nor any engine documents."""
        if self.refuses_unknown_fields:
            from llmirage_shared.wire.schema.extensions import unknown_field

            if (name := unknown_field(request, api)) is not None:
                raise error(name)

    async def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        served: ServedModel,
        exchange: Exchange,
        param: str,
        shape: Shape = TEXT,
    ) -> Generation:
        """Plan all choices of all prompts.

        Raises ApiError when one does not fit the context window, or when nothing has the shape that was asked for.
        """
        self.check_open()
        if sampling.priority and not served.priorities:
            raise errors.unsupported("priority", "Priorities need a cluster with schedule_policy priority.")
        limit_tokens = served.max_model_len
        if sampling.truncate_prompt_tokens:
            kept = sampling.truncate_prompt_tokens
            if kept < 0:
                kept = max(1, limit_tokens - (sampling.max_tokens or 1))
            tokenizer = (await self.text.get()).encoder.tokenizer
            prompts = [_last_tokens(prompt, kept, tokenizer) for prompt in prompts]
        for prompt in prompts:
            wanted_tokens = 1 if sampling.max_tokens is None else sampling.max_tokens
            if len(prompt.ids) + wanted_tokens > limit_tokens:
                raise errors.context_length_exceeded(limit_tokens, len(prompt.ids), sampling.max_tokens, param)
        if self.limits is not None:
            self.limits.admit(exchange, served.model, _tokens(prompts, sampling))
        text = await self.text.get()
        replies = text.replies
        affinity, correlation = exchange.header(b"x-session-affinity"), exchange.header(b"x-correlation-id")
        session_key = affinity or correlation or sampling.session_key
        choices = []
        stops = not (sampling.ignore_eos or sampling.min_tokens)  # whoever asks for so many tokens gets them
        for prompt in prompts:
            refuse = shape.may_refuse and stops and is_refused(prompt.user_text)
            for choice in range(sampling.n):
                reply = _planned(
                    replies,
                    ReplyRequest(
                        prompt_ids=prompt.ids,
                        last_user_text=prompt.user_text,
                        max_tokens=sampling.max_tokens,
                        limit_tokens=limit_tokens - len(prompt.ids),
                        min_tokens=sampling.min_tokens,
                        ignore_eos=sampling.ignore_eos,
                        natural_stop=sampling.natural_stop,
                        stop=sampling.stop,
                        include_stop_str=sampling.include_stop_str,
                        seed=sampling.seed,
                        conversation=correlation or affinity,
                        choice=choice,
                        reasoning_tokens=shape.reasoning_tokens,
                        tools=shape.tools,
                        tool_choice=shape.tool_choice,
                        parallel_tool_calls=shape.parallel_tool_calls,
                        called=shape.called,
                        results=shape.results,
                        most_hosted_calls=shape.most_hosted_calls,
                        called_before=shape.called_before,
                        text_before=shape.text_before,
                        json_schema=shape.json_schema,
                        fenced=shape.fenced,
                        grammar=shape.grammar,
                        refuse=refuse,
                        length_factor=shape.length_factor,
                    ),
                )
                if sampling.stop_token_ids:
                    reply = stopped_at_token(reply, sampling.stop_token_ids, sampling.include_stop_str, sampling.min_tokens)
                if sampling.shows_end:
                    reply = with_end_shown(reply, text.encoder.tokenizer)
                request = self.new_request(
                    prompt.ids,
                    reply.ids,
                    served.model,
                    session_key=session_key,
                    priority=sampling.priority,
                    max_tokens=sampling.max_tokens or limit_tokens - len(prompt.ids),
                )
                choices.append(Choice(reply, request, prompt.echo, served.speculates))
        return Generation(self, choices, sampling.n, exchange.arrived_s)


def _last_tokens(prompt: Prompt, kept: int, tokenizer: Tokenizer) -> Prompt:
    if len(prompt.ids) <= kept:
        return prompt
    ids = prompt.ids[-kept:]
    return replace(prompt, ids=ids, echo=tokenizer.decode(ids) if prompt.echo else "")


def _tokens(prompts: Sequence[Prompt], sampling: Sampling) -> int:
    """What a request may cost: its prompts, and all that it allows to be generated."""
    asked = (sampling.max_tokens or 0) * sampling.n * len(prompts)
    return asked + sum(len(prompt.ids) for prompt in prompts)


def _planned(replies: ReplySource, request: ReplyRequest) -> Reply:
    """The reply; ApiError where the form that was asked for is impossible. (Schemas were looked at when they were read.)"""
    try:
        return replies.reply(request)
    except SchemaError as error:
        raise errors.ApiError(f"Invalid schema: {error}", param="tools" if request.tools else "response_format") from None
    except PatternError as error:
        raise errors.ApiError(f"Invalid pattern: {error}", param="structured_outputs") from None
    except GrammarError as error:
        raise errors.ApiError(f"Invalid grammar: {error}", param="structured_outputs") from None


@dataclass(slots=True, frozen=True)
class Choice:
    """One reply and its life in the cluster."""

    reply: Reply
    request: Request
    echo: str
    joined: bool = False  # tokens that come together leave in one chunk

    @property
    def finished(self) -> bool:
        """Whether the cluster is done with it."""
        return self.request.failed or self.request.produced >= len(self.request.output)


class Generation:
    """The choices of one response, prompt-major: `n` for each prompt."""

    def __init__(self, service: Service, choices: list[Choice], n: int, arrived_s: float) -> None:
        """arrived_s: when the request for them reached the server, see Exchange."""
        self.service = service
        self.choices = choices
        self._n = n
        self._arrived_s = arrived_s

    def start(self) -> None:
        """Send all choices to the cluster. Their requests' tags must be set.

        Raises ApiError when no instance is there for them, now or later, or a router of the user's own fails.
        """
        self.service.under_way.add(self)
        try:
            self.service.driver.submit([choice.request for choice in self.choices], self._arrived_s)
        except RouterError as error:
            self.stop()
            logger.error("%s", error)
            raise errors.internal_error(str(error)) from None
        if any(choice.request.failed for choice in self.choices):
            self.stop()
            raise errors.no_instance()

    def stop(self) -> None:
        """Free what unfinished choices hold in the cluster; to be called at every end, and harmless after it."""
        unfinished = [choice.request for choice in self.choices if not choice.finished]
        if unfinished:
            self.service.driver.cancel(unfinished)
        if self in self.service.under_way:
            self.service.under_way.remove(self)
            for choice in self.choices:
                self.service.metrics.ended(choice.request, choice.reply.finish_reason)

    def usage(self) -> dict[str, Any]:
        """Prompt tokens count once for each prompt, whatever n is."""
        prompts = self.choices[:: self._n]
        return usage(
            sum(len(choice.request.prompt) for choice in prompts),
            sum(choice.request.produced for choice in self.choices),
            sum(choice.request.cached_tokens for choice in prompts),
            sum(min(choice.request.produced, choice.reply.reasoning_tokens) for choice in self.choices),
        )

    async def finish(self, exchange: Exchange) -> None:
        """Start, and wait until the last token is due.

        Raises ClientGoneError when the client leaves first (the cluster's memory is free then) and ApiError at shutdown.
        """
        waiter = _Waiter(self)
        for choice in self.choices:
            choice.request.tag = waiter
        self.service.open_responses.add(waiter)
        watch = asyncio.ensure_future(_disconnect(exchange))
        watch.add_done_callback(waiter.client_left)
        try:
            self.start()
            await waiter.done
        finally:
            waiter.forget()
            watch.cancel()
            self.service.open_responses.discard(waiter)
            self.stop()


async def _disconnect(exchange: Exchange) -> None:
    while (await exchange.receive())["type"] != "http.disconnect":
        pass


class _Waiter:
    """Receives the tokens of a response that is sent in one piece."""

    def __init__(self, generation: Generation) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unfinished = len(generation.choices)

    def tokens_due(self, request: Request) -> None:
        if request.failed:
            self.abort(errors.instance_lost())
        elif request.produced >= len(request.output):
            self._unfinished -= 1
            if not self._unfinished and not self.done.done():
                self.done.set_result(None)

    def forget(self) -> None:
        """Nobody waits any more: an error that came too late is nobody's."""
        if self.done.done() and not self.done.cancelled():
            self.done.exception()

    def client_left(self, watch: asyncio.Future[None]) -> None:
        if not watch.cancelled() and not self.done.done():
            self.done.set_exception(ClientGoneError())

    def abort(self, error: ApiError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
