"""Requests that turns of conversations become: bodies and headers.

Turns given in tokens: their ids are sent as they are to /completions where the endpoint takes them. Elsewhere one word
stands for each id, so that equal prefixes stay equal. Without ids the text is synthetic; in a session each call then extends
the one before:

- previous messages, the live reply, and a new user message that fills up to the next count, where that fits;
- else the reply is dropped and the last user message grows or shrinks to the count (1472 in and 133 out, then 1582 in: the
first prompt stays and gets 110 tokens longer);
- else the conversation is cut back, message by message, until the count can be met.

So the shared prefix is as long as the counts allow and the count is always exact: it is the server's own prompt_tokens, chat
template included, when the tokenizer here is the server's.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from llmirage_client.load.conversation import Conversation
from llmirage_client.load.history import LIVE_MODES, Message, Thread, authored, fit_results, items_of
from llmirage_client.load.options import RunOptions
from llmirage_client.targets.endpoints import Endpoint, EndpointName, TurnRequest, endpoint_named
from llmirage_client.targets.endpoints.chat import prompt_body
from llmirage_client.targets.target import Call
from llmirage_client.workload.session import Problem, TokenSpec, Turn, Workload
from llmirage_shared.prompt_encoder import ChatTemplateError, PromptEncoder
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import load
from llmirage_shared.tokens import TokenizerError
from llmirage_shared.wire.refusals import ENGINE_FIELDS

_AS_IT_IS = " !#$&'()*+,/:;=?@[]"  # besides letters, digits and -._~, in a header; all else is percent-encoded
_EXACT_FIELDS = ("min_tokens", "ignore_eos")


@dataclass(slots=True, frozen=True)
class Planned:
    """A turn's request, with its prompt tokens and requested tokens where the workload or our own count gives them.

    input_tokens: counted by the endpoint's tokenizer. input_tokens_asked: of the workload, by whatever tokenizer.
    """

    call: Call
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_asked: int | None = None


def thread_of(conversation: Conversation) -> Thread:
    """Return the conversation's history; an empty one for a new conversation."""
    if conversation.thread is None:
        conversation.thread = Thread()
    return conversation.thread


def message_call(conversation: Conversation, turn: Turn, options: RunOptions, endpoint: Endpoint) -> Call:
    """Return the request of a turn that has messages; they stay in the conversation's thread."""
    mode, thread = conversation.session.mode, thread_of(conversation)
    new: Sequence[Mapping[str, Any]] = turn.messages
    items: list[Mapping[str, Any]]
    if mode in LIVE_MODES:
        # The typed APIs refuse a history in which a call has no result; for chat a file means what it means to AIPerf.
        new = fit_results(thread.history, new, options.tool_results or ("fitted" if endpoint.translates else "authored"))
    if mode == "isolated":
        items = [dict(item) for item in endpoint.items(new)]  # sent once: nothing to remember
    else:
        thread.history.extend(authored(new, endpoint))
        items = items_of(thread.history[thread.on_server :], endpoint)
    if turn.tools is not None:
        thread.tools = endpoint.tools(turn.tools)
    elif mode == "isolated":
        thread.tools = None
    request = TurnRequest(
        items,
        turn.model or options.model,
        options.streaming,
        tools=thread.tools,
        max_tokens=limit_of(turn, endpoint, options),
        legacy_max_tokens=options.use_legacy_max_tokens,
        previous_response_id=thread.response_id,
        conversation_id=conversation.correlation_id if mode == "server_conversation" else None,
        alone=mode == "isolated" or _only_request(conversation),
    )
    body = endpoint.body(request) | engine_fields(turn, endpoint, options, turn.min_tokens)
    return finished_call(endpoint, body, turn, options)


def limit_of(turn: Turn, endpoint: Endpoint, options: RunOptions) -> int | None:
    """Return the limit of a turn's reply to send: at least the API's minimum, unless a field of an engine is sent, too."""
    limit = turn.limit
    if limit is None or options.takes_engine_fields or _is_for_engine(turn, options):
        return limit
    return max(limit, endpoint.least_max_tokens)


def engine_fields(turn: Turn, endpoint: Endpoint, options: RunOptions, exactly: int | None) -> dict[str, int | bool]:
    """Return fields of engines for a reply of `exactly` that many tokens, or for a limit below the API's minimum."""
    if options.endpoint_kind not in endpoint.exact_kinds:
        return {}
    if exactly is not None:
        return {"min_tokens": exactly, "ignore_eos": True}
    return {"min_tokens": 0} if turn.limit is not None and turn.limit < endpoint.least_max_tokens else {}


def short_limits(workload: Workload, options: RunOptions) -> tuple[int, int]:
    """Return how many turns have a limit below the API's minimum, and that minimum."""
    least = endpoint_named(options.endpoint_type or "chat").least_max_tokens
    turns = [turn for session in workload.sessions.values() for turn in session.turns]
    return sum(1 for turn in turns if (turn.limit or least) < least and not _is_for_engine(turn, options)), least


