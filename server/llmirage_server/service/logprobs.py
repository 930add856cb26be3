"""Log probabilities that belong together, and their forms in chat and text completions.

No model computed them. They depend on the token and its place alone, so the same reply has the same ones, streamed or not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llmirage_server.http.json_pieces import LazyList
from llmirage_server.replies.reply import PartKind, Reply
from llmirage_server.service.generation import Choice
from llmirage_shared.synthetic_text import mix
from llmirage_shared.tokens import Tokenizer
from llmirage_shared.wire.sampling import Sampling


@dataclass(slots=True, frozen=True)
class TokenLogprob:
    """logprob: of the chosen token, natural logarithm, at most 0. top: the likeliest tokens, best first: (id, logprob)."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(token_id: int, position: int, vocab_size: int, top: int = 0) -> TokenLogprob:
    """Return the log probability of a token at a position of the reply, and those of the `top` likeliest (at most 20).

    The chosen token is the likeliest in most places, as under ordinary sampling; probabilities of one place never add up to
    more than 1.
    """
    bits = mix(token_id * 0x1_0000_0001 + position)
    uniform = ((bits >> 11) + 0.5) / 2.0**53
    chosen = max(1e-6, uniform ** (1 / 3))  # mostly near 1
    rest = 1.0 - chosen
    alternatives: list[tuple[int, float]] = []
    seen = {token_id}
    for _ in range(top + 1):
        bits = mix(bits)
        other = bits % vocab_size
        while other in seen:
            other = (other + 1) % vocab_size
        seen.add(other)
        share = rest * 0.5
        rest -= share
        alternatives.append((other, math.log(max(share, 1e-12))))
    ranked = sorted([(token_id, math.log(chosen)), *alternatives], key=lambda entry: -entry[1])[:top]
    if top and all(entry[0] != token_id for entry in ranked):
        ranked[-1] = (token_id, math.log(chosen))
    return TokenLogprob(token_id, _rounded(math.log(chosen)), tuple([(i, _rounded(logprob)) for i, logprob in ranked]))


def _rounded(logprob: float) -> float:
    return min(0.0, round(logprob, 6))


@dataclass(slots=True, frozen=True)
class ReplyLogprobs:
    """Log probabilities of one reply. A token without text has no entry: the entries' texts join to the reply's text."""

    reply: Reply
    tokenizer: Tokenizer
    top: int  # how many likely tokens each entry has
    as_ids: bool = False  # name tokens by their ids

    def entry(self, place: int) -> dict[str, Any]:
        """Return the token at a place of the reply, in the form of chat completions and the Responses API."""
        piece = self.reply.pieces[place]
        found = self._token(place)
        entry = self._one(found.id, piece, found.logprob)
        entry["top_logprobs"] = [
            self._one(token, piece if token == found.id else self._text(token), logprob) for token, logprob in found.top
        ]
        return entry

    def content(self, kind: PartKind = "text") -> LazyList:
        """Entries of all text, for chat's `logprobs.content`; or those of another kind of part."""
        parts = [part for part in self.reply.all_parts if part.kind == kind]
        return self.entries([place for part in parts for place in range(part.start, part.end)])

    def entries(self, places: Iterable[int]) -> LazyList:
        """Return the entries of the tokens at these places, without those that show nothing."""
        pieces = self.reply.pieces
        return LazyList(self.entry, [place for place in places if pieces[place]])

    def text(self, prompt_pieces: list[str] | None = None) -> dict[str, Any]:
        """Return the four parallel lists of text completions, an echoed prompt's tokens first (the first has no value)."""
        echoed = prompt_pieces or []
        places = [place for place, piece in enumerate(self.reply.pieces) if piece]
        pieces = [*echoed, *[self.reply.pieces[place] for place in places]]
        ids = self.reply.ids
        tokens = [*echoed, *[self._name(int(ids[place]), self.reply.pieces[place]) for place in places]]
        everywhere = [*range(-len(echoed), 0), *places]  # before the reply: the prompt

        def value(place: int) -> float | None:
            if place >= 0:
                return float(self._token(place).logprob)
            place += len(echoed)
            return token_logprob(len(echoed[place]), place, self.tokenizer.vocab_size).logprob if place else None

        def top(place: int) -> dict[str, float] | None:
            if place < 0:
                return {echoed[place]: found} if (found := value(place)) is not None else None
            found, piece = self._token(place), self.reply.pieces[place]
            return {self._name(t, piece if t == found.id else self._text(t)): p for t, p in found.top}

        return {
            "tokens": tokens,
            "token_logprobs": LazyList(value, everywhere),
            "top_logprobs": LazyList(top, everywhere),
            "text_offset": [0, *itertools.accumulate(map(len, pieces[:-1]))] if pieces else [],
        }

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
    """Return the log probabilities of a choice, if the request asks for them."""
    if sampling.logprobs is None:
        return None
    return ReplyLogprobs(choice.reply, tokenizer, sampling.logprobs, sampling.tokens_as_ids)


def prompt_fields(choice: Choice, sampling: Sampling, tokenizer: Tokenizer) -> dict[str, Any]:
    """VLLM's fields about the prompt of a choice, as far as the request asks for them."""
    fields: dict[str, Any] = {}
    ids = choice.request.prompt
    if sampling.prompt_logprobs is not None:
        most = sampling.prompt_logprobs
        # By place, the likely tokens and itself, by their ids; None for the first.
        fields["prompt_logprobs"] = LazyList(
            lambda place: _ranked(int(ids[place]), place, tokenizer, most) if place else None, range(len(ids))
        )
    if sampling.return_token_ids:
        fields["prompt_token_ids"] = ids.tolist()
    return fields


def _ranked(token: int, place: int, tokenizer: Tokenizer, top: int) -> dict[str, Any]:
    found = token_logprob(token, place, tokenizer.vocab_size, max(1, top))
    return {
        str(other): {"logprob": logprob, "rank": rank, "decoded_token": tokenizer.decode([other])}
        for rank, (other, logprob) in enumerate(found.top, 1)
    }
