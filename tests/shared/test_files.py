"""Files in prompts: texts are read, PDF counts by its pages, anything else by its bytes."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_shared.chat_template import text_of
from llmirage_shared.files import MOST_PAGES, PAGE_TOKENS, file_text, file_tokens


def part(data: bytes, kind: str = "application/pdf") -> dict[str, Any]:
    return {"type": "input_file", "filename": "a", "file_data": f"data:{kind};base64,{base64.b64encode(data).decode()}"}


def test_a_text_is_read_in_either_api() -> None:
    data = "Ünder the table".encode()
    assert file_text(part(data, "text/plain")) == "Ünder the table"
    bare = {"type": "file", "file": {"filename": "a.md", "file_data": base64.b64encode(data).decode()}}
    assert file_text(bare) == "Ünder the table"
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
    assert file_text(part(data)) is None
    assert file_tokens(part(data)) == tokens
    assert len(text_of([part(data)]).replace("<|file|>", "x")) == tokens


def test_what_is_not_in_the_request_is_one_token() -> None:
    for given_part in (
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_file", "file_url": "https://a.test/b"},
    ):
        assert (file_text(given_part), file_tokens(given_part)) == (None, 1)


@given(
    st.dictionaries(st.sampled_from(["file", "file_data", "filename"]), st.none() | st.text() | st.just({"file_data": 5}))
)
def test_any_part_has_some_tokens(fields: dict[str, Any]) -> None:
    given_part = {"type": "file", **fields}
    assert file_tokens(given_part) >= 1
    assert isinstance(text_of([given_part]), str)
