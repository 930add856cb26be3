"""Forms with files in bodies of requests (multipart/form-data, RFC 7578)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from email.utils import collapse_rfc2231_value
from typing import NamedTuple

from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

_MOST_PARTS = 64
_MOST_HEADER_BYTES = 8 * 1024
_WINDOW_BYTES = 1 << 18
_MOST_BOUNDARY = 70  # characters, RFC 2046


class FormPart(NamedTuple):
    """One field. filename: None for one that is no file. content_type: "" for none."""

    name: str
    filename: str | None
    data: memoryview
    content_type: str = ""

    @property
    def base_name(self) -> str:
        """The name of the file without the folders of the sender."""
        return re.split(r"[/\\]", self.filename or "")[-1]

    @property
    def text(self) -> str:
        return str(self.data, "utf-8", "replace")


def form_parts(content_type: str, body: bytes) -> Iterator[FormPart]:
    """Yield the fields of a form. Raises ApiError for another content type (415) and for a body that is none (400)."""
    kind = _header(content_type)
    if kind.get_content_type() != "multipart/form-data":
        raise errors.unsupported_content_type(content_type, "multipart/form-data")
    boundary = kind.get_boundary("")
    if not 0 < len(boundary) <= _MOST_BOUNDARY:
        raise _bad_form(f"its content type has no boundary of 1 to {_MOST_BOUNDARY} characters")
    mark = b"\r\n--" + boundary.encode("utf-8", "replace")
    if body.startswith(mark[2:]):
        at = len(mark) - 2
    elif (at := _found(body, mark, 0)) >= 0:
        at += len(mark)
    else:
        raise _bad_form("the boundary does not occur in it")
    view = memoryview(body)
    for _ in range(_MOST_PARTS):
        if body.startswith(b"--", at):
            return
        if not body.startswith(b"\r\n", at):
            raise _bad_form("a boundary is not followed by a line break")
        head_end = body.find(b"\r\n\r\n", at, at + _MOST_HEADER_BYTES)
        if head_end < 0:
            raise _bad_form(f"the headers of a part do not end within {_MOST_HEADER_BYTES} bytes")
        end = _found(body, mark, head_end + 2)
        if end < 0:
            raise _bad_form("its last part has no end")
        yield _part(body[at:head_end], view[min(head_end + 4, end) : end])
        at = end + len(mark)
    raise _bad_form(f"it has more than {_MOST_PARTS} parts")


def _found(body: bytes, mark: bytes, start: int) -> int:
    """As `body.find(mark, start)`, in windows: no other thread runs during a search."""
    for begin in range(start, len(body), _WINDOW_BYTES):
        if (place := body.find(mark, begin, begin + _WINDOW_BYTES + len(mark) - 1)) >= 0:
            return place
    return -1


def _part(head: bytes, data: memoryview) -> FormPart:
    lines = head.decode("utf-8", "replace").split("\r\n")
    kinds = [value.strip() for name, _, value in (line.partition(":") for line in lines) if name.lower() == "content-type"]
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            disposition = _header(value.strip())
            field, filename = (disposition.get_param(key) for key in ("name", "filename"))
            if field is not None:
                name = collapse_rfc2231_value(field)
                known = None if filename is None else collapse_rfc2231_value(filename)
                return FormPart(name, known, data, kinds[0] if kinds else "")
    raise _bad_form("a part has no name")


def _header(value: str) -> Message:
    """Return a header with parameters, as the standard library reads it."""
    message = Message()
    message["content-type"] = value.replace("\r", " ").replace("\n", " ")
    return message


def _bad_form(problem: str) -> ApiError:
    return ApiError(f"We could not parse the multipart/form-data body of your request: {problem}.")
