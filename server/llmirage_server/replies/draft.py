"""A reply in the making: parts in order, the marks around them, and the cut at the token limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmirage_server.replies.reply import FinishReason, Part, PartKind, Reply, Tool
from llmirage_server.replies.stops import find_stop
from llmirage_shared import vocabulary
from llmirage_shared.tokens import TokenIds, Tokenizer

_CALL_KINDS: dict[str, PartKind] = {
    "function": "function_call", "custom": "custom_call", "hosted": "hosted_call", "client": "client_call",
}  # fmt: skip
# The tokens around thoughts and calls cost time and memory but show nothing. They are those of the embedded tokenizer's
# chat template, so that the next turn finds the call in the prefix cache, token for token. Other vocabularies get the marks
# of the Hermes style of tool calls.
_CALL_OPENS, _CALL_CLOSES = '<tool_call>\n{{"name": "{}", "arguments": ', "}\n</tool_call>"


class Draft:
    """Collects the parts of one reply and makes a `Reply` of them.

    Add the parts in order: thoughts, text or a refusal, calls. `reply` (or `stopped`) makes the reply.
    """

    def __init__(self, tokenizer: Tokenizer, limit_tokens: int) -> None:
        """limit_tokens: tokens the reply may have, at least 1; marks and the end token count."""
        self._tokenizer = tokenizer
        self._limit_tokens = limit_tokens
        self._own_marks = tokenizer.token_id(vocabulary.TOOL_CALL) is not None
        self._ids: list[TokenIds] = []
        self._pieces: list[str] = []
        self._parts: list[Part] = []

    def __len__(self) -> int:
        """Tokens so far, marks included."""
        return len(self._pieces)

    @property
    def room_tokens(self) -> int:
        """Tokens left up to the limit; negative if the parts exceed it."""
        return self._limit_tokens - len(self)

    def add(self, kind: PartKind, ids: TokenIds, pieces: list[str], name: str = "") -> None:
        """Add a part whose tokens are known. ids: int32, shape (n,); pieces: one text per id."""
        start = len(self)
        self._ids.append(ids)
        self._pieces += pieces
        self._parts.append(Part(kind, start, len(self), name))

    def write(self, kind: PartKind, text: str, name: str = "") -> None:
        """Add a part with this text. Special tokens in it become ordinary text."""
        ids = self._tokenizer.encode_ordinary(text)
        self.add(kind, ids, self._tokenizer.pieces(ids), name)

    def end_thoughts(self) -> None:
        """Add the mark that closes the reasoning part before it."""
        self._mark(vocabulary.END_OF_THINK if self._own_marks else "\n\n")

    def call(self, tool: Tool, arguments: str) -> None:
        """Add a call. arguments: JSON text of a function's arguments, or the input of a custom tool."""
        name = tool.name
        self._mark(
            f"{vocabulary.TOOL_CALL}{name}{vocabulary.TOOL_ARGUMENTS}" if self._own_marks else _CALL_OPENS.format(name)
        )
        self.write(_CALL_KINDS[tool.kind], arguments, name)
        self._mark(vocabulary.END_OF_TOOL_CALL if self._own_marks else _CALL_CLOSES)

    def stopped(self, stop: tuple[str, ...], include_stop: bool = False, min_tokens: int = 0) -> Reply | None:
        """Return the reply cut where its last part contains one of the stop strings, None if it contains none."""
        part = self._parts[-1]
        match = find_stop(self._pieces[part.start : part.end], stop, include_stop, min_tokens)
        if match is None or part.start + match.tokens > self._limit_tokens:
            return None
        end = part.start + match.tokens
        pieces = [*self._pieces[: part.start], *match.pieces]
        parts = (*self._parts[:-1], Part(part.kind, part.start, end, part.name))
        return Reply(np.concatenate(self._ids)[:end], pieces, "stop", match.stop, parts)

    def reply(self, finish_reason: FinishReason, stop_reason: str | int | None = None, *, ends: bool = True) -> Reply:
        """Return the reply, cut to the limit with finish reason "length" if it is longer.

        ends: whether the model ends its turn itself, with the end-of-turn token.
        """
        if ends:
            self._ids.append(np.array([self._tokenizer.end_id], dtype=np.int32))
            self._pieces.append("")
        ids, most = np.concatenate(self._ids), self._limit_tokens
        if len(ids) > most:
            parts = tuple([replace(part, end=min(part.end, most)) for part in self._parts if part.start < most])
            return Reply(ids[:most], self._pieces[:most], "length", None, parts)
        return Reply(ids, self._pieces, finish_reason, stop_reason, tuple(self._parts))

    def _mark(self, text: str) -> None:
        ids = self._tokenizer.encode(text)
        self._ids.append(ids)
        self._pieces += [""] * len(ids)
