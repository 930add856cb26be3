"""Requests of turns that are given in tokens: so many in, so many out, and perhaps which.

Ids go as they are to /completions where the endpoint takes them. Elsewhere one word stands for each id, so that equal
prefixes stay equal. Without ids the text is synthetic; in a session each call then extends the one before:

- previous messages, the live reply, and a new user message that fills up to the next count, where that fits;
- else the reply is dropped and the last user message grows or shrinks to the count (1472 in and 133 out, then 1582 in: the
  first prompt stays and gets 110 tokens longer);
- else the conversation is cut back, message by message, until the count can be met.

So the shared prefix is as long as the counts allow and the count is always exact: it is the server's own prompt_tokens, chat
template included, when the tokenizer here is the server's.
"""

from __future__ import annotations

import hashlib
from typing import Any

from llmirage_client.load.calls import Planned, engine_fields, finished_call, limit_of, thread_of
from llmirage_client.load.conversation import Conversation
from llmirage_client.load.history import Message, items_of
from llmirage_client.load.options import RunOptions
from llmirage_client.targets.endpoints import TurnRequest, endpoint_named
from llmirage_client.targets.endpoints.completions import prompt_body
from llmirage_client.workload.session import Problem, TokenSpec, Turn, Workload
from llmirage_shared.chat_template import ChatTemplateError
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import load
from llmirage_shared.tokens import TokenizerError

_EMBEDDED_OVERHEAD_BELOW = 16  # tokens: more than the embedded chat template adds to one message
_ROUNDS_TO_MEET_A_COUNT = 4


class PromptTooShortError(ValueError):
    """A prompt of fewer tokens than the chat template alone takes."""


CONTENT_ERRORS = (TokenizerError, ChatTemplateError, PromptTooShortError)
"""What a request may not be possible for, whatever the endpoint; their messages are for the user."""


class TokenCalls:
    """Loads the tokenizer when it is made. Raises TokenizerError when that fails."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        tokenizer, template = load(options.tokenizer)
        self._encoder = PromptEncoder(tokenizer, template)
        self._text = SyntheticText(tokenizer, options.seed or 0)
        self._completions = endpoint_named("completions")
        named = options.endpoint_type
        self._endpoint = endpoint_named("chat" if named in (None, "completions") else named)
        self.overhead_tokens = self._count([_user("")])

    def plan(self, conversation: Conversation, turn: Turn) -> Planned:
        """Raises PromptTooShortError."""
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
        return Planned(call, spec.input_tokens if counted else None, spec.output_tokens)

    def _prompt(self, conversation: Conversation, spec: TokenSpec) -> str | list[int]:
        if spec.input_ids is None:
            # Prompts of one session are prefixes of one text, which is as much as calls of given lengths can share.
            return self._text.text(self._key(conversation), spec.input_tokens)
        if self._options.takes_token_ids:
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
        """Makes the history a prompt of exactly spec.input_tokens tokens that shares what it can with what it was."""
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
        """Of the next user message: the same place in the same session has the same text, unless nothing is to be shared."""
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
    """Whether the turn's token ids go on the wire as they are."""
    return spec.input_ids is not None and options.takes_token_ids and options.endpoint_type in (None, "completions")


def short_prompts(workload: Workload, options: RunOptions) -> list[Problem]:
    """Every turn whose prompt would be shorter than the chat template; loads a tokenizer only where one might be."""
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
