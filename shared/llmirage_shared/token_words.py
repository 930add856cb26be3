"""Words that a vocabulary writes in whole tokens, so that text can be put together from ids without tokenizing it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmirage_shared.tokens import Tokenizer

_SPACED_WORD = re.compile(r"[Ġ▁]([a-z]{2,})")  # how byte-level and SentencePiece vocabularies spell " word"


@dataclass(slots=True, frozen=True)
class Word:
    """A piece of text and the ids it always becomes. pieces: what each id shows; "".join is the text."""

    ids: tuple[int, ...]
    pieces: tuple[str, ...]


def stable_words(tokenizer: Tokenizer, context: str, texts: Sequence[str]) -> dict[str, Word]:
    """Those of `texts` that can follow `context` as whole tokens.

    Such a text does not change the tokens before it, and every prefix of its tokens re-tokenizes to itself.
    """
    before = tokenizer.encode(context).tolist() if context else []
    words: dict[str, Word] = {}
    for text, ids in zip(texts, _encode_after(tokenizer, before, context, texts), strict=True):
        own = ids[len(before) :]
        if not own or ids[: len(before)] != before:
            continue
        pieces = (text,) if len(own) == 1 else tuple(tokenizer.pieces(ids)[len(before) :])
        if "".join(pieces) == text and all(
            tokenizer.encode(context + "".join(pieces[:k])).tolist() == ids[: len(before) + k] for k in range(1, len(own))
        ):
            words[text] = Word(tuple(own), pieces)
    return words


def spaced_vocabulary(tokenizer: Tokenizer, limit: int) -> list[str]:
    """Up to `limit` lower-case words, each with the space before it, that are one token; lowest ids first."""
    found = []
    for token, token_id in tokenizer.vocabulary().items():
        if match := _SPACED_WORD.fullmatch(token):
            found.append((token_id, " " + match[1]))
    texts = [text for _, text in sorted(found)[:limit]]
    return [text for text, word in stable_words(tokenizer, "a", texts).items() if len(word.ids) == 1]


def _encode_after(tokenizer: Tokenizer, before: list[int], context: str, texts: Sequence[str]) -> list[list[int]]:
    """Ids of context + text for each text."""
    if len(texts) > 1 and all(text.startswith(" ") for text in texts):
        # Every spaced word is at least one token: when all of them together are as many tokens as words, each is one.
        together = tokenizer.encode(context + "".join(texts)).tolist()
        if len(together) == len(before) + len(texts) and together[: len(before)] == before:
            return [[*before, token_id] for token_id in together[len(before) :]]
    return tokenizer.encode_many([context + text for text in texts])
