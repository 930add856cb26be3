"""The way of a request that all endpoints share: prompts to tokens, prompts to planned replies."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llmirage_server.cluster.request import Request
from llmirage_server.drivers.live import Driver
from llmirage_server.http.access import short_name
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.sessions import AFFINITY_HEADERS, SENDER_HEADERS, SLO_HEADERS, first_header, labels, objectives
from llmirage_server.http.turns import turn
from llmirage_server.replies.reply import Reply, ReplyRequest, ReplySource
from llmirage_server.replies.structured.budget import part_worked_on
from llmirage_server.replies.structured.matcher import GrammarError
from llmirage_server.replies.structured.regex_syntax import PatternError
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.service.constraints import TEXT, ReplyConstraints
from llmirage_server.service.generation import Choice, Generation, ResponsesInProgress
from llmirage_server.service.handoffs import FIELDS, KVHandoffs
from llmirage_server.service.models import ServedModel, ServedModels
from llmirage_server.service.prompts import MOST_CHOICES, ContextWindow, EncodedPrompt, with_files
from llmirage_server.service.text import TextLoader, TextTools
from llmirage_server.state.files import FileStore
from llmirage_shared.media import audio_tokens, media_digests
from llmirage_shared.prompt_encoder import Ending, PromptEncoder
from llmirage_shared.tokens import TokenIds, Tokenizer
from llmirage_shared.wire import errors
from llmirage_shared.wire.chat import ChatHistory
from llmirage_shared.wire.sampling import Sampling

if TYPE_CHECKING:
    from llmirage_server.service.scripts import LoadedScripts
    from llmirage_server.telemetry.traces.served import ServedRecorder

# Text that takes some milliseconds to tokenize must not hold up the streams of others.
LONG_CHARACTERS = 8_000
_SPLIT_CHARACTERS = 400_000  # of a longer text even to find out which parts are new takes too long
_MOST_SAID = 600  # characters of what is wrong with a schema
_SLICE = 4  # choices that are planned before others have their turn: each may take some milliseconds

# The fields of a ReplyRequest that are fields of its sampling, of its constraints and of its history.
_REQUESTED = tuple(
    [one.name for one in fields(source) if one.name in ReplyRequest.__dataclass_fields__.keys() - {"last_user_text"}]
    for source in (Sampling, ReplyConstraints, ChatHistory)
)
_READ = tuple([attrgetter(*names) for names in _REQUESTED])


logger = logging.getLogger("llmirage")

_UNREAD = {
    "TTFT": "only the router llm-d:predicted-latency and gateway_ordering=slo-deadline read them.",
    "TPOT": "nothing here reads them, as llm-d's predicted latency does not without its streaming mode.",
}


class Service:
    """The way of a request that all endpoints share: its prompt's tokens, its planned replies, its place in the cluster.

    Attributes:
        driver: The cluster's driver.
        text: The tokenizer, and the source of replies.
        models: The served models.
        dialect: The API imitated where APIs differ.
        files: Uploaded files, which prompts may name.
        responses: The responses in progress.
        documented_only: Fields that neither the API nor any engine documents are refused.
        scripts: Scripted replies, which come before generated ones; None without any.
        recorder: The recorder of served requests; None: they are not traced.
        handoffs: KV that outside routers pass from one request to another; None: they do not.
        answers: Functions of the server's state on which replies depend, by name. They raise nothing.
        ask: Calls one of them, in the process that has the state.
        unread_objectives: Kinds of objectives in headers that nothing reads, and of which the log does not say so yet.
    """

    def __init__(
        self,
        driver: Driver,
        text: TextLoader,
        models: ServedModels,
        files: FileStore,
        responses: ResponsesInProgress,
        documented_only: bool = True,
    ) -> None:
        self.driver = driver
        self.text = text
        self.models = models
        self.dialect = models.dialect
        self.files = files
        self.responses = responses
        self.documented_only = documented_only
        self.scripts: LoadedScripts | None = None
        self.recorder: ServedRecorder | None = None
        self.handoffs: KVHandoffs | None = None
        self.answers: dict[str, Callable[..., Any]] = {}
        self.ask: Callable[..., Awaitable[Any]] = self._answer
        self.unread_objectives = {"TTFT", "TPOT"}
        self._request_ids = itertools.count()

    def new_request(self, prompt: TokenIds, output: TokenIds, model: str, **fields: Any) -> Request:
        """Return a request for the cluster with an id of its own."""
        return Request(self.next_id(), prompt, output, model=model, **fields)

    def next_id(self) -> int:
        """Return the next number of a request to the cluster."""
        return next(self._request_ids)

    async def _answer(self, name: str, *given: Any) -> Any:
        return self.answers[name](*given)

    async def tokenizer(self) -> Tokenizer:
        return (await self._tools()).encoder.tokenizer

    async def _tools(self) -> TextTools:
        return self.text.tools or await self.text.get()

    async def encode_chat(
        self,
        exchange: HttpExchange,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        answer_schema: Any = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        window: ContextWindow | None = None,
    ) -> npt.NDArray[np.int32]:
        """Return the prompt's token ids, int32, shape (prompt_tokens,).

        Raises ApiError, for one far beyond its window at once.
        tools: in chat's form. answer_schema: the JSON Schema that a request gives for the answer. Two more are vLLM's.
        """
        ending = _prompt_ending(add_generation_prompt, continue_final_message)
        encoder = (await self._tools()).encoder
        if _have_parts(messages):
            messages = await with_files(exchange, self.files, messages, self.dialect.strict)
        try:
            text = await exchange.apart(lambda: encoder.render(messages, tools, ending, answer_schema=answer_schema))
        except ValueError as error:  # a model's own template refuses messages, for instance roles that do not alternate
            raise errors.invalid_value("messages", str(error)) from None
        return await self._encode(exchange, encoder, text, window)

    async def encode_text(
        self, exchange: HttpExchange, text: str, window: ContextWindow | None = None
    ) -> npt.NDArray[np.int32]:
        """Token ids of a text without a template, int32, shape (tokens,)."""
        return await self._encode(exchange, (await self._tools()).encoder, text, window)

    async def encode_texts(
        self, exchange: HttpExchange, texts: Sequence[str], window: ContextWindow | None = None
    ) -> list[npt.NDArray[np.int32]]:
        """Token ids of each text; in a thread if there are many of them, which does others' work between two parts of it."""
        if len(texts) == 1:
            return [await self.encode_text(exchange, texts[0], window)]
        encoder = (await self._tools()).encoder
        if sum(map(len, texts)) <= LONG_CHARACTERS:
            return [encoder.encode(text) for text in texts]
        encoded: list[npt.NDArray[np.int32]] = []
        for some in _parts(texts):
            encoded += await exchange.queued(self.text.in_thread, partial(_encode_all, encoder, some, window))
        return encoded

    async def _encode(
        self, exchange: HttpExchange, encoder: PromptEncoder, text: str, window: ContextWindow | None
    ) -> npt.NDArray[np.int32]:
        if len(text) > _SPLIT_CHARACTERS or (
            len(text) > LONG_CHARACTERS and encoder.uncached_characters(text) > LONG_CHARACTERS
        ):
            return await exchange.queued(self.text.in_thread, lambda: _encode_within(encoder, text, window))
        return encoder.encode(text)

    async def generate(
        self,
        prompts: Sequence[EncodedPrompt],
        sampling: Sampling,
        served: ServedModel,
        exchange: HttpExchange,
        param: str,
        constraints: ReplyConstraints = TEXT,
    ) -> Generation:
        """Plan all choices of all prompts; nothing is submitted to the cluster yet.

        param: the field that holds the prompts. Raises ApiError for a prompt that does not fit the context window, a request
        over the rate limits, and constraints that no reply meets.
        """
        history = constraints.history
        user = history.last_user_text or prompts[0].user_text
        exchange.entry.asked(served.model, user, history.system, history.called, history.results, sampling.stream)
        if (refusal := self.responses.refusal) is not None:
            raise refusal()
        check_choices(len(prompts), sampling.n, param)
        if sampling.priority and not served.priorities:
            raise errors.unsupported("priority", "Priorities need a cluster with schedule_policy priority.")
        handoff = None
        if (FIELDS[0] in exchange.body or FIELDS[1] in exchange.body) and self.handoffs is not None:
            handoff = self.handoffs.asked(exchange, len(prompts) * sampling.n)
            if handoff is not None and handoff.prefills:
                sampling = replace(sampling, max_tokens=1, min_tokens=min(1, sampling.min_tokens))
        tools = await self._tools()
        limit_tokens = served.max_model_len
        prompts = _fitting(prompts, sampling, limit_tokens, tools.encoder.tokenizer, param)
        scripted = None
        if self.scripts is not None:
            scripted = await self.scripts.answer(
                exchange, history, [history.last_user_text or each.user_text for each in prompts], sampling.stream
            )
        exchange.admit(served.model, _tokens(prompts, sampling))

        def reply(one: _Wanted) -> Reply:
            if scripted is None:
                return _planned(tools.replies, one[1])
            return scripted.reply(*one, tools.encoder.tokenizer, partial(_planned, tools.replies))

        sender = _sender(exchange.headers)
        session_key = await exchange.apart(lambda: _short(sampling.session_key))
        wanted = _wanted(prompts, sampling, constraints, limit_tokens, sender.conversation)
        part = "tools" if constraints.tools else constraints.form_field
        choices: list[Choice] = []
        tokens = 0
        for start in range(0, len(wanted), _SLICE):
            if start:
                await turn()
            some = wanted[start : start + _SLICE]
            replies = await exchange.planned(partial(_replies, some, reply), part, self.text.plan_in_thread)
            choices += [
                self._choice(prompts[place], request, planned, sampling, served, exchange, sender, session_key)
                for (place, request), planned in zip(some, replies, strict=True)
            ]
            tokens += sum([request.choice and len(request.prompt_ids) for _, request in some])
            tokens += sum([len(planned.ids) for planned in replies])
            exchange.expect_tokens(tokens)
        if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            exchange.expect_logprobs(_logprobs(prompts, choices, sampling))
        usage = None if scripted is None else scripted.usage
        sounds = 0
        if _have_parts(history.messages):
            sounds = audio_tokens(history.messages)
            digests = await exchange.apart(lambda: media_digests(history.messages))
            self.responses.metrics.media(served.model, max(0, exchange.instance), digests)
        generation = Generation(
            self.responses,
            choices,
            sampling.n,
            exchange.submitted_s,
            exchange.entry,
            usage,
            sounds,
            cached=exchange.dialect.cached,
        )
        if self.recorder is not None:
            texts = [prompt.user_text for prompt in prompts]
            generation.traced = self.recorder.begun(
                exchange.entry, exchange.body, texts, sampling, history, constraints.tools
            )
        if handoff is not None and self.handoffs is not None:
            requests = [choice.request for choice in choices]
            generation.handed_over = await self.handoffs.bind(handoff, requests, exchange)
        if exchange.fault is not None:
            exchange.fault.generation = generation
        if exchange.held is not None:
            exchange.held.planned()
        return generation

    def _choice(
        self,
        prompt: EncodedPrompt,
        request: ReplyRequest,
        reply: Reply,
        sampling: Sampling,
        served: ServedModel,
        exchange: HttpExchange,
        sender: _Sender,
        session_key: str | None,
    ) -> Choice:
        """Return a planned reply with its request for the cluster."""
        in_cluster = self.new_request(
            prompt.ids,
            reply.ids,
            served.model,
            session_key=sender.affinity or request.conversation or session_key,
            priority=(sampling.priority or served.class_priorities.get(sender.service_class, 0)) + exchange.priority,
            max_tokens=sampling.max_tokens or request.limit_tokens,
            only_instance=exchange.instance,
            rank=_rank(exchange, served),
            adapter=served.adapter,
        )
        length = exchange.headers.get(b"content-length", b"")
        if length.isdigit() and len(length) < 20:
            in_cluster.body_bytes = int(length)
        in_cluster.objective, in_cluster.fairness_id = sender.service_class, sender.tenant
        if sender is not _NAMELESS:
            in_cluster.slo_ttft_s = self._ttft_objective_s(exchange)
        return Choice(reply, in_cluster, prompt.echo, served.joined)

    def _ttft_objective_s(self, exchange: HttpExchange) -> float:
        """Return the TTFT objective of the request; inf without one. Say once what nothing here reads."""
        if not (found := objectives(exchange.headers.get)):
            return math.inf
        for name in sorted(self.unread_objectives & found.keys()):
            logger.warning("Requests have %s objectives in %s: %s", name, SLO_HEADERS[name][0].decode(), _UNREAD[name])
        self.unread_objectives -= found.keys()
        return found.get("TTFT", math.inf)


