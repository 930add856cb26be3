"""Replies of generated prose, and replies that echo the prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from llmirage_server.replies.draft import find_stop
from llmirage_server.replies.lengths import ReplyLengths
from llmirage_server.replies.reply import Reply, ReplyRequest
from llmirage_server.replies.structured.budget import spend_tokens
from llmirage_shared.synthetic_text import SyntheticText, mix
from llmirage_shared.tokens import TokenIds, Tokenizer


class ProseReplies:
    """Prose that depends on the conversation, the request's seed and the choice, and on nothing else.

    The length of a reply is drawn from `lengths`: it ends with a whole sentence and the end-of-turn token (piece "") by
    "stop", or by "length" where max_tokens or limit_tokens cut it. With ignore_eos, and of a source with exact_length, it
    has exactly max_tokens tokens and ends by "length", so that load is what it was asked to be. max_tokens and stop strings
    only cut the text: what is said before them does not change.
    The pieces come from a small set of shared str objects: a dict from piece to ready JSON bytes is quick and small.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        seed: int = 0,
        *,
        exact_length: bool = False,
        lengths: ReplyLengths | None = None,
        remember: Callable[[str, TokenIds], None] = lambda text, ids: None,
    ) -> None:
        """remember: is told each text and its token ids, since the next prompt of the conversation repeats it."""
        self._end_id = tokenizer.end_id
        self._text = SyntheticText(tokenizer, seed)
        self._exact_length = exact_length
        self._lengths = lengths or ReplyLengths()
        self._remember = remember

    def reply(self, request: ReplyRequest) -> Reply:
        key = conversation_key(request)
        most = max(1, request.limit_tokens if request.max_tokens is None else min(request.max_tokens, request.limit_tokens))
        if request.ignore_eos or (self._exact_length and request.max_tokens is not None):
            spend_tokens(most)
            ids, pieces = self._text.ids_and_pieces(key, most)
            ends = False
        else:
            wanted = max(request.min_tokens, self._lengths.tokens_for(request, mix(key)))
            spend_tokens(length := min(max(wanted, 1), most))
            ids, pieces = self._text.ids_and_pieces(key, length, whole_sentences=True)
            if not wanted:  # an answer that is complete ends, though a limit leaves no room for one more sentence
                ids, pieces = ids[: most - 1], pieces[: most - 1]
            ends = len(ids) < most
            ids, pieces = ids[:most], pieces[:most]
        if request.stop:
            match = find_stop(pieces, request.stop, request.include_stop_str, request.min_tokens)
            if match is not None:
                return Reply(ids[: match.tokens], match.pieces, "stop", match.stop)
        self._remember("".join(pieces), ids)
        if ends:
            return Reply(np.append(ids, np.int32(self._end_id)), [*pieces, ""], "stop")
        return Reply(ids, pieces, "length")


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
        x = np.arange(max(n, 2 * len(_known_weights), 1024), dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
        _known_weights = (x ^ (x >> np.uint64(31))) | np.uint64(1)
    return _known_weights[:n]


class EchoReplies:
    """The last user text, then the end-of-turn token (piece "") by "stop", or "length" where it is cut short.

    min_tokens, ignore_eos and exact_length repeat the text until there is enough of it. Text that looks like a special token
    is said as ordinary text. A character appears whole with the last of its tokens, and not at all when the reply ends
    inside it.
    """

    def __init__(self, tokenizer: Tokenizer, *, exact_length: bool = False) -> None:
        self._tokenizer = tokenizer
        self._exact_length = exact_length

    def reply(self, request: ReplyRequest) -> Reply:
        most = max(1, request.limit_tokens if request.max_tokens is None else min(request.max_tokens, request.limit_tokens))
        ids = self._tokenizer.encode_ordinary(request.last_user_text)
        endless = request.ignore_eos or (self._exact_length and request.max_tokens is not None)
        least = most if endless else min(request.min_tokens, most)
        if least > len(ids):
            once = ids if len(ids) else self._tokenizer.encode_ordinary(".")
            ids = np.tile(once, -(-least // len(once)))
        ends = len(ids) < most and not endless
        ids = ids[:most]
        pieces = self._tokenizer.pieces(ids, final=False)
        if request.stop:
            match = find_stop(pieces, request.stop, request.include_stop_str, request.min_tokens)
            if match is not None:
                return Reply(ids[: match.tokens], match.pieces, "stop", match.stop)
        if ends:
            return Reply(np.append(ids, np.int32(self._tokenizer.end_id)), [*pieces, ""], "stop")
        return Reply(ids, pieces, "length")
