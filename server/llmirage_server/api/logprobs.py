"""Log probabilities in the forms of chat and of text completions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from llmirage_server.api.generation import Choice
from llmirage_server.replies.logprobs import token_logprob
from llmirage_server.replies.reply import PartKind, Reply
from llmirage_shared.tokens import TokenIds, Tokenizer
from llmirage_shared.wire.sampling import Sampling

_MANY = 256  # tokens of a prompt; more must not hold up the streams of others


@dataclass(slots=True, frozen=True)
class ReplyLogprobs:
    """Those of one reply. A token that shows nothing has no entry: the entries' texts join to the reply's text."""

    reply: Reply
    tokenizer: Tokenizer
    top: int  # how many likely tokens each entry has
    as_ids: bool = False  # name tokens by their ids

    def entry(self, place: int) -> dict[str, Any]:
        """The token at a place of the reply, in the form of chat completions and the Responses API."""
        piece = self.reply.pieces[place]
        found = self._token(place)
        entry = self._one(found.id, piece, found.logprob)
        entry["top_logprobs"] = [
            self._one(token, piece if token == found.id else self._text(token), logprob) for token, logprob in found.top
        ]
        return entry

    def content(self, kind: PartKind = "text") -> list[dict[str, Any]]:
        """Entries of all text, for chat's `logprobs.content`; or those of another kind of part."""
        pieces = self.reply.pieces
        return [
            self.entry(place)
            for part in self.reply.all_parts
            if part.kind == kind
            for place in range(part.start, part.end)
            if pieces[place]
        ]

    def text(self, prompt_pieces: list[str] | None = None) -> dict[str, Any]:
        """The four parallel lists of text completions, an echoed prompt's tokens first (the first has no value)."""
        tokens: list[str] = []
        pieces = list(prompt_pieces or ())
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for place, piece in enumerate(prompt_pieces or ()):
            found = token_logprob(len(piece), place, self.tokenizer.vocab_size)
            tokens.append(piece)
            values.append(found.logprob if place else None)
            tops.append({piece: found.logprob} if place else None)
        for place, piece in enumerate(self.reply.pieces):
            if piece:
                found = self._token(place)
                tokens.append(self._name(found.id, piece))
                pieces.append(piece)
                values.append(found.logprob)
                tops.append({self._name(t, piece if t == found.id else self._text(t)): p for t, p in found.top})
        offsets, at = [], 0
        for piece in pieces:
            offsets.append(at)
            at += len(piece)
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _token(self, place: int) -> Any:
        return token_logprob(int(self.reply.ids[place]), place, self.tokenizer.vocab_size, self.top)

    def _text(self, token: int) -> str:
        return "".join(self.tokenizer.pieces([token]))

    def _name(self, token: int, text: str) -> str:
        return f"token_id:{token}" if self.as_ids else text

    def _one(self, token: int, text: str, logprob: float) -> dict[str, Any]:
        name = self._name(token, text)
        return {"token": name, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def reply_logprobs(choice: Choice, sampling: Sampling, tokenizer: Tokenizer) -> ReplyLogprobs | None:
    """The log probabilities of a choice, if the request asks for them."""
    if sampling.logprobs is None:
        return None
    return ReplyLogprobs(choice.reply, tokenizer, sampling.logprobs, sampling.tokens_as_ids)


async def prompt_fields(choice: Choice, sampling: Sampling, tokenizer: Tokenizer) -> dict[str, Any]:
    """vLLM's fields about the prompt of a choice, as far as the request asks for them."""
    fields: dict[str, Any] = {}
    if sampling.prompt_logprobs is not None:
        fields["prompt_logprobs"] = await _prompt_logprobs(choice.request.prompt, tokenizer, sampling.prompt_logprobs)
    if sampling.return_token_ids:
        fields["prompt_token_ids"] = choice.request.prompt.tolist()
    return fields


async def _prompt_logprobs(ids: TokenIds, tokenizer: Tokenizer, top: int) -> list[dict[str, Any] | None]:
    """vLLM's form: for each token of a prompt the likely tokens and itself, by their ids; None for the first."""

    def work() -> list[dict[str, Any] | None]:
        return [None, *[_ranked(token, place, tokenizer, top) for place, token in enumerate(ids.tolist()[1:], 1)]]

    return await asyncio.to_thread(work) if len(ids) > _MANY else work()


def _ranked(token: int, place: int, tokenizer: Tokenizer, top: int) -> dict[str, Any]:
    found = token_logprob(token, place, tokenizer.vocab_size, max(1, top))
    return {
        str(other): {"logprob": logprob, "rank": rank, "decoded_token": tokenizer.decode([other])}
        for rank, (other, logprob) in enumerate(found.top, 1)
    }