def _rank(exchange: HttpExchange, served: ServedModel) -> int:
    """Return the data-parallel rank of the port, or that the request names, as routers of vLLM or SGLang do; -1: none.

    Raises ApiError for one that there is not. Where there is one rank alone, its number does not matter.
    """
    if (only := exchange.engine[1]) >= 0:
        return only
    given = exchange.header(b"x-data-parallel-rank") or ""
    rank = int(given) if given.isascii() and given.isdigit() and len(given) < 6 else -1
    for field in ("routed_dp_rank", "data_parallel_rank"):
        if type(number := exchange.body.get(field)) is int:
            rank = number
    if served.ranks > 1 and rank >= served.ranks:
        raise errors.invalid_value("data_parallel_rank", f"expected a number from 0 to {served.ranks - 1}.")
    return rank if served.ranks > 1 else -1


def _short(name: str | None) -> str | None:
    return name and short_name(name)


@dataclass(slots=True, frozen=True)
class _Sender:
    """The names in a request's headers: of its session, of its conversation, of its tenant and its class."""

    affinity: str | None = None
    conversation: str | None = None
    tenant: str = ""
    service_class: str = ""


_NAMELESS = _Sender()


def _sender(headers: Mapping[bytes, bytes]) -> _Sender:
    if SENDER_HEADERS.isdisjoint(headers):
        return _NAMELESS
    affinity = _short(first_header(headers.get, AFFINITY_HEADERS))
    correlation = _short(headers.get(b"x-correlation-id", b"").decode("latin-1"))
    return _Sender(affinity, correlation or affinity, **labels(headers.get))


