"""Vectors of texts without a model: the same in every process, and the closer the more words two texts have in common.

A text is a bag of features (word stems, neighbouring stems, three characters in a row), and each feature pushes a few
coordinates up or down: a sparse random projection (Achlioptas, 2003; feature hashing: Weinberger et al., 2009). Angles
between bags survive it. Words that everybody uses weigh little, as under tf-idf. The first coordinates carry most, so that
a vector cut short still serves (Matryoshka representations: Kusupati et al., 2022). docs/embeddings.md explains the result.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from llmirage_shared.tokens import mix_each

Floats = npt.NDArray[np.float64]
Hashes = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.uint32]

DECIMALS = 8  # of a coordinate, so that it is the same number as text and as float32
_BASE = 0x0100_0000_01B3  # odd, so that it has an inverse modulo 2**64
_INVERSE = pow(_BASE, -1, 2**64)

# What weighs how much: a word that tells something about the topic is 1. A feature's class is in the low bits of its hash.
_WEIGHTS = np.array([0.12, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.22, 0.05, 0.15, 0.45, 0.0, 0.0, 0.0])
_COMMON_WORD, _LONG_WORD, _TRIGRAM, _PAIR = (0, 8, 9, 10)  # a word of 1 to 7 letters: 1 to 7; a pair: + its telling words
_CLASSES = len(_WEIGHTS)

_COMMON_WORDS = """
a about after again all also am an and any are as at be because been before being but by can could did do does doing
done down each for from get got had has have having he her here him his how i if in into is it its just know let like
make me more most much my no nor not now of off on one only or other our out over own please s said same say she should
so some such t than that the their them then there these they this those through to too under until up us very was we
were what when where which while who why will with would you your
"""
_COMMON_SET = frozenset(_COMMON_WORDS.split())


def embed(text: str, dimensions: int, seed: int = 0) -> Floats:
    """Return a unit vector, float64, shape (dimensions,), rounded to `DECIMALS`. Seeds stand for models, unrelated.

    Costs some tenths of a microsecond a character.
    """
    plain = same_text(text)
    features = np.sort(_features(_codes(plain), _codes(_WORD.sub(_stem_of, plain))))
    first = np.flatnonzero(np.concatenate([[True], features[1:] != features[:-1]]))
    hashes = features[first]
    # What occurs often weighs more, but not as many times more.
    weights = _WEIGHTS[hashes % np.uint64(_CLASSES)] * (1.0 + np.log(np.diff(first, append=len(features))))
    vector = _projected(hashes ^ mix_each(np.array([seed], dtype=np.uint64)), weights, dimensions)
    return _unit(vector)


def near(text: str, other: str, dimensions: int, seed: int = 0) -> Floats:
    """Return a unit vector of a text that lies next to that of another text: their cosine is at least 0.97."""
    return _unit(5.0 * embed(other, dimensions, seed) + embed(text, dimensions, seed))


def shortened(vector: Floats, dimensions: int) -> Floats:
    """Return the first `dimensions` coordinates as a unit vector again."""
    return _unit(vector[:dimensions])


def _unit(vector: Floats) -> Floats:
    return np.round(vector / np.sqrt(vector @ vector), DECIMALS)


def same_text(text: str) -> str:
    """Return the text as equal texts have it: without case, with one space around and between words."""
    return f" {' '.join(text.casefold().split())} "


def _codes(text: str) -> Codes:
    return np.frombuffer(text.encode("utf-32-le", "replace"), dtype=np.uint32)


_WORD = re.compile(r"[a-z]{4,}")
_ENDINGS = re.compile(
    "(?:at(?:ions?|ing|ed|es?|ors?)|it(?:ies|y)|ments?|ness|ings?|[ai]ble|[ae]nces?|ives?|ers?|ous|ful|ed|es?|ly|al|ic|s)$"
)
_LONGEST_WORD = 40  # that is stemmed, and kept
_VOWELS = frozenset("aeiouy")


def _stem_of(word: re.Match[str]) -> str:
    return _stem(word[0]) if len(word[0]) <= _LONGEST_WORD else word[0]


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    """Return the part that forms of an English word share, roughly: one ending is cut, if three letters with a vowel stay.

    refund(s), cancel(s, led, ling), ship(s, ped, ping), country and countries, defect and defective.
    """
    if word in _COMMON_SET:
        return word
    stem = word[:-3] + "i" if word.endswith("ies") else word
    ending = _ENDINGS.search(stem)
    if ending is not None and ending.start() >= 3 and not _VOWELS.isdisjoint(stem[: ending.start()]):
        stem = stem[: ending.start()]
    if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "aeious":
        stem = stem[:-1]
    return stem[:-1] + "i" if stem.endswith("y") and len(stem) > 3 else stem


def _features(codes: Codes, stems: Codes) -> Hashes:
    """Hashes of all that a text consists of, repetitions included; at least one. stems: the text with stems for words."""
    words, lengths = _words(stems)
    common = _is_common(words)
    wide = codes.astype(np.uint64)
    trigrams = (wide[:-2] << np.uint64(42)) ^ (wide[1:-1] << np.uint64(21)) ^ wide[2:]
    if not len(trigrams):  # an empty text is a text, too
        trigrams = np.ones(1, dtype=np.uint64)
    pairs = words[:-1] * np.uint64(_BASE) + words[1:]
    telling = (~common).astype(np.uint64)
    return np.concatenate(
        [
            _classed(words, np.where(common, np.uint64(_COMMON_WORD), np.minimum(lengths, np.uint64(_LONG_WORD)))),
            _classed(mix_each(pairs), np.uint64(_PAIR) + telling[:-1] + telling[1:]),
            _classed(mix_each(trigrams), np.uint64(_TRIGRAM)),
        ]
    )


def _classed(hashes: Hashes, kind: Hashes | np.uint64) -> Hashes:
    return hashes - hashes % np.uint64(_CLASSES) + kind


def _words(codes: Codes) -> tuple[Hashes, Hashes]:
    """Hashes of the words in their order, and how many characters each has."""
    inside = _letters(codes)
    starts = inside.copy()
    starts[1:] &= ~inside[:-1] | _alone(codes[1:]) | _alone(codes[:-1])
    first = np.flatnonzero(starts)
    if not len(first):
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.uint64)
    # The sum of character * BASE**(place in the text), moved to the beginning of the text.
    values = np.where(inside, codes, np.uint32(0)).astype(np.uint64) * _powers(_BASE, len(codes))
    hashes = np.add.reduceat(values, first) * _powers(_INVERSE, len(codes))[first]
    return mix_each(hashes), np.add.reduceat(inside.astype(np.uint64), first)


def _letters(codes: Codes) -> npt.NDArray[np.bool_]:
    """Characters that belong to words: ASCII letters and digits, and all but the punctuation of the other blocks."""
    found = _ascii_letters()[np.minimum(codes, np.uint32(127))]
    if codes.max() > 127:
        other = (codes >= 0xC0) & ~((codes >= 0x2000) & (codes < 0x2C00)) & ~((codes >= 0x3000) & (codes < 0x3040))
        found |= other & ~((codes >= 0xFF00) & (codes < 0xFF10))
    return found


def _alone(codes: Codes) -> npt.NDArray[np.bool_]:
    """Characters of scripts without spaces, each of which counts as a word."""
    return (codes >= 0x2E80) & (codes < 0xA000) | (codes >= 0x2_0000) & (codes < 0x3_2000)


def _projected(hashes: Hashes, weights: Floats, dimensions: int) -> Floats:
    """Each feature moves eight coordinates: where and which way says one 16-bit part of its mixed hash each."""
    bits = np.stack([mix_each(hashes), mix_each(hashes + np.uint64(1))], axis=1).view(np.uint16)
    bins = np.bincount(_places(dimensions)[bits.ravel()], np.repeat(weights, 8), 2 * dimensions)
    vector = bins[:dimensions] - bins[dimensions:]
    # Everything moves a little, as in a model's vectors, and no vector is nothing.
    background = mix_each(hashes[:1] + np.arange(dimensions, dtype=np.uint64) * np.uint64(_BASE)) >> np.uint64(11)
    return vector + (background / 2.0**53 - 0.5) * (0.1 * np.sqrt(weights @ weights / dimensions))


@lru_cache(maxsize=8)
def _places(dimensions: int) -> npt.NDArray[np.int64]:
    """For 15 bits u and a sign: the coordinate u**2 of the way through the vector; `dimensions` further for minus."""
    bits = np.arange(65536)
    share = (bits >> 1) / 32768.0
    return (share * share * dimensions).astype(np.int64) + (bits & 1) * dimensions


def _powers(base: int, count: int) -> Hashes:
    powers = np.full(count, base, dtype=np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


def _is_common(words: Hashes) -> npt.NDArray[np.bool_]:
    common = _common()
    places = np.minimum(np.searchsorted(common, words), len(common) - 1)
    found: npt.NDArray[np.bool_] = common[places] == words
    return found


@lru_cache(maxsize=1)
def _common() -> Hashes:
    return np.sort(_words(_codes(same_text(_COMMON_WORDS)))[0])  # np.unique would import numpy.ma


@lru_cache(maxsize=1)
def _ascii_letters() -> npt.NDArray[np.bool_]:
    return np.array([chr(code).isalnum() for code in range(128)])
