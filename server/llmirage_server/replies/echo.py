"""Replies that repeat the last user message, token for token."""

from __future__ import annotations

import numpy as np

from llmirage_server.replies.reply import Reply, ReplyRequest
from llmirage_server.replies.stops import find_stop
from llmirage_shared.tokens import Tokenizer


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
