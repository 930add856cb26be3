"""The prose bank written in one vocabulary: sentences as ids and pieces, made when first needed and then kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from llmirage_shared import prose_bank
from llmirage_shared.token_words import spaced_vocabulary, stable_words
from llmirage_shared.tokens import TokenIds, Tokenizer, TokenizerError

SENTENCES_PER_TOPIC = 4096  # how many different sentences there are on one topic
_SLOT = re.compile(r"\{([a-z]+)[0-9]?\}")
_PARAGRAPH_END = ".\n\n"
_MARKS = (",", ".", ":", _PARAGRAPH_END)
_FEWEST_PATTERNS = 8
_SUBSTITUTES = 8192  # words that may stand for foreign ids
_FEWEST_SUBSTITUTES = 16


def mix(x: int) -> int:
    """64 well-mixed bits of an integer (splitmix64, public domain, Sebastiano Vigna 2015); the same in every process."""
    x = (x + 0x9E37_79B9_7F4A_7C15) & 0xFFFF_FFFF_FFFF_FFFF
    x = ((x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9) & 0xFFFF_FFFF_FFFF_FFFF
    x = ((x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB) & 0xFFFF_FFFF_FFFF_FFFF
    return x ^ (x >> 31)


@dataclass(slots=True, frozen=True)
class Sentence:
    ids: TokenIds  # int32, read-only
    pieces: tuple[str, ...]


Pattern = tuple[tuple[str, ...], ...]  # for each place of the sentence the words that may stand there


class Book:
    """Sentences in one vocabulary.

    topics: how many there are. has_paragraphs: whether the vocabulary can end one.
    Raises TokenizerError when too few words are whole tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        patterns = [pattern.split() for pattern in (*prose_bank.OPENINGS, *prose_bank.FOLLOWING)]
        words = {word for pattern in patterns for word in pattern if word.isalpha()} | {"an"}
        for slots in (prose_bank.COMMON, *(topic.slots for topic in prose_bank.TOPICS)):
            words.update(word for choices in slots.values() for word in choices)
        first_words = sorted({pattern[0] for pattern in patterns} | {"An"})
        self._spaced = stable_words(tokenizer, "a", [" " + word for word in sorted(words | set(first_words))])
        self._marks = stable_words(tokenizer, "a", _MARKS)
        self._initial = stable_words(tokenizer, "", first_words)
        self.has_paragraphs = _PARAGRAPH_END in self._marks and self._initial == stable_words(
            tokenizer, "a" + _PARAGRAPH_END, first_words
        )
        self.topics = len(prose_bank.TOPICS)
        self._openings = [self._resolve(prose_bank.OPENINGS, topic) for topic in prose_bank.TOPICS]
        self._all = [
            openings + self._resolve(prose_bank.FOLLOWING, topic)
            for openings, topic in zip(self._openings, prose_bank.TOPICS, strict=True)
        ]
        if "." not in self._marks or min(map(len, self._openings)) < _FEWEST_PATTERNS:
            raise TokenizerError(f"tokenizer {tokenizer.name}: too few English words are whole tokens to write text with")
        self._sentences: dict[tuple[int, int, bool, bool, bool], Sentence] = {}

    def sentence(self, topic: int, variant: int, first: bool, opens: bool, closes: bool) -> Sentence:
        """One of SENTENCES_PER_TOPIC sentences on a topic.

        first: it is the first of a text. opens, closes: it is the first or last of a paragraph.
        """
        key = (topic, variant, first, opens, closes)
        sentence = self._sentences.get(key)
        if sentence is None:
            sentence = self._sentences[key] = self._write(topic, variant, first, opens, closes)
        return sentence

    @cached_property
    def substitutes(self) -> tuple[list[str], list[str]]:
        """Words to stand for ids of another vocabulary: those that can begin a text, and those, spaced, that can follow."""
        spaced = spaced_vocabulary(self._tokenizer, _SUBSTITUTES)
        begin = stable_words(self._tokenizer, "", [text[1:] for text in spaced])
        first = [text for text, word in begin.items() if len(word.ids) == 1]
        if len(spaced) < _FEWEST_SUBSTITUTES or not first:
            # A vocabulary of hardly more than bytes: letters that never merge.
            letters = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
            spaced = first = letters
            text = "".join(letters[mix(i) % 26] for i in range(512))
            if len(self._tokenizer.encode(text)) != len(text):
                raise TokenizerError(
                    f"tokenizer {self._tokenizer.name}: too few words are single tokens to stand for token ids"
                )
        return first, spaced

    def _resolve(self, patterns: Sequence[str], topic: prose_bank.Topic) -> list[Pattern]:
        resolved = []
        for pattern in patterns:
            places = tuple(self._choices(word, topic) for word in pattern.split())
            if all(places) and places[0][0] in self._initial:
                resolved.append(places)
        return resolved

    def _choices(self, word: str, topic: prose_bank.Topic) -> tuple[str, ...]:
        slot = _SLOT.fullmatch(word)
        if slot is None:
            known = word in self._marks or " " + word in self._spaced
            return (word,) if known else ()
        words = topic.slots.get(slot[1]) or prose_bank.COMMON[slot[1]]
        return tuple(choice for choice in words if " " + choice in self._spaced)

    def _write(self, topic: int, variant: int, first: bool, opens: bool, closes: bool) -> Sentence:
        patterns = self._openings[topic] if first else self._all[topic]
        words: list[str] = []
        bits = mix(variant)
        for choices in patterns[variant % len(patterns)]:
            word = choices[0]
            if len(choices) > 1:
                bits = mix(bits)
                at = bits % len(choices)
                word = choices[at] if choices[at] not in words else choices[(at + 1) % len(choices)]
            if words and words[-1] in ("a", "A") and word[0] in "aeio" and word != "one":
                words[-1] += "n"
            words.append(word)
        parts = [self._initial[words[0]] if opens else self._spaced[" " + words[0]]]
        parts += [self._marks[word] if word in self._marks else self._spaced[" " + word] for word in words[1:]]
        parts.append(self._marks[_PARAGRAPH_END if closes else "."])
        ids = np.array([i for part in parts for i in part.ids], dtype=np.int32)
        ids.flags.writeable = False
        return Sentence(ids, tuple(piece for part in parts for piece in part.pieces))


@lru_cache(maxsize=8)
def book_for(tokenizer: Tokenizer) -> Book:
    """The book of a tokenizer, shared by everyone in the process who writes with it."""
    return Book(tokenizer)
