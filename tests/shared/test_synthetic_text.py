"""Synthetic text has exactly the tokens it is said to have, and every prefix of it re-tokenizes to itself."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from llmirage_shared import synthetic_text, tokenizer_loader
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import embedded
from llmirage_shared.tokens import Tokenizer, TokenizerError


def small_byte_level() -> Tokenizer:
    """A vocabulary of 600 tokens, so that most words of the prose are several."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([*synthetic_text.OPENINGS, *synthetic_text.FOLLOWING] * 3, trainer)
    return Tokenizer(backend, "small", None, segment_wise=True)


def bytes_only() -> Tokenizer:
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, "bytes", None, segment_wise=True)


def whole_words() -> Tokenizer:
    vocabulary = {"<unk>": 0, **{f"w{i:03}": i for i in range(1, 200)}}
    backend = Backend(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend, "words", None, segment_wise=True)


def metaspace() -> Tokenizer:
    """SentencePiece in manner: a space is put before the first word."""
    backend = Backend(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["<unk>"], show_progress=False)
    words = [*synthetic_text.bank_words(), *synthetic_text.bank_first_words()]
    backend.train_from_iterator([" ".join(words), ". , : . , :", *(f"{word}. {word}, {word}:" for word in words)], trainer)
    return Tokenizer(backend, "metaspace", "<unk>", segment_wise=False)


VOCABULARIES = {
    "embedded": embedded(),
    "small": small_byte_level(),
    "bytes": bytes_only(),
    "words": whole_words(),
    "metaspace": metaspace(),
}
vocabularies = st.sampled_from(sorted(VOCABULARIES)).map(VOCABULARIES.__getitem__)


@given(vocabularies, st.integers(), st.integers(), st.integers(0, 150), st.integers(0, 150))
def test_every_prefix_retokenizes_to_itself(tokenizer: Tokenizer, seed: int, key: int, n: int, m: int) -> None:
    text = SyntheticText(tokenizer, seed)
    ids = text.ids(key, n)
    assert ids.dtype == np.int32
    assert len(ids) == n
    assert text.ids(key, min(m, n)).tolist() == ids[:m].tolist()
    for length in {n, min(m, n)}:
        written = text.text(key, length)
        assert tokenizer.encode(written).tolist() == ids[:length].tolist()
        assert tokenizer.decode(ids[:length]) == written


@given(st.integers(0, 2**64), st.integers(1, 300))
def test_whole_sentences_go_on_to_a_full_stop(key: int, n: int) -> None:
    text = SyntheticText(embedded(), seed=5)
    ids, pieces = text.ids_and_pieces(key, n, whole_sentences=True)
    assert n <= len(ids) == len(pieces) <= n + 60
    assert pieces[-1] == "."
    assert text.ids(key, len(ids)).tolist() == ids.tolist()
    assert "." not in pieces[n - 1 : -1]


def test_texts_differ_by_key_and_by_seed() -> None:
    text = SyntheticText(embedded(), seed=1)
    assert len({text.text(key, 40) for key in range(500)}) == 500
    assert SyntheticText(embedded(), seed=2).text(1, 40) != text.text(1, 40)


def test_sentences_are_not_repeated_within_a_reply() -> None:
    text = SyntheticText(embedded(), seed=1)
    for key in range(20):
        sentences = text.text(key, 400).replace("\n\n", " ").split(". ")
        assert len(set(sentences)) == len(sentences)


def test_text_reads_as_sentences_and_paragraphs() -> None:
    written = SyntheticText(embedded(), seed=3).text(4, 400)
    paragraphs = written.split("\n\n")
    assert len(paragraphs) > 2
    for paragraph in paragraphs:
        assert paragraph[0].isupper()
        for sentence in paragraph.rstrip(".").split(". "):
            assert sentence[0].isupper()
            assert "  " not in sentence
    assert " a a" not in written
    assert " a e" not in written


def test_another_process_writes_the_same() -> None:
    program = (
        "from llmirage_shared.tokenizer_loader import embedded; from llmirage_shared.synthetic_text import SyntheticText;"
        "print(SyntheticText(embedded(), 7).text(11, 80))"
    )
    written = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert written == SyntheticText(embedded(), 7).text(11, 80) + "\n"


ids_of_any_vocabulary = st.lists(st.integers(0, 300_000), max_size=60)


@given(vocabularies, ids_of_any_vocabulary, ids_of_any_vocabulary, ids_of_any_vocabulary)
def test_foreign_ids_become_as_many_tokens_with_the_same_prefixes(
    tokenizer: Tokenizer, common: list[int], one: list[int], other: list[int]
) -> None:
    text = SyntheticText(tokenizer)
    first, second = text.text_for_ids(common + one), text.text_for_ids(np.array(common + other, dtype=np.int32))
    assert len(tokenizer.encode(first)) == len(common) + len(one)
    shared = tokenizer.encode(text.text_for_ids(common)).tolist()
    assert len(shared) == len(common)
    assert tokenizer.encode(first)[: len(common)].tolist() == shared
    assert tokenizer.encode(second)[: len(common)].tolist() == shared
    whole = text.word_ids(np.array(common + one, dtype=np.int32)).tolist()
    assert whole == tokenizer.encode(first).tolist()
    assert whole[len(common) :] == text.word_ids(np.array(one, dtype=np.int32), begins=not common).tolist()
    assert not first.startswith(" ")


def test_different_ids_mostly_become_different_words() -> None:
    text = SyntheticText(embedded())
    words = text.text_for_ids(list(range(1000))).split(" ")
    assert len(set(words)) > 850


def test_a_vocabulary_without_words_is_refused() -> None:
    backend = Backend(models.WordLevel(vocab={"<unk>": 0, "?": 1}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    text = SyntheticText(Tokenizer(backend, "nothing", None, segment_wise=True))
    with pytest.raises(TokenizerError, match="tokenizer nothing: no word is one token"):
        text.text(1, 10)
    with pytest.raises(TokenizerError, match="tokenizer nothing"):
        text.text_for_ids([1, 2])


def test_a_vocabulary_that_joins_words_is_refused() -> None:
    # Every word is one token, letter by letter from its left end; "the" then takes in the word after it.
    vocabulary = {chr(i): i for i in range(128)}
    merges: dict[tuple[str, str], None] = {}
    for word in [*synthetic_text.bank_first_words(), *(" " + word for word in synthetic_text.bank_words())]:
        for end in range(2, len(word) + 1):
            merges[word[: end - 1], word[end - 1]] = None
            vocabulary.setdefault(word[:end], len(vocabulary))
    for part in synthetic_text.TOPICS[0]["part"]:
        merges[" the", " " + part] = None
        vocabulary[" the " + part] = len(vocabulary)
    backend = Backend(models.BPE(vocab=vocabulary, merges=list(merges)))
    backend.decoder = decoders.Fuse()
    text = SyntheticText(Tokenizer(backend, "joined", None, segment_wise=False))
    with pytest.raises(TokenizerError, match="tokenizer joined: merges words"):
        text.text(1, 10)


def test_only_so_many_sentences_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic_text, "_MOST_SENTENCES", 10)
    book = synthetic_text.Book(tokenizer_loader.embedded())
    asked = [(0, pattern, variant, False, False) for pattern in range(5) for variant in range(5)]
    texts = ["".join(book.sentence(*key).pieces) for key in asked]
    assert len(book._sentences) <= 10
    assert ["".join(book.sentence(*key).pieces) for key in asked] == texts
    assert len(set(texts)) > 10
