"""Readable text with an exact number of tokens: prose whose every prefix re-tokenizes to itself.

Sentences are written from the prose bank (`prose_book`) with words that are one token each in the vocabulary at hand, so
ids, text and pieces are known together, and writing text tokenizes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from llmirage_shared.prose_book import VARIANTS, Book, book_for, mix
from llmirage_shared.tokens import TokenIds, Tokenizer

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
        first, others = _places(ids, len(begin), len(follow))
        return begin[first] + "".join([follow[i] for i in others.tolist()])

    def word_ids(self, ids: TokenIds) -> TokenIds:
        """Return encode(text_for_ids(ids)) without the text: int32, shape (len(ids),)."""
        if len(ids) == 0:
            return np.empty(0, dtype=np.int32)
        begin, follow = self._word_ids
        first, others = _places(ids, len(begin), len(follow))
        return np.concatenate([begin[first : first + 1], follow[others]])

    @cached_property
    def _word_ids(self) -> tuple[TokenIds, TokenIds]:
        begin, follow = ([word.ids[0] for word in words] for words in self._book.one_token_words)
        return np.array(begin, dtype=np.int32), np.array(follow, dtype=np.int32)

    @cached_property
    def _book(self) -> Book:
        return book_for(self.tokenizer)


def _places(ids: TokenIds | Sequence[int], begin: int, follow: int) -> tuple[int, npt.NDArray[np.int64]]:
    """Return the index of the first id's word among `begin`, and of each other id's word among `follow`."""
    spread = (np.asarray(ids, dtype=np.int64).astype(np.uint64) * np.uint64(_GOLDEN)) >> np.uint64(33)
    return int(spread[0]) % begin, (spread[1:] % np.uint64(follow)).astype(np.int64)
