"""Words that a vocabulary writes in whole tokens, so that text can be composed of ids without tokenizing it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmirage_shared.tokens import Tokenizer

_SPACED_WORD = re.compile(r"[Ġ▁]([a-z]{2,})")  # how byte-level and SentencePiece vocabularies spell " word"
_WORD = re.compile(r"[A-Za-z0-9]{2,}")  # how vocabularies of whole words do


@dataclass(slots=True, frozen=True)
class Word:
    """A piece of text and the ids it always becomes. pieces: what each id shows; "".join is the text."""

    ids: tuple[int, ...]
    pieces: tuple[str, ...]


def stable_words(tokenizer: Tokenizer, context: str, texts: Sequence[str]) -> dict[str, Word]:
    """Those of `texts` that follow `context` as whole tokens.

    Such a text does not change the tokens before it, and every prefix of its tokens re-tokenizes to itself.
    """
    before = tokenizer.encode(context).tolist() if context else []
    words: dict[str, Word] = {}
    for text, ids in zip(texts, _encode_after(tokenizer, before, context, texts), strict=True):
        own = ids[len(before) :]
        if not own or ids[: len(before)] != before or tokenizer.unknown_id in own:
            continue
        pieces = (text,) if len(own) == 1 else tuple(tokenizer.pieces(ids)[len(before) :])
        if "".join(pieces) == text and all(
            tokenizer.encode(context + "".join(pieces[:k])).tolist() == ids[: len(before) + k] for k in range(1, len(own))
        ):
            words[text] = Word(tuple(own), pieces)
    return words


def one_token_words(tokenizer: Tokenizer, limit: int) -> tuple[list[Word], list[Word]]:
    """Up to `limit` words of one token each, lowest ids first: those that begin a text, and those that follow after a space.

    A vocabulary of little more than bytes has letters instead. Both lists are empty for a vocabulary without either.
    """
    vocabulary = tokenizer.vocabulary()
    found = [(i, match[1]) for token, i in vocabulary.items() if (match := _SPACED_WORD.fullmatch(token))]
    if not found:
        found = [(i, token) for token, i in vocabulary.items() if _WORD.fullmatch(token)]
    texts = [" " + word for _, word in sorted(found)[:limit]]
    follow = _one_token(stable_words(tokenizer, "a", texts))
    begin = _one_token(stable_words(tokenizer, "", [word.pieces[0][1:] for word in follow]))
    if begin and follow:
        return begin, follow
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    pairs = [first + second for first in alphabet for second in alphabet]
    if any(len(ids) != 2 for ids in tokenizer.encode_many(pairs)):
        return [], []
    letters = _one_token(stable_words(tokenizer, "", list(alphabet)))
    return letters, letters


def _one_token(words: dict[str, Word]) -> list[Word]:
    return [word for word in words.values() if len(word.ids) == 1]


def _encode_after(tokenizer: Tokenizer, before: list[int], context: str, texts: Sequence[str]) -> list[list[int]]:
    """Ids of context + text for each text."""
    if len(texts) > 1 and all(text.startswith(" ") for text in texts):
        # Each word is at least one token: if all together are as many tokens as words, each is one.
        together = tokenizer.encode(context + "".join(texts)).tolist()
        if len(together) == len(before) + len(texts) and together[: len(before)] == before:
            return [[*before, token_id] for token_id in together[len(before) :]]
    return tokenizer.encode_many([context + text for text in texts])
