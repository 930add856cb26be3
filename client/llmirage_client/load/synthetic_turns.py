"""User messages that a workload gives as lengths, written in the tokenizer of the run."""

from __future__ import annotations

from dataclasses import replace

from llmirage_client.load.options import RunOptions
from llmirage_client.workload.hash_blocks import block_content
from llmirage_client.workload.session import SyntheticUser, Turn
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import load

_PREFIX_KEY = 0x7072_6566_6978
_ROUNDS_TO_MEET_A_COUNT = 8


class SyntheticTurns:
    """Loads the tokenizer when it is made. Raises TokenizerError when that fails."""

    def __init__(self, options: RunOptions) -> None:
        self._tokenizer = load(options.tokenizer)[0]
        self._text = SyntheticText(self._tokenizer, options.seed or 0)

    def written(self, turn: Turn, message: SyntheticUser) -> Turn:
        """The turn with its synthetic message as text. Raises TokenizerError for a vocabulary one cannot write in."""
        return replace(turn, messages=(*turn.messages, {"role": "user", "content": self._content(message)}))

    def _content(self, message: SyntheticUser) -> str:
        if message.block_ids is not None:
            ids = block_content(message.block_ids, message.block_tokens, message.tokens, message.key)
            return self._text.text_for_ids(ids)
        if not message.prefix_tokens:
            return self._text.text(message.key, message.tokens)
        prefix = self._text.text(_PREFIX_KEY, message.prefix_tokens)
        total = message.prefix_tokens + message.tokens
        room = message.tokens
        text = prefix
        for _ in range(_ROUNDS_TO_MEET_A_COUNT):  # a token may be one with its neighbour where the two texts meet
            text = f"{prefix} {self._text.text(message.key, room)}"
            missing = total - len(self._tokenizer.encode(text))
            if not missing:
                break
            room = max(room + missing, 0)
        return text