def _have_parts(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(isinstance(message.get("content"), list) for message in messages)


def _fitting(
    prompts: Sequence[EncodedPrompt], sampling: Sampling, limit_tokens: int, tokenizer: Tokenizer, param: str
) -> Sequence[EncodedPrompt]:
    """Return the prompts, cut at their start if the request says so.

    Raises ApiError for one that does not fit the window.
    """
    wanted_tokens = 1 if sampling.max_tokens is None else sampling.max_tokens
    if sampling.truncate_prompt_tokens:
        kept = sampling.truncate_prompt_tokens
        if kept < 0:
            kept = max(1, limit_tokens - (sampling.max_tokens or 1))
        prompts = [_last_tokens(prompt, kept, tokenizer) for prompt in prompts]
    for prompt in prompts:
        if len(prompt.ids) + wanted_tokens > limit_tokens:
            raise errors.context_length_exceeded(limit_tokens, len(prompt.ids), sampling.max_tokens, param)
    return prompts


def _requested(sampling: Sampling, constraints: ReplyConstraints) -> dict[str, Any]:
    """Return the fields of a ReplyRequest that are the same for all prompts and choices."""
    asked = (sampling, constraints, constraints.history)
    fields: dict[str, Any] = {}
    for source, names, read in zip(asked, _REQUESTED, _READ, strict=True):
        fields.update(zip(names, read(source), strict=True))
    # Who asks for a number of tokens gets it.
    fields["may_refuse"] = constraints.may_refuse and not (sampling.ignore_eos or sampling.min_tokens)
    return fields


def check_choices(prompts: int, n: int, param: str) -> None:
    """Raise ApiError (400) for more choices than one request may ask for. param: the field that holds the prompts."""
    if prompts * n > MOST_CHOICES:
        raise errors.too_many_choices(param, MOST_CHOICES, prompts, n)


def _prompt_ending(add_generation_prompt: bool | None, continue_final_message: bool | None) -> Ending:
    """Return the ending of a conversation's prompt. Raises ApiError for a contradiction."""
    if continue_final_message:
        if add_generation_prompt:
            raise errors.only_with(
                "continue_final_message", "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
            )
        return "open"
    return "message" if add_generation_prompt is False else "reply"


def _encode_within(encoder: PromptEncoder, text: str, window: ContextWindow | None) -> npt.NDArray[np.int32]:
    """Token ids. A text far longer than the window is not tokenized to its end. Raises ApiError for it."""
    if window is not None:
        most_tokens = max(window.tokens, window.counted_to)
        if (found := encoder.tokenizer.tokens_beyond(text, most_tokens)) is not None:
            raise window.exceeded(found)
    return encoder.encode(text)


def _encode_all(encoder: PromptEncoder, texts: Sequence[str], window: ContextWindow | None) -> list[npt.NDArray[np.int32]]:
    return [_encode_within(encoder, text, window) for text in texts]


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts in parts of at most `_SPLIT_CHARACTERS` characters, or of one text."""
    part: list[str] = []
    left = _SPLIT_CHARACTERS
    for text in texts:
        if part and len(text) > left:
            yield part
            part, left = [], _SPLIT_CHARACTERS
        part.append(text)
        left -= len(text)
    yield part


def _last_tokens(prompt: EncodedPrompt, kept: int, tokenizer: Tokenizer) -> EncodedPrompt:
    if len(prompt.ids) <= kept:
        return prompt
    ids = prompt.ids[-kept:]
    return replace(prompt, ids=ids, echo=tokenizer.decode(ids) if prompt.echo else "")


def _tokens(prompts: Sequence[EncodedPrompt], sampling: Sampling) -> int:
    """Return the tokens that a request may cost: its prompts, and all that it allows to be generated."""
    requested = (sampling.max_tokens or 0) * sampling.n * len(prompts)
    return requested + sum(len(prompt.ids) for prompt in prompts)


def _logprobs(prompts: Sequence[EncodedPrompt], choices: Sequence[Choice], sampling: Sampling) -> int:
    """Return the number of log probabilities of a whole answer; 0 for a stream, whose come one by one."""
    if sampling.stream:
        return 0
    of_prompts = 0 if sampling.prompt_logprobs is None else sum(len(prompt.ids) for prompt in prompts) * sampling.n
    of_replies = 0 if sampling.logprobs is None else sum(len(choice.reply.ids) for choice in choices)
    return of_prompts * max(1, sampling.prompt_logprobs or 0) + of_replies * (1 + (sampling.logprobs or 0))


_Wanted = tuple[int, ReplyRequest]  # the number of the prompt, and one choice for it


def _wanted(
    prompts: Sequence[EncodedPrompt],
    sampling: Sampling,
    constraints: ReplyConstraints,
    limit_tokens: int,
    conversation: str | None,
) -> list[_Wanted]:
    """Return the requests for replies, prompt-major: `n` for each prompt."""
    requested = _requested(sampling, constraints)
    return [
        (
            place,
            ReplyRequest(
                prompt_ids=prompt.ids,
                last_user_text=prompt.user_text,
                limit_tokens=limit_tokens - len(prompt.ids),
                conversation=conversation,
                choice=choice,
                **requested,
            ),
        )
        for place, prompt in enumerate(prompts)
        for choice in range(sampling.n)
    ]


def _replies(wanted: Sequence[_Wanted], reply: Callable[[_Wanted], Reply]) -> list[Reply]:
    return [reply(one) for one in wanted]


def _planned(replies: ReplySource, request: ReplyRequest) -> Reply:
    """Return the reply. Raises ApiError with the field that demands arguments or an answer that nothing satisfies."""
    try:
        return replies.reply(request)
    except (SchemaError, PatternError, GrammarError) as error:
        what = "schema" if isinstance(error, SchemaError) else "grammar" if isinstance(error, GrammarError) else "pattern"
        path = f"{error.path}: " if isinstance(error, SchemaError) and error.path else ""
        said = errors.shorten(f"Invalid {what}: {path}{error}", _MOST_SAID)
        raise errors.ApiError(said, param=part_worked_on()) from None


class ServiceHandler:
    """The endpoints of one API or of one kind: each method answers an exchange."""

    def __init__(self, service: Service) -> None:
        self._service = service
