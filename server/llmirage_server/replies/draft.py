"""A reply in the making: token ids and pieces of text, up to a stop string or stop token, and what its words depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from llmirage_server.replies.reply import FinishReason, Part, PartKind, Reply, ReplyRequest, Tool
from llmirage_shared.prompt_encoder import END_OF_THINK, END_OF_TOOL_CALL, TOOL_ARGUMENTS, TOOL_CALL
from llmirage_shared.synthetic_text import mix
from llmirage_shared.tokens import TokenIds, Tokenizer, mix_each


@dataclass(slots=True, frozen=True)
class StopMatch:
    """tokens: how many are generated, the one that completes the stop string included. pieces: their visible text."""

    stop: str
    tokens: int
    pieces: list[str]


def find_stop(pieces: Sequence[str], stops: Sequence[str], include: bool, min_tokens: int) -> StopMatch | None:
    """Return the stop string that ends the text first, None when none does.

    The match that is complete at the earliest token wins; among those of one token, the one that begins first. Matches
    complete within the first `min_tokens` tokens do not count. The text ends before the match, or after it with `include`.
    """
    text = "".join(pieces)
    guarded_characters = sum(map(len, pieces[:min_tokens]))
    best: tuple[int, int, int, str] | None = None  # tokens, start, -length, stop
    for stop in stops:
        if not stop:
            continue
        start = text.find(stop, max(0, guarded_characters - len(stop) + 1) if min_tokens else 0)
        if start >= 0:
            match = (_tokens_showing(pieces, start + len(stop)), start, -len(stop), stop)
            best = match if best is None else min(best, match)
    if best is None:
        return None
    tokens, start, _, stop = best
    return StopMatch(stop, tokens, _cut(pieces[:tokens], start + len(stop) if include else start))


def _tokens_showing(pieces: Sequence[str], characters: int) -> int:
    return next(count for count, shown in enumerate(accumulate(map(len, pieces)), 1) if shown >= characters)


def _cut(pieces: Sequence[str], characters: int) -> list[str]:
    """Return the pieces cut after `characters`; as many pieces as before."""
    cut: list[str] = []
    for piece in pieces:
        cut.append(piece[:characters])
        characters -= len(cut[-1])
    return cut


def most_tokens(request: ReplyRequest) -> int:
    """Return the tokens that a reply to the request may have, at least 1."""
    return max(1, request.limit_tokens if request.max_tokens is None else min(request.max_tokens, request.limit_tokens))


def ended(reply: Reply, request: ReplyRequest, tokenizer: Tokenizer) -> Reply:
    """Return the reply up to a stop token of the request, and with the token that ends its turn if that is to show."""
    if request.stop_token_ids:
        reply = _stopped_at_token(reply, request.stop_token_ids, request.include_stop_str, request.min_tokens)
    return _with_end_shown(reply, tokenizer) if request.shows_end else reply


def _stopped_at_token(reply: Reply, stop_ids: Sequence[int], include: bool, min_tokens: int) -> Reply:
    """Return the reply up to the first of these tokens after `min_tokens` others, which shows only if `include` is set."""
    wanted = frozenset(stop_ids)
    for place, token in enumerate(reply.ids.tolist()):
        if token in wanted and place >= min_tokens:
            break
    else:
        return reply
    pieces = list(reply.pieces[: place + 1])
    if not include:
        pieces[place] = ""
    parts = tuple(replace(part, end=min(part.end, place + 1)) for part in reply.parts if part.start <= place)
    return Reply(reply.ids[: place + 1], pieces, "stop", token, parts)


def _with_end_shown(reply: Reply, tokenizer: Tokenizer) -> Reply:
    """Return the reply with the token that ends its turn as text, where the model ended it by itself."""
    end_id = tokenizer.end_id
    if reply.stop_reason is not None or reply.ids[-1] != end_id:
        return reply
    spelled = next((token for token, known in tokenizer.special_tokens.items() if known == end_id), "")
    parts = reply.parts
    if parts and parts[-1].kind == "text":
        parts = (*parts[:-1], replace(parts[-1], end=len(reply.ids)))
    return replace(reply, pieces=[*reply.pieces[:-1], spelled], parts=parts)


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
        self._own_marks = tokenizer.token_id(TOOL_CALL) is not None
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
        self._mark(END_OF_THINK if self._own_marks else "\n\n")

    def call(self, tool: Tool, arguments: str) -> None:
        """Add a call. arguments: JSON text of a function's arguments, or the input of a custom tool."""
        name = tool.name
        self._mark(f"{TOOL_CALL}{name}{TOOL_ARGUMENTS}" if self._own_marks else _CALL_OPENS.format(name))
        self.write(_CALL_KINDS[tool.kind], arguments, name)
        self._mark(END_OF_TOOL_CALL if self._own_marks else _CALL_CLOSES)

    def stopped(self, request: ReplyRequest) -> Reply | None:
        """Return the reply cut where its last part contains a stop string of the request, None if it contains none."""
        part = self._parts[-1]
        match = find_stop(self._pieces[part.start : part.end], request.stop, request.include_stop_str, request.min_tokens)
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


def conversation_key(request: ReplyRequest) -> int:
    """Return 64 bits of the prompt's ids, the seed (else the conversation's name) and, unless greedy, the choice.

    They are the same in every process.
    """
    key = mix(_digest(request.prompt_ids))
    if request.seed is not None:
        key = mix(key ^ mix(request.seed))
    elif request.conversation is not None:
        name = hashlib.blake2b(request.conversation.encode(), digest_size=8).digest()
        key = mix(key ^ mix(int.from_bytes(name)))
    return mix(key + (0 if request.greedy else request.choice))


def _digest(ids: TokenIds) -> int:
    """Return a sum of the ids, each times a pseudo-random odd number of its position, modulo 2**64."""
    return int(np.dot(ids.astype(np.uint64) + np.uint64(1), _weights(len(ids)))) + len(ids)


_known_weights = np.empty(0, dtype=np.uint64)


def _weights(n: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    global _known_weights
    if len(_known_weights) < n:
        places = np.arange(max(n, 2 * len(_known_weights), 1024), dtype=np.uint64)
        _known_weights = mix_each((places - np.uint64(1)) * np.uint64(0x9E37_79B9_7F4A_7C15)) | np.uint64(1)
    return _known_weights[:n]
