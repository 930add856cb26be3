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

_FIRST_ID, _LAST_ID = 1 << 20, 1 << 31  # above every vocabulary: tokens of texts are others


class TokenStreams:
    """shares: whether calls of a session share anything (`session_prefix`)."""

    def __init__(self, shares: bool = True) -> None:
        self._shares = shares
        self._next_id = _FIRST_ID
        self._places: dict[tuple[str, int], tuple[int, int]] = {}  # first id, and how many follow it
        self._prompts: dict[int, TokenIds] = {}  # by conversation: its last prompt
        self._contexts: dict[int, TokenIds] = {}  # and that prompt with its reply

    def prompt(self, conversation: Conversation, index: int, spec: TokenSpec) -> TokenIds:
        """int32, shape (spec.input_tokens,)."""
        wanted, number = spec.input_tokens, conversation.number
        if not self._shares:
            return self.fresh(wanted)
        context = self._contexts.get(number)
        if context is None and conversation.parent is not None and conversation.branch_mode == "fork":
            context = self._contexts.get(conversation.parent.number)
        if context is None:
            prompt = self._at(conversation.session.id, index, wanted)
        else:
            before = context if len(context) < wanted else self._prompts.get(number, context)
            more = wanted - len(before)
            prompt = (
                np.concatenate([before, self._at(conversation.session.id, index, more)]) if more > 0 else before[:wanted]
            )
        turns = conversation.session.turns
        if index + 1 < len(turns) or turns[index].branches:
            self._prompts[number] = prompt
        else:
            self._prompts.pop(number, None)
            self._contexts.pop(number, None)
        return prompt

    def add_reply(self, conversation: Conversation, ids: TokenIds) -> None:
        """The conversation's last prompt was answered with these."""
        prompt = self._prompts.get(conversation.number)
        if prompt is not None:
            self._contexts[conversation.number] = np.concatenate([prompt, ids])

    def fresh(self, tokens: int) -> TokenIds:
        """Ids that no one else has."""
        first = self._next_id if self._next_id + tokens <= _LAST_ID else _FIRST_ID  # by then the first are long forgotten
        self._next_id = first + tokens
        return np.arange(first, first + tokens, dtype=np.int32)

    def _at(self, session_id: str, index: int, tokens: int) -> TokenIds:
        place = session_id, index
        first, known = self._places.get(place, (0, 0))
        if known < tokens:
            ids = self.fresh(tokens)
            self._places[place] = int(ids[0]), tokens
            return ids
        return np.arange(first, first + tokens, dtype=np.int32)
