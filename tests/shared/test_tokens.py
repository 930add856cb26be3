"""The embedded tokenizer: every text comes back, ids are sane, pieces add up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_shared import synthetic_text
from llmirage_shared.prompt_encoder import END_OF_TURN, SPECIAL_TOKENS
from llmirage_shared.texts import without_surrogates
from llmirage_shared.tokenizer_loader import embedded

ENGLISH = """The harbour was quiet when we arrived, and the fishermen had already taken their boats out to sea. My sister
wanted coffee, so we walked along the street until we found a small place with blue chairs. She asked me whether I had
finished the book she gave me last winter; I admitted that it was still lying beside my bed. Learning a language takes
patience. You hear the same words many times before they feel natural, and then one day you notice that you have stopped
translating. Could you please explain how this works, and why some people need more time than others?"""

CODE = """def merge(left: list[int], right: list[int]) -> list[int]:
    result = []
    while left and right:
        if left[0] <= right[0]:
            result.append(left.pop(0))
        else:
            result.append(right.pop(0))
    return result + left + right
"""

SPECIAL_IDS = frozenset(embedded().special_tokens.values())
special = st.sampled_from(SPECIAL_TOKENS)
any_text = st.lists(
    st.one_of(st.text(), special, st.sampled_from(["  ", "\n\n", "\r\n", "<|", "|>", "你好", "😀", "'s"]))
).map("".join)


@given(any_text)
def test_every_text_comes_back(text: str) -> None:
    assert embedded().decode(embedded().encode(text)) == text


@given(st.text(st.characters(min_codepoint=0xD700, max_codepoint=0xE010)))
def test_lone_surrogates_count_as_replacement_characters(text: str) -> None:
    tokenizer = embedded()
    assert tokenizer.decode(tokenizer.encode(text)) == without_surrogates(text)
    assert "�" in without_surrogates("\ud800")
    assert without_surrogates("\ud83d\ude00") == "😀"


@given(any_text)
def test_pieces_add_up_to_the_text_without_special_tokens(text: str) -> None:
    tokenizer = embedded()
    ids = tokenizer.encode(text)
    pieces = tokenizer.pieces(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == "".join(part for part in tokenizer.split_special(text) if part not in tokenizer.special_tokens)
    assert all(not piece for piece, i in zip(pieces, ids, strict=True) if int(i) in SPECIAL_IDS)


@given(st.lists(st.integers(0, 31_000)))
def test_pieces_of_any_ids_are_what_they_decode_to(ids: list[int]) -> None:
    tokenizer = embedded()
    assert "".join(tokenizer.pieces(ids)) == tokenizer.decode(ids)


def test_a_character_appears_whole_with_its_last_token() -> None:
    tokenizer = embedded()
    ids = tokenizer.encode("🦄")
    assert len(ids) > 1
    assert tokenizer.pieces(ids) == [""] * (len(ids) - 1) + ["🦄"]
    assert tokenizer.pieces(ids[:-1]) == [""] * (len(ids) - 2) + ["�"]
    assert tokenizer.pieces(ids[:-1], final=False) == [""] * (len(ids) - 1)


@given(any_text)
def test_splitting_at_special_tokens_loses_nothing(text: str) -> None:
    tokenizer = embedded()
    parts = tokenizer.split_special(text)
    assert "".join(parts) == text
    for part in parts:
        assert part in tokenizer.special_tokens or not any(token in part for token in tokenizer.special_tokens)


@given(
    st.lists(
        st.sampled_from(
            ["word", " word", " a b", "\n", "x\n", "  ", "\t", "é", "你好", ")\n", "'s", "12", "\r\n", " \n ", "."]
        )
    )
    .map("".join)
    .map(lambda text: text * (1 + 30_000 // (len(text) + 1)))
)
def test_long_texts_are_divided_where_ids_do_not_change(text: str) -> None:
    tokenizer = embedded()
    segments = tokenizer.segments(text)
    assert "".join(segments) == text
    together = [i for segment in segments for i in tokenizer.encode(segment).tolist()]
    assert together == tokenizer.encode(text).tolist()


def test_a_text_that_grows_keeps_its_segments() -> None:
    tokenizer = embedded()
    text = ENGLISH * 100
    before, after = tokenizer.segments(text), tokenizer.segments(text + ENGLISH * 20)
    assert len(before) > 5
    assert after[: len(before) - 1] == before[:-1]


@given(any_text)
def test_ordinary_encoding_takes_special_tokens_as_text(text: str) -> None:
    tokenizer = embedded()
    ids = tokenizer.encode_ordinary(text)
    assert tokenizer.decode(ids) == text
    assert not SPECIAL_IDS & set(ids.tolist())


def test_special_tokens_in_a_text_are_recognised_and_none_are_added() -> None:
    tokenizer = embedded()
    assert tokenizer.encode("").tolist() == []
    assert tokenizer.encode(END_OF_TURN).tolist() == [tokenizer.end_id]
    for token in SPECIAL_TOKENS:
        assert tokenizer.encode(token).tolist() == [tokenizer.token_id(token)]
    assert tokenizer.vocab_size == 32_000


def test_ids_are_int32() -> None:
    assert embedded().encode(ENGLISH).dtype == np.int32
    assert embedded().encode("").dtype == np.int32


def test_english_takes_a_token_for_about_four_characters() -> None:
    assert len(ENGLISH) / len(embedded().encode(ENGLISH)) >= 4.0


def test_code_keeps_its_indentation_in_few_tokens() -> None:
    tokenizer = embedded()
    assert len(CODE) / len(tokenizer.encode(CODE)) >= 3.0
    for width in (4, 8, 12, 16):
        assert len(tokenizer.encode("\n" + " " * width + "return x")) <= 4


def test_chinese_and_emoji_are_not_spelled_in_bytes() -> None:
    tokenizer = embedded()
    chinese = "如果文件不存在,系统将显示错误信息。用户可以选择其他选项,然后重新运行程序。"
    assert len(tokenizer.encode(chinese)) <= len(chinese)
    for emoji in "😀👍🎉🚀🔥":
        assert len(tokenizer.encode(emoji)) <= 2


@pytest.mark.parametrize("number", ["7", "42", "123", "2026", "123456789"])
def test_numbers_go_three_digits_at_a_time(number: str) -> None:
    pieces = embedded().pieces(embedded().encode(number))
    assert all(len(piece) <= 3 for piece in pieces)
    assert "".join(pieces) == number


def test_every_word_of_the_prose_bank_is_one_token() -> None:
    words = [*synthetic_text.bank_first_words(), *(" " + word for word in synthetic_text.bank_words())]
    assert [word for word in words if len(embedded().encode(word)) != 1] == []
