"""Log probabilities in the forms of chat and of text completions."""

from __future__ import annotations

from typing import Any

from llmirage_server.replies.logprobs import token_logprob
from llmirage_server.replies.reply import PartKind, Reply
from llmirage_shared.tokens import Tokenizer


class ReplyLogprobs:
    """Those of one reply. A token that shows nothing has no entry: the texts of all entries join to the reply's."""

    def __init__(self, reply: Reply, tokenizer: Tokenizer, top: int) -> None:
        self._reply = reply
        self._tokenizer = tokenizer
        self._top = top

    def entry(self, place: int) -> dict[str, Any]:
        """The token at a place of the reply, as chat completions and Responses tell it."""
        piece = self._reply.pieces[place]
        found = self._token(place)
        entry = _one(piece, found.logprob)
        entry["top_logprobs"] = [
            _one(piece if token == found.id else self._text(token), logprob) for token, logprob in found.top
        ]
        return entry

    def content(self, kind: PartKind = "text") -> list[dict[str, Any]]:
        """Entries of all text, for chat's `logprobs.content`; or those of another kind of part."""
        pieces = self._reply.pieces
        return [
            self.entry(place)
            for part in self._reply.all_parts
            if part.kind == kind
            for place in range(part.start, part.end)
            if pieces[place]
        ]

    def text(self, prompt_pieces: list[str] | None = None) -> dict[str, Any]:
        """The four parallel lists of text completions; with an echoed prompt its tokens first (the first has no value)."""
        tokens: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for place, piece in enumerate(prompt_pieces or ()):
            found = token_logprob(len(piece), place, self._tokenizer.vocab_size)
            tokens.append(piece)
            values.append(found.logprob if place else None)
            tops.append({piece: found.logprob} if place else None)
        for place, piece in enumerate(self._reply.pieces):
            if piece:
                found = self._token(place)
                tokens.append(piece)
                values.append(found.logprob)
                tops.append({piece if t == found.id else self._text(t): p for t, p in found.top})
        offsets, at = [], 0
        for token in tokens:
            offsets.append(at)
            at += len(token)
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _token(self, place: int) -> Any:
        return token_logprob(int(self._reply.ids[place]), place, self._tokenizer.vocab_size, self._top)

    def _text(self, token: int) -> str:
        return "".join(self._tokenizer.pieces([token]))


def _one(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