def _is_for_engine(turn: Turn, options: RunOptions) -> bool:
    return not (ENGINE_FIELDS.isdisjoint(turn.extra) and ENGINE_FIELDS.isdisjoint(options.extra_inputs))


def _only_request(conversation: Conversation) -> bool:
    turns = conversation.session.turns
    return len(turns) == 1 and not turns[0].branches and conversation.branch_mode != "fork"


def verbatim_call(turn: Turn, options: RunOptions) -> Call:
    """Return the turn's payload as a call. Its keys give its API unless the endpoint type is given."""
    assert turn.payload is not None
    endpoint = endpoint_named(options.endpoint_type or _endpoint_of(turn.payload))
    return _call(endpoint, turn.payload, turn.payload.get("stream") is True, options)


def finished_call(endpoint: Endpoint, body: dict[str, Any], turn: Turn, options: RunOptions) -> Call:
    """Add the command line's and then the turn's extra fields, and ask a stream for its usage."""
    body.update(options.extra_inputs)
    body.update(endpoint.extra(turn.extra))
    if options.endpoint_kind in endpoint.exact_kinds:
        body.update({name: turn.extra[name] for name in _EXACT_FIELDS if name in turn.extra})
    stream = bool(body.get("stream"))
    wishes = body.get("stream_options")
    if stream and endpoint.asks_for_usage and (wishes is None or isinstance(wishes, dict)):
        body["stream_options"] = {"include_usage": True, **(wishes or {})}
    return _call(endpoint, body, stream, options)


def _call(endpoint: Endpoint, body: Mapping[str, Any], stream: bool, options: RunOptions) -> Call:
    path = options.endpoint_path
    return Call(
        path or endpoint.path,
        body,
        stream=stream,
        new_reply=endpoint.new_reply,
        api=endpoint.name,
        from_root=path is not None,
    )


def _endpoint_of(payload: Mapping[str, Any]) -> EndpointName:
    if "messages" in payload:
        return "chat"
    return "completions" if "prompt" in payload else "responses" if "input" in payload else "chat"


def headers(conversation: Conversation, request_id: str, call: Call, options: RunOptions) -> dict[str, str]:
    """Return the headers of a request."""
    found = {"X-Session-ID": conversation.session.route} if conversation.session.routed else {}
    tenant = conversation.tenant_of(conversation.turn_index or 0)
    if tenant.service_class:
        found["X-Gateway-Inference-Objective"] = quote(tenant.service_class, _AS_IT_IS)
    for name, limit_ms in options.class_objectives.get(tenant.service_class, {}).items():
        found[f"X-SLO-{name}-MS"] = str(math.ceil(limit_ms))  # a whole number for llm-d's slo-deadline ordering
    if tenant.name:
        found["X-Gateway-Inference-Fairness-ID"] = quote(tenant.name, _AS_IT_IS)
    if "dynamo" in options.session_headers:
        found["X-Dynamo-Session-ID"] = conversation.correlation_id
        if conversation.parent is not None:
            found["X-Dynamo-Parent-Session-ID"] = conversation.parent.correlation_id
    if "smg" in options.session_headers:
        found["X-SMG-Routing-Key"] = conversation.affinity_id
    return found | {
        "X-Request-ID": request_id,
        options.session_header or "X-Correlation-ID": conversation.correlation_id,
        "X-Session-Affinity": conversation.affinity_id,
        "Accept": "text/event-stream" if call.stream else "application/json",
    }


_EMBEDDED_OVERHEAD_BELOW = 16  # tokens: more than the embedded chat template adds to one message
_ROUNDS_TO_MEET_A_COUNT = 4


class PromptTooShortError(ValueError):
    """A prompt of fewer tokens than the chat template alone takes."""


CONTENT_ERRORS = (TokenizerError, ChatTemplateError, PromptTooShortError)
"""Errors of requests that are impossible with any endpoint; their messages are for the user."""


