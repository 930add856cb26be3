"""Readable text with an exact number of tokens: prose whose every prefix re-tokenizes to itself.

Sentences are written from the prose bank below with words that are one token each in the vocabulary at hand, so
ids, text and pieces are known together, and writing text tokenizes nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llmirage_shared.tokens import TokenIds, Tokenizer, TokenizerError

Slots = Mapping[str, Sequence[str]]
"""Words by the name of the slot that they fill."""


def _bank_slots(words: Mapping[str, str]) -> Slots:
    return {name: tuple(listed.split()) for name, listed in words.items()}


_BANK = json.loads((Path(__file__).parent / "data" / "prose.json").read_text("utf-8"))
COMMON = _bank_slots(_BANK["common"])
TOPICS: Sequence[Slots] = tuple(map(_bank_slots, _BANK["topics"].values()))
OPENINGS: Sequence[str] = tuple(_BANK["openings"])  # sentences that open a text
FOLLOWING: Sequence[str] = tuple(sentence for group in _BANK["following"].values() for sentence in group)


def bank_first_words() -> list[str]:
    """Return every word that can begin a sentence."""
    return sorted({pattern.split()[0] for pattern in (*OPENINGS, *FOLLOWING)} | {"An"})


def bank_words() -> list[str]:
    """Return every word that can stand in a sentence."""
    found = {word for pattern in (*OPENINGS, *FOLLOWING) for word in pattern.split() if word.isalpha()} | {"an", "An"}
    for slots in (COMMON, *TOPICS):
        found.update(word for choices in slots.values() for word in choices)
    return sorted(found)


_SPACED_WORD = re.compile(r"[Ġ▁]([a-z]{2,})")  # how byte-level and SentencePiece vocabularies spell " word"
_WORD = re.compile(r"[A-Za-z0-9]{2,}")  # how vocabularies of whole words do


@dataclass(slots=True, frozen=True)
class Word:
    """A piece of text and the ids it always becomes. pieces: the text of each id; "".join is the text."""

    ids: tuple[int, ...]
    pieces: tuple[str, ...]


def stable_words(tokenizer: Tokenizer, context: str, texts: Sequence[str]) -> dict[str, Word]:
    """Return those of `texts` that follow `context` as whole tokens.

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
    """Return up to `limit` words of one token each, lowest ids first: those that begin a text, and those after a space.

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
    """Return the ids of context + text for each text."""
    if len(texts) > 1 and all(text.startswith(" ") for text in texts):
        # Each word is at least one token: if all together are as many tokens as words, each is one.
        together = tokenizer.encode(context + "".join(texts)).tolist()
        if len(together) == len(before) + len(texts) and together[: len(before)] == before:
            return [[*before, token_id] for token_id in together[len(before) :]]
    return tokenizer.encode_many([context + text for text in texts])


VARIANTS = 32  # sentences made of one pattern on one topic
_SLOT = re.compile(r"\{([a-z]+)[0-9]?\}")
_PARAGRAPH_END = ".\n\n"
_MARKS = (",", ".", ":", _PARAGRAPH_END)
_FEWEST_OPENINGS = 8  # a vocabulary with fewer on some topic writes rows of words instead of prose
_ROWS = 64  # patterns of such rows
_ROW_WORDS = 12
_MOST_SENTENCES = 10_000  # that are remembered: some 4 MB
_MOST_WORDS = 8192  # for ids of another vocabulary


def mix(x: int) -> int:
    """Return 64 well-mixed bits of an integer (splitmix64, public domain, Sebastiano Vigna 2015); equal in every process."""
    x = (x + 0x9E37_79B9_7F4A_7C15) & 0xFFFF_FFFF_FFFF_FFFF
    x = ((x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9) & 0xFFFF_FFFF_FFFF_FFFF
    x = ((x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB) & 0xFFFF_FFFF_FFFF_FFFF
    return x ^ (x >> 31)


@dataclass(slots=True, frozen=True)
class Sentence:
    """A sentence as ids and pieces."""

    ids: TokenIds  # int32, read-only
    pieces: tuple[str, ...]


Pattern = tuple[tuple[str, ...], ...]  # the possible words at each place of the sentence


class Book:
    """Sentences in one vocabulary.

    topics: number of topics. strides: for each topic the number of patterns, how many of them (the first ones) open a text,
    and the strides that visit all patterns before any comes again. has_paragraphs: the vocabulary can end a paragraph.
    A vocabulary that cannot write the bank's sentences writes rows of its words.
    Raises TokenizerError for a vocabulary without words, and for one in which neighbouring words merge.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        first_words, words = bank_first_words(), bank_words()
        self._spaced = stable_words(tokenizer, "a", [" " + word for word in words])
        self._marks = stable_words(tokenizer, "a", _MARKS)
        self._initial = stable_words(tokenizer, "", first_words)
        self.has_paragraphs = _PARAGRAPH_END in self._marks and self._initial == stable_words(
            tokenizer, "a" + _PARAGRAPH_END, first_words
        )
        self.topics = len(TOPICS)
        openings = [self._resolve(OPENINGS, topic) for topic in TOPICS]
        following = [self._resolve(FOLLOWING, topic) for topic in TOPICS]
        self._patterns = [first + others for first, others in zip(openings, following, strict=True)]
        self._writes_prose = "." in self._marks and min(map(len, openings)) >= _FEWEST_OPENINGS
        if self._writes_prose:
            self.strides = [_strides(len(all_), len(first)) for all_, first in zip(self._patterns, openings, strict=True)]
        else:
            self.strides = [_strides(_ROWS, _ROWS)] * self.topics
        self.has_paragraphs &= self._writes_prose
        self._sentences: dict[tuple[int, int, int, bool, bool], Sentence] = {}
        self._test_text()

    def sentence(self, topic: int, pattern: int, variant: int, opens: bool, closes: bool) -> Sentence:
        """Return one of the VARIANTS sentences of a pattern. opens, closes: it is the first or last of a paragraph."""
        key = (topic, pattern, variant, opens, closes)
        sentence = self._sentences.get(key)
        if sentence is None:
            if len(self._sentences) >= _MOST_SENTENCES:
                self._sentences.clear()
            sentence = self._sentences[key] = self._write(*key)
        return sentence

    @cached_property
    def one_token_words(self) -> tuple[list[Word], list[Word]]:
        """Words that begin a text and words that follow. Raises TokenizerError if there are none."""
        begin, follow = one_token_words(self._tokenizer, _MOST_WORDS)
        if not begin:
            raise TokenizerError(
                f"tokenizer {self._tokenizer.name}: no word is one token, so no text of an exact length can be written"
            )
        return begin, follow

    @cached_property
    def one_token_texts(self) -> tuple[list[str], list[str]]:
        """The texts of one_token_words."""
        begin, follow = self.one_token_words
        return [word.pieces[0] for word in begin], [word.pieces[0] for word in follow]

    def _test_text(self) -> None:
        """Words are tested one by one; test a text of them, too, in case the vocabulary merges words."""
        for topic in range(self.topics):
            sentences = [self.sentence(topic, pattern, 0, pattern == 0, False) for pattern in range(_FEWEST_OPENINGS)]
            text = "".join(piece for sentence in sentences for piece in sentence.pieces)
            if not np.array_equal(self._tokenizer.encode(text), np.concatenate([sentence.ids for sentence in sentences])):
                raise TokenizerError(
                    f"tokenizer {self._tokenizer.name}: merges words, so no text of an exact length can be written"
                )

    def _resolve(self, patterns: Sequence[str], topic: Slots) -> list[Pattern]:
        resolved = []
        for pattern in patterns:
            places = tuple(self._choices(word, topic) for word in pattern.split())
            if all(places) and places[0][0] in self._initial:
                resolved.append(places)
        return resolved

    def _choices(self, word: str, topic: Slots) -> tuple[str, ...]:
        slot = _SLOT.fullmatch(word)
        if slot is None:
            known = word in self._marks or " " + word in self._spaced
            return (word,) if known else ()
        words = topic.get(slot[1]) or COMMON[slot[1]]
        return tuple(choice for choice in words if " " + choice in self._spaced)

    def _write(self, topic: int, pattern: int, variant: int, opens: bool, closes: bool) -> Sentence:
        bits = mix(pattern * VARIANTS + variant)
        if self._writes_prose:
            parts = self._sentence(self._patterns[topic][pattern], bits, opens, closes)
        else:
            parts = self._row(bits, opens)
        ids = np.array([i for part in parts for i in part.ids], dtype=np.int32)
        ids.flags.writeable = False
        return Sentence(ids, tuple(piece for part in parts for piece in part.pieces))

    def _sentence(self, pattern: Pattern, bits: int, opens: bool, closes: bool) -> list[Word]:
        words: list[str] = []
        for choices in pattern:
            word = choices[0]
            if len(choices) > 1:
                bits = mix(bits)
                at = bits % len(choices)
                word = choices[at] if choices[at] not in words else choices[(at + 1) % len(choices)]
            if words and words[-1] in ("a", "A") and (word[0] in "aeio" or word == "hour") and word != "one":
                words[-1] += "n"
            words.append(word)
        parts = [self._initial[words[0]] if opens else self._spaced[" " + words[0]]]
        parts += [self._marks[word] if word in self._marks else self._spaced[" " + word] for word in words[1:]]
        parts.append(self._marks[_PARAGRAPH_END if closes else "."])
        return parts

    def _row(self, bits: int, opens: bool) -> list[Word]:
        begin, follow = self.one_token_words
        parts = []
        for at in range(_ROW_WORDS):
            bits = mix(bits)
            words = begin if opens and at == 0 else follow
            parts.append(words[bits % len(words)])
        return parts


