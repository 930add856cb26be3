"""Files in prompts: texts are read, PDF counts by its pages, anything else by its bytes."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_shared.media import MOST_PAGES, PAGE_TOKENS, decoded, read_file
from llmirage_shared.prompt_encoder import text_of


def part(data: bytes, kind: str = "application/pdf") -> dict[str, Any]:
    return {"type": "input_file", "filename": "a", "file_data": f"data:{kind};base64,{base64.b64encode(data).decode()}"}


def test_a_text_is_read_in_either_api() -> None:
    data = "Ünder the table".encode()
    assert read_file(part(data, "text/plain")) == "Ünder the table"
    bare = {"type": "file", "file": {"filename": "a.md", "file_data": base64.b64encode(data).decode()}}
    assert read_file(bare) == "Ünder the table"
    assert text_of([{"type": "text", "text": "Read:"}, bare]) == "Read:<|file|>Ünder the table"


@pytest.mark.parametrize(
    ("data", "tokens"),
    [
        (b"%PDF-1.7 " + b"<< /Type /Page >> << /Type/Pages >>" * 3, 3 * PAGE_TOKENS),
        (b"%PDF-1.7 " + b"x" * 60_000, 2 * PAGE_TOKENS),
        (b"%PDF-1.7 " + b"<</Type/Page/" * 90_000, MOST_PAGES * PAGE_TOKENS),
        (b"PK\0\x03" + b"x" * 396, 100),
        (b"\xff\xfe", 1),
    ],
)
def test_anything_else_is_estimated(data: bytes, tokens: int) -> None:
    assert read_file(part(data)) == tokens
    assert len(text_of([part(data)]).replace("<|file|>", "x")) == tokens


def test_what_is_not_in_the_request_is_one_token() -> None:
    for given_part in (
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_file", "file_url": "https://a.test/b"},
    ):
        assert read_file(given_part) == 1


@given(
    st.dictionaries(st.sampled_from(["file", "file_data", "filename"]), st.none() | st.text() | st.just({"file_data": 5}))
)
def test_any_part_has_some_tokens(fields: dict[str, Any]) -> None:
    given_part = {"type": "file", **fields}
    assert read_file(given_part) != 0
    assert isinstance(text_of([given_part]), str)


def test_base64_is_read_in_pieces_with_and_without_line_breaks() -> None:
    data = bytes(range(256)) * 9_000
    for encoded in (base64.b64encode(data).decode(), base64.encodebytes(data).decode()):
        assert decoded(encoded) == data
        assert decoded("data:a," + encoded, 7) == data
    assert decoded("====") == b""
    assert decoded("abcde") is None


def test_pages_are_counted_where_the_search_is_cut() -> None:
    page = b"/Type  /Page\n"
    for before in range((1 << 20) - 20, (1 << 20) + 4):
        data = b"%PDF-" + b"x" * (before - 5) + page + b"x" * 100 + page
        assert read_file(part(data)) == 2 * PAGE_TOKENS
