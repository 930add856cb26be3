"""Text to token ids and back: a thin typed wrapper around `tokenizers.Tokenizer`."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from llmirage_shared.texts import without_surrogates

if TYPE_CHECKING:
    import tokenizers

TokenIds = npt.NDArray[np.int32]
PrefixHashes = npt.NDArray[np.int64]

_CUT_CHARACTERS = 4096  # long segments are divided after about this many
_SEARCH_CHARACTERS = 1 << 14  # searched for a place to cut at once: half a millisecond, in which no other thread runs
_LIKELY_CHARACTERS = 4  # of a token: a text of fewer may fit
_PIECE_CHARACTERS = 1 << 16
_MANY_TOKENS = 2000  # whose text takes half a millisecond
_TORN_TOKENS = 8  # more tokens than a cut can add
_NEVER = re.compile(r"(?!)")  # matches nothing: a vocabulary without special tokens


class TokenizerError(ValueError):
    """A tokenizer that cannot be loaded or used. The message gives the reason and the remedy."""


_PRINTABLE = (*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100))  # bytes that stand for themselves


def byte_alphabet() -> list[str]:
    """Return the 256 characters that stand for bytes in byte-level BPE (GPT-2), in the order of their ids."""
    return [chr(b) for b in _PRINTABLE] + [chr(0x100 + i) for i in range(256 - len(_PRINTABLE))]


class Tokenizer:
    """A vocabulary.

    name: its origin, a folder or a hub name.
    vocab_size: number of ids, special tokens included.
    end_id: the token that ends an assistant turn; without one in the vocabulary, the next free id.
    special_tokens: text -> id of the tokens that are recognised in a text before it is split.
    segment_wise: the parts between special tokens can be encoded one by one.
    cut: matches places where a text can be divided, too, without changing its ids; None without such places.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        name: str,
        end_token: str | None,
        *,
        segment_wise: bool,
        cut: re.Pattern[str] | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.name = name
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        end_id = None if end_token is None else backend.token_to_id(end_token)
        self.end_id: int = self.vocab_size if end_id is None else end_id
        self.segment_wise = segment_wise
        self._cut = cut
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset([*(i for i, token in added.items() if token.special), self.end_id])
        splitting = {token.content: i for i, token in added.items() if not token.normalized and token.content}
        self.special_tokens: Mapping[str, int] = splitting
        longest_first = sorted(splitting, key=lambda content: (-len(content), content))
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if splitting else _NEVER
        self._byte_level = type(backend.decoder).__name__ == "ByteLevel"
        self._bytes_of: dict[int, bytes] = {}
        unknown = getattr(backend.model, "unk_token", None)
        self.unknown_id: int | None = None if unknown is None else backend.token_to_id(unknown)

    def encode(self, text: str) -> TokenIds:
        """Return the ids of the whole text, int32, shape (tokens,).

        Special tokens written in the text are recognised, none are added. A lone surrogate becomes U+FFFD. Releases the
        interpreter lock: `encode_batch_fast` does, the library's `encode` does not.
        """
        try:
            encoding = self._backend.encode_batch_fast([text], add_special_tokens=False)[0]
        except TypeError:
            encoding = self._backend.encode_batch_fast([without_surrogates(text)], add_special_tokens=False)[0]
        return np.array(encoding.ids, dtype=np.int32)

    def tokens_beyond(self, text: str, most_tokens: int) -> int | None:
        """Return a lower bound of the text's tokens if it certainly exceeds `most_tokens`; None: it may fit."""
        if len(text) < _LIKELY_CHARACTERS * most_tokens:
            return None
        found = 0
        for start in range(0, len(text), _PIECE_CHARACTERS):
            found += len(self.encode(text[start : start + _PIECE_CHARACTERS])) - _TORN_TOKENS
            if found > most_tokens:
                return found
        return None

    def encode_ordinary(self, text: str) -> TokenIds:
        """Return the ids of the text with special tokens in it as ordinary text, so that decoding gives the text back."""
        parts = [[part] if part not in self.special_tokens else [part[:1], part[1:]] for part in self.split_special(text)]
        arrays = [self.encode(piece) for pair in parts for piece in pair if piece]
        return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several texts, each as `encode` would give them."""
        clean = [without_surrogates(text) for text in texts]
        return [encoding.ids for encoding in self._backend.encode_batch_fast(clean, add_special_tokens=False)]

    def decode(self, ids: TokenIds | Sequence[int]) -> str:
        """Return the text of the ids, special tokens kept. Of many it releases the interpreter lock, as `encode` does."""
        if len(ids) > _MANY_TOKENS:
            return self._backend.decode_batch([_as_list(ids)], skip_special_tokens=False)[0]
        return self._backend.decode(_as_list(ids), skip_special_tokens=False)

    def pieces(self, ids: TokenIds | Sequence[int], final: bool = True) -> list[str]:
        """Return the text that each id adds when the ids arrive one by one: one str per id.

        "" for a special token, and inside a multi-byte character, which appears with its last token. "".join(pieces) is the
        decoded text without special tokens. Bytes that never become a character give U+FFFD; with `final` False those at the
        end are left out.
        """
        if self._byte_level:
            return self._byte_pieces(_as_list(ids), final)
        return self._text_pieces(_as_list(ids), final)

    def spelled(self, ids: TokenIds | Sequence[int]) -> list[str]:
        """Return each id as the vocabulary spells it, "" for an unknown id."""
        return [self._backend.id_to_token(i) or "" for i in _as_list(ids)]

    def split_special(self, text: str) -> list[str]:
        """Return the text cut before and after each special token in it; "".join gives the text back."""
        return [part for part in self._split.split(text) if part]

    def segments(self, text: str) -> list[str]:
        """Return the text in parts whose concatenated ids are the ids of the text.

        A text that grows at its end keeps all parts but the last, so their ids are worth caching.
        """
        if not self.segment_wise:
            return [text] if text else []
        parts = self.split_special(text)
        if self._cut is None or len(max(parts, key=len, default="")) < 2 * _CUT_CHARACTERS:
            return parts
        return [piece for part in parts for piece in self._divided(part)]

    def token_id(self, token: str) -> int | None:
        """Return the id of a special token by its text, None if there is none."""
        return self.special_tokens.get(token)

    def vocabulary(self) -> dict[str, int]:
        """Return every token as the vocabulary spells it -> id. The dict is large: do not keep it."""
        return self._backend.get_vocab(with_added_tokens=False)

    def _divided(self, segment: str) -> list[str]:
        pieces = []
        start, searched = 0, _CUT_CHARACTERS
        while self._cut and searched < len(segment) - _CUT_CHARACTERS:
            match = self._cut.search(segment, searched, searched + _SEARCH_CHARACTERS)
            if match is None:
                searched += _SEARCH_CHARACTERS - 1  # the character after a place decides, too
                continue
            pieces.append(segment[start : match.start()])
            start = match.start()
            searched = start + _CUT_CHARACTERS
        pieces.append(segment[start:])
        return pieces

    def _byte_pieces(self, ids: list[int], final: bool) -> list[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        known = self._bytes_of
        pieces = []
        for i in ids:
            raw = known.get(i)
            if raw is None:
                raw = known[i] = self._token_bytes(i)
            pieces.append(decoder.decode(raw))
        if final and pieces:
            pieces[-1] += decoder.decode(b"", final=True)
        return pieces

    def _token_bytes(self, token_id: int) -> bytes:
        if token_id in self._special_ids:
            return b""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        byte_of = _byte_of_character()
        try:
            return bytes(byte_of[character] for character in token)
        except KeyError:  # an added token is stored as plain text
            return token.encode()

    def _text_pieces(self, ids: list[int], final: bool) -> list[str]:
        """Return pieces by differences of decoded windows, for decoders that do more than concatenate bytes."""
        pieces: list[str] = []
        start = done = 0  # the window starts at `start`; ids before `done` have their pieces
        for end in range(1, len(ids) + 1):
            before = self._backend.decode(ids[start:done], skip_special_tokens=True)
            now = self._backend.decode(ids[start:end], skip_special_tokens=True)
            complete = not now.endswith("�") or (final and end == len(ids))
            pieces.append(now[len(before) :] if complete else "")
            if complete:
                start, done = done, end
        return pieces


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    others = [b for b in range(256) if b not in _PRINTABLE]
    return dict(zip(byte_alphabet(), [*_PRINTABLE, *others], strict=True))


def _as_list(ids: TokenIds | Sequence[int]) -> list[int]:
    if isinstance(ids, np.ndarray):
        as_list: list[int] = ids.tolist()
        return as_list
    return [int(i) for i in ids]


def prefix_hashes(ids: TokenIds) -> PrefixHashes:
    """Return the hash of the text up to each token, shape (tokens,), 63 bits: equal where all tokens so far are."""
    numbers = ids.astype(np.uint64) + (np.arange(len(ids), dtype=np.uint64) << np.uint64(32))
    return (mix_each(np.cumsum(mix_each(numbers), dtype=np.uint64)) >> np.uint64(1)).view(np.int64)


def mix_each(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return 64 well-mixed bits of each number, as `synthetic_text.mix` does."""
    x = numbers + np.uint64(0x9E37_79B9_7F4A_7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return x ^ (x >> np.uint64(31))
