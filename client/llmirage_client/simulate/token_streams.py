"""Prompts of turns that are given in token counts, as arbitrary ids: only their common prefixes matter.

A call extends the one before it in its session, as load.calls.TokenCalls writes it in text: the previous prompt and its
reply come first, where that fits; else the reply is dropped and the previous prompt grows or is cut back to the count. The
same place in the same session has the same tokens, in every conversation that runs the session (in every one of the same
repeat, if these vary); nothing else is ever the same. There is no chat template: the count is all tokens of the prompt.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

from llmirage_client.load.conversation import Conversation
from llmirage_client.load.variation import Variation
from llmirage_client.workload.session import TokenSpec

TokenIds = npt.NDArray[np.int32]

TokenPrompt = tuple[bytes, int]
"""The ids of a prompt and its reply, int32, as bytes; how many are the prompt's."""
TOKEN_BYTES = 4
_PATTERN_ID = 1 << 20  # above every vocabulary: tokens of texts are others
_FIRST_ID, _LAST_ID = 1 << 30, (1 << 31) - 1  # above every pattern


class TokenStreams:
    """The writer of such prompts. Ids are int32, kept as their bytes.

    shares: whether calls of a session share anything (`session_prefix`).
    variation: of the ids of repeats.
    """

    def __init__(self, shares: bool = True, variation: Variation | None = None) -> None:
        self._shares = shares
        self._variation = variation
        self._pattern = memoryview(b"")  # ids with which every stretch continues
        self._last_id = _FIRST_ID  # with which one began
        self._places: dict[tuple[str, int, int], tuple[int, int]] = {}  # the id that its stretch begins with, and its length
        # By unfinished conversation: its last prompt, with the reply if that has come, and the bytes of the prompt alone.
        self._contexts: dict[int, tuple[bytes, int]] = {}

    def plan(self, conversation: Conversation, turn_index: int) -> TokenPrompt:
        """Return a prompt of the turn's length, and a unique reply.

        A prompt whose ids are given is unchanged: the calls that follow do not extend it.
        """
        turns = conversation.session.turns
        spec = turns[turn_index].tokens
        assert spec is not None
        if spec.input_ids is not None:
            ids = spec.input_ids
            if self._variation is not None:
                ids = self._variation.prompt_ids(conversation.session, ids)
            return ids.tobytes() + self.stretch(spec.output_tokens), spec.input_tokens
        key = self._prompt(conversation, turn_index, spec.input_tokens, spec.output_tokens)
        if turn_index + 1 < len(turns) or turns[turn_index].branches:
            self._contexts[conversation.number] = key, spec.input_tokens * TOKEN_BYTES
        elif turn_index:  # its last turn
            self._contexts.pop(conversation.number, None)
        return key, spec.input_tokens

    def prompt(self, conversation: Conversation, index: int, spec: TokenSpec) -> bytes:
        """Return the ids of the prompt alone: the reply comes from elsewhere, see `replied_with`."""
        prompt = self._prompt(conversation, index, spec.input_tokens, 0)
        self._contexts[conversation.number] = prompt, len(prompt)
        return prompt

    def failed(self, conversation: Conversation) -> None:
        """Note that the last call had no reply."""
        if (known := self._contexts.get(conversation.number)) is not None:
            context, prompt_bytes = known
            self._contexts[conversation.number] = context[:prompt_bytes], prompt_bytes

    def replied_with(self, conversation: Conversation, ids: TokenIds) -> None:
        """Note the reply to the conversation's last prompt."""
        if (known := self._contexts.get(conversation.number)) is not None:
            context, prompt_bytes = known
            reply = np.asarray(ids, dtype=np.int32).tobytes()
            self._contexts[conversation.number] = context[:prompt_bytes] + reply, prompt_bytes

    def _prompt(self, conversation: Conversation, index: int, wanted: int, fresh: int) -> bytes:
        """Return a prompt of `wanted` tokens, and `fresh` unique ids behind it."""
        if not self._shares:
            return self.stretch(wanted + fresh)
        before, more = b"", wanted
        if index or conversation.parent is not None:
            before = self._before(conversation, wanted * TOKEN_BYTES)
            more = wanted - len(before) // TOKEN_BYTES
            if more <= 0:
                return before[: wanted * TOKEN_BYTES] + self.stretch(fresh)
        place = conversation.session.id, conversation.session.repeat, index
        known = self._places.get(place)
        if known is not None and known[1] >= more:
            return self.stretch(more, known[0], before) + self.stretch(fresh)
        ids = self.stretch(more + fresh, None, before)
        self._places[place] = self._last_id, more
        return ids

    def _before(self, conversation: Conversation, wanted_bytes: int) -> bytes:
        """Return the beginning of a prompt of that length: the whole context, the last prompt, or nothing."""
        known = self._contexts.get(conversation.number)
        if known is not None:
            context, prompt_bytes = known
            return context if len(context) < wanted_bytes else context[:prompt_bytes]
        if conversation.parent is not None and conversation.branch_mode == "fork":
            return self._contexts.get(conversation.parent.number, (b"", 0))[0]
        return b""

    def stretch(self, tokens: int, first: int | None = None, before: bytes = b"") -> bytes:
        """Return `before` and `tokens` ids behind it that begin with `first`; None: with an id that no other stretch has.

        Caches share common prefixes: stretches that begin with different ids have nothing in common, though they continue
        with the same ones, which are made only once.
        """
        if first is None:  # by the time they are used up the first is long forgotten
            self._last_id = first = self._last_id + 1 if self._last_id < _LAST_ID else _FIRST_ID
        if not tokens:
            return before
        end = tokens * TOKEN_BYTES
        if end > len(self._pattern):
            ids = np.arange(_PATTERN_ID, _PATTERN_ID + max(2 * tokens, 1024), dtype=np.int32)
            self._pattern = memoryview(ids.tobytes())
        # Long prompts are copied once.
        return b"".join((before, first.to_bytes(TOKEN_BYTES, sys.byteorder), self._pattern[TOKEN_BYTES:end]))