def _strides(patterns: int, openings: int) -> tuple[int, int, list[int]]:
    return patterns, openings, [step for step in range(1, patterns) if math.gcd(step, patterns) == 1]


@lru_cache(maxsize=8)
def book_for(tokenizer: Tokenizer) -> Book:
    """Return the book of a tokenizer, shared in the process."""
    return Book(tokenizer)


_MASK = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = 0x9E37_79B9_7F4A_7C15


class SyntheticText:
    """Prose on demand. The same (seed, key) gives the same text in every process. Nothing is prepared before first use.

    Raises TokenizerError at first use if the vocabulary has too few whole-token words.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int = 0) -> None:
        self.tokenizer = tokenizer
        self._seed = mix(int(seed) & _MASK)

    def prepare(self) -> None:
        """Load the prose and the words of the vocabulary now instead of at first use. Raises TokenizerError."""
        self.text(0, 1)
        self.text_for_ids([0])

    def ids(self, key: int, n: int) -> TokenIds:
        """Return exactly n ids of prose, int32. Every prefix re-tokenizes to itself.

        A smaller n gives a prefix: ids(key, n)[:m] == ids(key, m).
        """
        return self.ids_and_pieces(key, n)[0]

    def text(self, key: int, n: int) -> str:
        """Return the text of ids(key, n): encode(text(key, n)) == ids(key, n)."""
        return "".join(self.ids_and_pieces(key, n)[1])

    def ids_and_pieces(self, key: int, n: int, whole_sentences: bool = False) -> tuple[TokenIds, list[str]]:
        """Return ids(key, n) and the text of each id.

        whole_sentences: continue to the next full stop without a line end after it, since many clients strip white space
            from the end of a reply. The pieces come from a small set of shared str objects, so a dict keyed by pieces is
            fast.
        """
        if n <= 0:
            return np.empty(0, dtype=np.int32), []
        book = self._book
        state = mix(self._seed ^ (int(key) & _MASK))
        topic = state % book.topics
        # Steps through the patterns so that each comes once before any comes again.
        patterns, openings, steps = book.strides[topic]
        pattern = (state >> 16) % openings
        step = steps[(state >> 32) % len(steps)]
        arrays: list[TokenIds] = []
        pieces: list[str] = []
        in_paragraph, opens = 0, True
        while len(pieces) < n or (whole_sentences and opens):
            state = (state + _GOLDEN) & _MASK
            bits = mix(state)
            closes = book.has_paragraphs and in_paragraph >= 2 and (bits >> 48) % 4 == 0
            sentence = book.sentence(topic, pattern, bits % VARIANTS, opens, closes)
            arrays.append(sentence.ids)
            pieces.extend(sentence.pieces)
            pattern = (pattern + step) % patterns
            opens, in_paragraph = closes, 0 if closes else in_paragraph + 1
        ids = np.concatenate(arrays)
        if not whole_sentences and len(pieces) > n:
            ids = ids[:n]
            del pieces[n:]
        return ids, pieces

    def text_for_ids(self, ids: TokenIds | Sequence[int]) -> str:
        """Return text of exactly len(ids) tokens for ids of any vocabulary.

        Equal prefixes of ids give equal prefixes of text. One word for each id, the same one wherever it occurs except at
        the beginning.
        """
        if len(ids) == 0:
            return ""
        begin, follow = self._book.one_token_texts
        spread = _spread(ids)
        return begin[int(spread[0]) % len(begin)] + "".join([follow[i] for i in _places(spread[1:], len(follow)).tolist()])

    def word_ids(self, ids: TokenIds, begins: bool = True) -> TokenIds:
        """Return encode(text_for_ids(ids)) without the text: int32, shape (len(ids),). begins: no other ids precede them."""
        if len(ids) == 0:
            return np.empty(0, dtype=np.int32)
        begin, follow = self._word_ids
        spread = _spread(ids)
        words = follow.take(_places(spread, len(follow)), mode="clip")  # none is beyond the end: that is not checked
        if begins:
            words[0] = begin[int(spread[0]) % len(begin)]
        return words

    @cached_property
    def _word_ids(self) -> tuple[TokenIds, TokenIds]:
        begin, follow = ([word.ids[0] for word in words] for words in self._book.one_token_words)
        return np.array(begin, dtype=np.int32), np.array(follow, dtype=np.int32)

    @cached_property
    def _book(self) -> Book:
        return book_for(self.tokenizer)


def _spread(ids: TokenIds | Sequence[int]) -> npt.NDArray[np.uint32]:
    """Return a number below 2^31 for each id, far from those of its neighbours."""
    return ((np.asarray(ids, dtype=np.int64).view(np.uint64) * np.uint64(_GOLDEN)) >> np.uint64(33)).astype(np.uint32)


def _places(spread: npt.NDArray[np.uint32], words: int) -> npt.NDArray[np.uint32]:
    """Return the index of each number's word among `words`."""
    return spread - spread // np.uint32(words) * np.uint32(words)  # faster than the remainder
