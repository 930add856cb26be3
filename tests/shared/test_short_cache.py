"""Caches of texts that clients choose."""

import pytest

from llmirage_shared.short_cache import short_cache


@pytest.mark.parametrize(("texts", "calls"), [(("a" * 150, "b" * 50), 1), (("a" * 150, "b" * 51), 3), (("a" * 10_000,), 3)])
def test_long_texts_are_not_kept(texts: tuple[str, ...], calls: int) -> None:
    asked = []
    length = short_cache(4)(lambda *texts: asked.append(texts) or len(texts))
    assert [length(*texts) for _ in range(3)] == [len(texts)] * 3
    assert len(asked) == calls
