"""Prompts of turns that are given in token counts, as ids that stand for nothing: what they share is all that matters.

A call extends the one before it in its session, as load.token_calls writes it in text: the previous prompt and its reply
come first, where that fits; else the reply is dropped and the previous prompt grows or is cut back to the count. The same
place in the same session has the same tokens, in every conversation that runs the session; nothing else is ever the same.
There is no chat template: the count is all tokens of the prompt.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmirage_client.load.conversation import Conversation
from llmirage_client.workload.session import TokenSpec

TokenIds = npt.NDArray[np.int32]

TOKEN_BYTES = 4
_FIRST_ID, _LAST_ID = 1 << 20, 1 << 31  # above every vocabulary: tokens of texts are others


class TokenStreams:
    """shares: whether calls of a session share anything (`session_prefix`). Ids are int32, kept as their bytes."""

    def __init__(self, shares: bool = True) -> None:
        self._shares = shares
        self._next_id = _FIRST_ID
        self._places: dict[tuple[str, int], tuple[int, int]] = {}  # first id, and how many follow it
        self._prompts: dict[int, bytes] = {}  # by conversation that goes on: its last prompt
        self._contexts: dict[int, bytes] = {}  # and that prompt with its reply

    def call(self, conversation: Conversation, index: int, spec: TokenSpec) -> bytes:
        """The ids of a prompt of spec.input_tokens, and of a reply that is like no other."""
        number, wanted = conversation.number, spec.input_tokens
        if not self._shares:
            return self._fresh(wanted + spec.output_tokens)
        before = self._before(conversation, wanted)
        if before is None:
            place = conversation.session.id, index
            if place not in self._places and self._is_last(conversation, index):
                self._places[place] = self._next_id, wanted
                return self._fresh(wanted + spec.output_tokens)
        prompt = self._extended(conversation.session.id, index, before or b"", wanted)
        if self._is_last(conversation, index):
            self._prompts.pop(number, None)
            self._contexts.pop(number, None)
        else:
            self._prompts[number] = prompt
        return prompt + self._fresh(spec.output_tokens)

    def prompt(self, conversation: Conversation, index: int, spec: TokenSpec) -> bytes:
        """The ids of the prompt alone: the reply is somebody else's."""
        if not self._shares:
            return self._fresh(spec.input_tokens)
        before = self._before(conversation, spec.input_tokens) or b""
        prompt = self._extended(conversation.session.id, index, before, spec.input_tokens)
        self._prompts[conversation.number] = prompt
        return prompt

    def replied(self, conversation: Conversation, context: bytes) -> None:
        """The conversation has come to this: its last prompt and the reply."""
        if conversation.number in self._prompts:
            self._contexts[conversation.number] = context

    def replied_with(self, conversation: Conversation, ids: TokenIds) -> None:
        """The conversation's last prompt was answered with these."""
        prompt = self._prompts.get(conversation.number)
        if prompt is not None:
            self._contexts[conversation.number] = prompt + np.asarray(ids, dtype=np.int32).tobytes()

    def _before(self, conversation: Conversation, wanted: int) -> bytes | None:
        """What a prompt of so many tokens may begin with: all so far, the last prompt, or nothing."""
        context = self._contexts.get(conversation.number)
        if context is None and conversation.parent is not None and conversation.branch_mode == "fork":
            context = self._contexts.get(conversation.parent.number)
        if context is None or len(context) < wanted * TOKEN_BYTES:
            return context
        return self._prompts.get(conversation.number, context)

    def _extended(self, session_id: str, index: int, before: bytes, wanted: int) -> bytes:
        more = wanted - len(before) // TOKEN_BYTES
        if more <= 0:
            return before[: wanted * TOKEN_BYTES]
        first, known = self._places.get((session_id, index), (0, 0))
        if known < more:
            first = self._next_id
            self._places[session_id, index] = first, more
            return before + self._fresh(more)
        return before + np.arange(first, first + more, dtype=np.int32).tobytes()

    def _fresh(self, tokens: int) -> bytes:
        """Ids that no one else has, the next ones."""
        first = self._next_id
        self._next_id = first + tokens
        if self._next_id > _LAST_ID:  # by then the first are long forgotten
            first, self._next_id = _FIRST_ID, _FIRST_ID + tokens
        return np.arange(first, first + tokens, dtype=np.int32).tobytes()

    @staticmethod
    def _is_last(conversation: Conversation, index: int) -> bool:
        """Whether nothing goes on from this call."""
        turns = conversation.session.turns
        return index + 1 == len(turns) and not turns[index].branches
