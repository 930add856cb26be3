"""Prompts of turns that are given in token counts, as ids that stand for nothing: what they share is all that matters.

A call extends the one before it in its session, as load.token_calls writes it in text: the previous prompt and its reply
come first, where that fits; else the reply is dropped and the previous prompt grows or is cut back to the count. The same
place in the same session has the same tokens, in every conversation that runs the session; nothing else is ever the same.
There is no chat template: the count is all tokens of the prompt.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from llmirage_client.measure.record import BranchMode
from llmirage_client.workload.session import Session, TokenSpec

TokenIds = npt.NDArray[np.int32]

TOKEN_BYTES = 4
_FIRST_ID, _LAST_ID = 1 << 20, 1 << 31  # above every vocabulary: tokens of texts are others


class Talk(Protocol):
    """What is to be known of a conversation; see load.conversation.Conversation."""

    @property
    def session(self) -> Session: ...
    @property
    def number(self) -> int: ...
    @property
    def parent(self) -> Talk | None: ...
    @property
    def branch_mode(self) -> BranchMode: ...


class TokenStreams:
    """shares: whether calls of a session share anything (`session_prefix`). Ids are int32, kept as their bytes."""

    def __init__(self, shares: bool = True) -> None:
        self._shares = shares
        self._next_id = _FIRST_ID
        self._places: dict[tuple[str, int], tuple[int, int]] = {}  # first id, and how many follow it
        self._contexts: dict[int, bytes] = {}  # by conversation that goes on: its last prompt, and the reply if it has come
        self._prompt_bytes: dict[int, int] = {}  # of that prompt

    def call(self, conversation: Talk, index: int, spec: TokenSpec) -> bytes:
        """The ids of a prompt of spec.input_tokens, and of a reply that is like no other."""
        key = self._prompt(conversation, index, spec.input_tokens, spec.output_tokens)
        if self._is_last(conversation, index):
            self._contexts.pop(conversation.number, None)
            self._prompt_bytes.pop(conversation.number, None)
        else:
            self._prompt_bytes[conversation.number] = spec.input_tokens * TOKEN_BYTES
            self._contexts[conversation.number] = key
        return key

    def prompt(self, conversation: Talk, index: int, spec: TokenSpec) -> bytes:
        """The ids of the prompt alone: the reply is somebody else's, see `replied_with`."""
        prompt = self._prompt(conversation, index, spec.input_tokens, 0)
        self._prompt_bytes[conversation.number] = len(prompt)
        self._contexts[conversation.number] = prompt
        return prompt

    def failed(self, conversation: Talk) -> None:
        """The last call had no reply."""
        context = self._contexts.get(conversation.number)
        if context is not None:
            self._contexts[conversation.number] = context[: self._prompt_bytes[conversation.number]]

    def replied_with(self, conversation: Talk, ids: TokenIds) -> None:
        """The conversation's last prompt was answered with these."""
        prompt = self._contexts.get(conversation.number)
        if prompt is not None:
            prompt = prompt[: self._prompt_bytes[conversation.number]]
            self._contexts[conversation.number] = prompt + np.asarray(ids, dtype=np.int32).tobytes()

    def _prompt(self, conversation: Talk, index: int, wanted: int, fresh: int) -> bytes:
        """A prompt of so many tokens, and so many fresh ids behind it."""
        before = self._before(conversation, wanted) if self._shares else b""
        more = wanted - len(before) // TOKEN_BYTES
        if more <= 0:
            return before[: wanted * TOKEN_BYTES] + self._fresh(fresh)
        place = conversation.session.id, index
        first, known = self._places.get(place, (0, 0))
        if self._shares and known >= more:
            return before + np.arange(first, first + more, dtype=np.int32).tobytes() + self._fresh(fresh)
        if self._shares:
            self._places[place] = self._next_id, more
        return before + self._fresh(more + fresh)

    def _before(self, conversation: Talk, wanted: int) -> bytes:
        """What a prompt of so many tokens may begin with: all so far, the last prompt, or nothing."""
        number = conversation.number
        context = self._contexts.get(number)
        if context is None and conversation.parent is not None and conversation.branch_mode == "fork":
            context = self._contexts.get(conversation.parent.number)
        if context is None:
            return b""
        return context if len(context) < wanted * TOKEN_BYTES else context[: self._prompt_bytes.get(number)]

    def _fresh(self, tokens: int) -> bytes:
        """Ids that no one else has, the next ones."""
        if self._next_id + tokens > _LAST_ID:  # by then the first are long forgotten
            self._next_id = _FIRST_ID
        first = self._next_id
        self._next_id = first + tokens
        return np.arange(first, first + tokens, dtype=np.int32).tobytes()

    @staticmethod
    def _is_last(conversation: Talk, index: int) -> bool:
        """Whether nothing goes on from this call."""
        turns = conversation.session.turns
        return index + 1 == len(turns) and not turns[index].branches