class TokenCalls:
    """The writer of turns given in tokens. Loads the tokenizer when created. Raises TokenizerError if that fails."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        tokenizer, template = load(options.tokenizer)
        self._encoder = PromptEncoder(tokenizer, template)
        self._text = SyntheticText(tokenizer, options.seed or 0)
        self._completions = endpoint_named("completions")
        named = options.endpoint_type
        self._endpoint = endpoint_named("chat" if named in (None, "completions") else named)
        self.overhead_tokens = self._count([_user("")])

    def prepare(self) -> None:
        """Load the vocabulary. Raises TokenizerError."""
        self._text.prepare()

    def plan(self, conversation: Conversation, turn: Turn) -> Planned:
        """Return the request of a turn. Raises PromptTooShortError."""
        spec, options = turn.tokens, self._options
        assert spec is not None
        as_prompt = options.endpoint_type == "completions" or prompt_as_ids(spec, options)
        endpoint = self._completions if as_prompt else self._endpoint
        items = [] if as_prompt else items_of(self._messages(conversation, spec), endpoint)
        request = TurnRequest(
            items,
            turn.model or options.model,
            options.streaming,
            max_tokens=limit_of(turn, endpoint, options),
            legacy_max_tokens=options.use_legacy_max_tokens,
        )
        body = prompt_body(self._prompt(conversation, spec), request) if as_prompt else endpoint.body(request)
        body |= engine_fields(turn, endpoint, options, spec.output_tokens)
        counted = options.counts_prompts or prompt_as_ids(spec, options)
        call = finished_call(endpoint, body, turn, options)
        return Planned(call, spec.input_tokens if counted else None, spec.output_tokens, spec.input_tokens)

    def _prompt(self, conversation: Conversation, spec: TokenSpec) -> str | list[int]:
        if spec.input_ids is None:
            # Prompts of one session are prefixes of one text, which is as much as calls of given lengths can share.
            return self._text.text(self._key(conversation), spec.input_tokens)
        if self._options.takes_engine_fields:
            ids: list[int] = spec.input_ids.tolist()
            return ids
        return self._text.text_for_ids(spec.input_ids)

    def _messages(self, conversation: Conversation, spec: TokenSpec) -> list[Any]:
        if spec.input_ids is not None:
            room = spec.input_tokens - self.overhead_tokens
            if room < 1:
                raise self._too_short(spec)
            return [_user(self._text.text_for_ids(spec.input_ids[:room]))]
        history = thread_of(conversation).history
        if self._options.session_prefix == "none":
            history.clear()
        self._extend(conversation, spec)
        return list(history)

    def _extend(self, conversation: Conversation, spec: TokenSpec) -> None:
        """Make the history a prompt of exactly spec.input_tokens tokens that shares its longest possible prefix."""
        history = thread_of(conversation).history
        while True:
            if history and history[-1]["role"] == "user":
                history.pop()  # it has no reply: written anew, longer or shorter
            room = spec.input_tokens - self._count([*history, _user("")])
            if room >= 1:
                break
            if not history:
                raise self._too_short(spec)
            history.pop()
        key = self._key(conversation)
        history.append(_user(""))
        for _ in range(_ROUNDS_TO_MEET_A_COUNT):  # more than one only where a template trims or merges
            history[-1] = _user(self._text.text(key, room))
            missing = spec.input_tokens - self._count(history)
            if not missing:
                return
            room = max(room + missing, 1)

    def _key(self, conversation: Conversation) -> int:
        """Return the key of the next user message's text.

        The same place in the same session has the same text, unless nothing is to be shared.
        """
        thread = thread_of(conversation)
        session = conversation.session
        own = (session.id, session.repeat) if session.repeat else (session.id,)
        place: tuple[object, ...] = (*own, len(thread.history))
        if self._options.session_prefix == "none":
            thread.fresh_texts += 1
            place = (*place, conversation.number, thread.fresh_texts)
        elif self._options.endpoint_type == "completions":
            place = own
        return int.from_bytes(hashlib.blake2b(repr(place).encode(), digest_size=8).digest())

    def _count(self, messages: list[Any]) -> int:
        return len(self._encoder.encode_chat(messages))

    def _too_short(self, spec: TokenSpec) -> PromptTooShortError:
        return PromptTooShortError(
            f"a chat prompt of {spec.input_tokens} tokens is not possible: the chat template of the tokenizer alone takes "
            f"{self.overhead_tokens} (--endpoint-type completions has none)"
        )


def prompt_as_ids(spec: TokenSpec, options: RunOptions) -> bool:
    """Return whether the turn's token ids are sent as they are."""
    return spec.input_ids is not None and options.takes_engine_fields and options.endpoint_type in (None, "completions")


def short_prompts(workload: Workload, options: RunOptions) -> list[Problem]:
    """Return every turn with a prompt shorter than the chat template; loads a tokenizer only where one might be."""
    if options.endpoint_type == "completions":
        return []
    as_chat = [
        (session, index, turn.tokens)
        for session in workload.sessions.values()
        for index, turn in enumerate(session.turns)
        if turn.tokens is not None and not prompt_as_ids(turn.tokens, options)
    ]
    if options.tokenizer is None:
        as_chat = [entry for entry in as_chat if entry[2].input_tokens < _EMBEDDED_OVERHEAD_BELOW]
    if not as_chat:
        return []
    calls = TokenCalls(options)
    return [
        Problem(str(calls._too_short(spec)), session.line, f"sub_requests.{index}.input_toks" if index else "input_toks")
        for session, index, spec in as_chat
        if spec.input_tokens <= calls.overhead_tokens
    ]


def _user(text: str) -> Message:
    return Message({"role": "user", "content": text})
