"""Sentences are remembered, but only so many of them."""

import pytest

from llmirage_shared import synthetic_text, tokenizer_loader


def test_only_so_many_sentences_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic_text, "_MOST_SENTENCES", 10)
    book = synthetic_text.Book(tokenizer_loader.embedded())
    asked = [(0, pattern, variant, False, False) for pattern in range(5) for variant in range(5)]
    texts = ["".join(book.sentence(*key).pieces) for key in asked]
    assert len(book._sentences) <= 10
    assert ["".join(book.sentence(*key).pieces) for key in asked] == texts
    assert len(set(texts)) > 10
