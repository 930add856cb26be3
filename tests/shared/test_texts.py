"""Long texts made piece by piece are those that one call makes, and no cache keeps them."""

import random

import pytest

from llmirage_shared.texts import PIECE, joined, short_cache, utf8_text

PARTS = ("", "a", "ż", "\U0001f600", "some words " * PIECE, "żółć" * PIECE, "\U0001f600" * (PIECE + 1))


@pytest.mark.parametrize("seed", range(20))
def test_parts_are_joined_as_by_the_language(seed: int) -> None:
    rng = random.Random(seed)
    parts = rng.choices(PARTS, k=rng.randint(0, 12))
    assert joined(parts) == "".join(parts)


@pytest.mark.parametrize("place", [0, PIECE - 1, PIECE, 2 * PIECE])
@pytest.mark.parametrize("character", ["a", "ż", "\ufeff", "\U0001f600"])
def test_a_file_in_pieces_is_the_text_that_it_is_as_a_whole(place: int, character: str) -> None:
    data = b"x" * place + character.encode() + b"yz"
    assert utf8_text(data) == data.decode("utf-8-sig")
    with pytest.raises(UnicodeDecodeError):
        utf8_text(data + "ż".encode()[:1])
    with pytest.raises(UnicodeDecodeError):
        utf8_text(data + b"\xff" + b"x" * PIECE)


@pytest.mark.parametrize(("texts", "calls"), [(("a" * 150, "b" * 50), 1), (("a" * 150, "b" * 51), 3), (("a" * 10_000,), 3)])
def test_long_texts_are_not_kept(texts: tuple[str, ...], calls: int) -> None:
    asked = []
    length = short_cache(4)(lambda *texts: asked.append(texts) or len(texts))
    assert [length(*texts) for _ in range(3)] == [len(texts)] * 3
    assert len(asked) == calls
