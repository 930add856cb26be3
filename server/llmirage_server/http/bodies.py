"""Bodies of requests: JSON, compressed or not, and such as is no JSON.

Long texts and spaces are read piece by piece: a decoder lets no other thread run until it is done.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import json.decoder
import json.scanner
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NoReturn

from llmirage_server.http.byte_budget import Held
from llmirage_server.http.turns import turn
from llmirage_shared.texts import gathered
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

MOST_OBJECTS = 12_000  # of a body: to check as many takes some 40 ms, in which nothing else runs
MOST_VALUES = 600_000  # of a body: as many take some 0.1 s to read, and 40 MB
_ENTRY_VALUES = 5  # an entry of an object, or a list, takes as long as so many numbers: a comma, and the rest
_SLICE_BYTES = 1 << 18
_PIECE_CHARACTERS = 1 << 16
_AT_ONCE = 1 << 14  # characters that C decodes: up to some milliseconds, in which nothing else runs
_PAIRS_AT_ONCE = 1 << 12  # of names and values of an object
# Items of a list with their commas: numbers, literals, and texts without escapes.
_FLAT = re.compile(r'(?:(?:[^"\[\]{},\\]++|"[^"\\]*+")*+,)*+')
_LONG_DIGITS = 300
_AS_DIGITS = bytes([48 if 48 <= byte < 58 else 32 for byte in range(256)])  # to search for one digit is ten times as fast
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_LONE = re.compile("[\ud800-\udfff]")


def decompressed(body: bytes, encoding: bytes, most_bytes: int, held: Held | None = None) -> bytes:
    """Return the body as it was before its encoding. held: takes its bytes, piece by piece.

    Raises ApiError for an unknown encoding, and for a body that is not encoded so, is too large, or finds no room.
    """
    if encoding in (b"", b"identity"):
        return body
    if encoding not in (b"gzip", b"deflate"):
        raise errors.unsupported_content_encoding(encoding.decode("latin-1"))
    decompressor = zlib.decompressobj(zlib.MAX_WBITS | 32)  # of either kind
    plain = io.BytesIO()  # is not copied at the end
    try:
        while body and not decompressor.eof:
            piece = decompressor.decompress(body, _SLICE_BYTES)
            body = decompressor.unconsumed_tail
            if held is not None:
                held.take(len(piece))
            plain.write(piece)
            if plain.tell() > most_bytes:
                raise errors.body_too_large(most_bytes)
        plain.write(decompressor.flush())
    except zlib.error:
        raise errors.bad_json("the body is not what its content-encoding says") from None
    return plain.getvalue()


async def digest(body: bytes) -> int:
    """Return a number that equal bodies have in common, read in slices: `hash` for one of a slice."""
    found = hash(body[:_SLICE_BYTES])
    for start in range(_SLICE_BYTES, len(body), _SLICE_BYTES):
        await turn()
        found = hash((found, body[start : start + _SLICE_BYTES]))
    return found


def json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`; surrogates that stand alone in its texts become U+FFFD, as UTF-8 cannot write them.

    Raises ApiError (400): empty body, bytes that are not UTF-8, invalid JSON, nesting too deep, or not an object.
    """
    if is_blank(body):
        raise errors.bad_json("the body is empty")
    try:
        value = decoded(body, _decoder, MOST_TEXT_BYTES)
        if _has(body, b"\\ud") or _has(body, b"\\uD"):
            value = changed(value, _without_lone_surrogates)
    except (ValueError, RecursionError) as error:
        raise no_json(error) from None
    if not isinstance(value, dict):
        raise errors.bad_json(f"the body must be an object, but is {errors.describe_type(value)}")
    return value


def kept_object(data: bytes) -> dict[str, Any]:
    """Return an object that this server has written as JSON; others run between two of its objects, and in long texts."""
    try:
        value: dict[str, Any] = decoded(data, lambda rest: _KEPT.decode)
    except UnicodeDecodeError:  # half a pair of surrogates
        value = json.loads(data)
    return value


def is_blank(body: bytes) -> bool:
    """Tell whether there is nothing but space."""
    return all(body[start : start + _SLICE_BYTES].isspace() for start in range(0, len(body), _SLICE_BYTES))


def _has(body: bytes, found: bytes) -> bool:
    """Search the body in slices: no other thread runs during one."""
    return any(
        body.find(found, start, start + _SLICE_BYTES + len(found)) >= 0 for start in range(0, len(body), _SLICE_BYTES)
    )


def _without_lone_surrogates(text: str) -> str:
    return text if text.isascii() else gathered(_pieces_without(text))


def _joined(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _pieces_without(text: str) -> Iterator[str]:
    """Piece by piece: no other thread runs in the meantime."""
    start = 0
    while start < len(text):
        end = start + _PIECE_CHARACTERS
        end += "\ud800" <= text[end - 1 : end] <= "\udbff"  # the first half of a pair
        yield _LONE.sub("\ufffd", _PAIR.sub(_joined, text[start:end]))
        start = end


def no_json(error: ValueError | RecursionError) -> ApiError:
    """Return the refusal (400) of a body for the error that reading it raised."""
    if isinstance(error, RecursionError):
        return errors.bad_json("it is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return errors.bad_json("the body is not UTF-8")
    if isinstance(error, json.JSONDecodeError):
        return errors.bad_json(f"{error.msg} at line {error.lineno}, column {error.colno}")
    return errors.bad_json(errors.shorten(error))


def reject_constant(name: str) -> NoReturn:
    """For a JSON decoder: NaN and infinities, which JSON does not have."""
    raise ValueError(f"{name} is not a JSON number")


def finite(digits: str) -> float:
    """Return a number of JSON. Raises ValueError for one that no float holds."""
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{errors.shorten(digits, 20)} is too large a number")
    return value


_KEPT = json.JSONDecoder(object_hook=lambda value: value)
DECODER = json.JSONDecoder(parse_constant=reject_constant, parse_float=finite)


def _decoder(body: bytes) -> Decode:
    """Return a decoder of this body, which raises ApiError (413) for too many objects."""
    hooks: dict[str, Any] = {}
    if len(body) > MOST_OBJECTS and _count(body, b"{") > MOST_OBJECTS:
        hooks["object_hook"] = _counting()
    if len(body) > _SLICE_BYTES and _has_long_number(body):
        hooks["parse_int"] = lambda digits: int(digits)  # others run between two of them, as between two calls of a hook
    if len(body) <= _SLICE_BYTES and not hooks:
        return DECODER.decode
    decoder = json.JSONDecoder(parse_constant=reject_constant, parse_float=finite, **hooks)
    if len(body) > _SLICE_BYTES:
        _decode_in_pieces(decoder)
    return decoder.decode


def _decode_in_pieces(decoder: Any) -> None:
    """Let a decoder read short values and stretches of lists in C, and others run between two of these."""
    in_c = decoder.scan_once
    counts = decoder.object_hook is not None  # which may be called once for an object

    def short(text: str, start: int) -> tuple[Any, int] | None:
        with contextlib.suppress(ValueError, StopIteration, RecursionError):  # cut, or wrong: then it is read in Python
            value, end = in_c(text[start : start + _AT_ONCE + 1], 0)
            return value, start + end
        return None

    def parse_array(place: tuple[str, int], scan: Any) -> tuple[list[Any], int]:
        text, end = place
        if not counts and (found := short(text, end - 1)) is not None:
            return found
        values: list[Any] = []
        while (flat := _FLAT.match(text, end, end + _AT_ONCE)) and flat.end() > end + _AT_ONCE // 2:
            some, _ = short(f"[{text[end : flat.end() - 1]}]", 0) or ([], 0)
            if not some:  # what is wrong is said below
                break
            values += some
            end = flat.end()
        rest, last = json.decoder.JSONArray((text, end), scan)  # type: ignore[attr-defined]
        if values and not rest:
            raise json.JSONDecodeError("Expecting value", text, last - 1)
        values += rest
        return values, last

    def parse_object(place: tuple[str, int], strict: bool, scan: Any, hook: Any, _: Any, names: Any) -> tuple[Any, int]:
        text, end = place
        found = None if counts else short(text, end - 1)
        return found or json.decoder.JSONObject(place, strict, scan, None, partial(_object_of, hook), names)  # type: ignore[attr-defined]

    decoder.parse_array, decoder.parse_object = parse_array, parse_object
    decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]


def _object_of(hook: Callable[[dict[str, Any]], Any] | None, pairs: list[tuple[str, Any]]) -> Any:
    """Return the object of names and values, made piece by piece, as the list of these is freed."""
    value: dict[str, Any] = {}
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        value.update(pairs[start : start + _PAIRS_AT_ONCE])
    while pairs:
        del pairs[-_PAIRS_AT_ONCE:]
    return value if hook is None else hook(value)


def _has_long_number(body: bytes) -> bool:
    """Tell whether some number may take long to read: the time grows with the square of its digits."""
    starts = range(0, len(body), _SLICE_BYTES)
    slices = (body[start : start + _SLICE_BYTES + _LONG_DIGITS] for start in starts)
    return any(b"0" * _LONG_DIGITS in piece.translate(_AS_DIGITS) for piece in slices)


def _counting() -> Callable[[dict[str, Any]], dict[str, Any]]:
    left = MOST_OBJECTS

    def count(value: dict[str, Any]) -> dict[str, Any]:
        nonlocal left
        left -= 1
        if left < 0:
            raise errors.too_many_objects(MOST_OBJECTS)
        return value

    return count


async def check_values(body: bytes) -> None:
    """Raise ApiError (413) for a body of so many values that reading them would hold up others. What a text holds is none.

    Only what might be such a body is looked at closely, in slices.
    """
    found = 0
    for start in range(0, len(body), _SLICE_BYTES):
        await turn()
        found += _values(body, start, start + _SLICE_BYTES)
    if found <= MOST_VALUES:
        return
    found = 0
    in_text = escaped = False
    for start in range(0, len(body), _SLICE_BYTES):
        await turn()
        piece = body[start + escaped : start + _SLICE_BYTES]
        escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1  # the next slice begins with the escaped character
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        found += _values(b"".join(parts[in_text::2]))
        in_text ^= len(parts) % 2 == 0
    if found > MOST_VALUES:
        raise errors.too_many_values(MOST_VALUES, found, _ENTRY_VALUES)


def _values(text: bytes, start: int = 0, end: int | None = None) -> int:
    return text.count(b",", start, end) + (_ENTRY_VALUES - 1) * (text.count(b":", start, end) + text.count(b"[", start, end))


def _count(body: bytes, character: bytes) -> int:
    """Count in slices."""
    return sum([body.count(character, start, start + _SLICE_BYTES) for start in range(0, len(body), _SLICE_BYTES)])


# --- long texts ---------------------------------------------------------------------------------------------------------

PIECE_BYTES = 1 << 15
MOST_TEXT_BYTES = 40 << 20  # of memory for the texts of a body: OpenAI's longest text with an emoji takes as many
_NOT_PLAIN = bytes([*range(32), ord("\\")])  # control characters, which are errors, and what begins an escape
_CONTINUING, _FOUR_BYTES = bytes(range(0x80, 0xC0)), bytes(range(0xF0, 0xF8))  # in UTF-8
_MOST_DIGITS = 4300  # Python's limit of an integer

Decode = Callable[[str], Any]


def decoded(body: bytes, decoder: Callable[[bytes], Decode], most_bytes: float = math.inf) -> Any:
    """Return the value that a JSON text stands for.

    Texts that lie in several pieces of it are decoded apart from the rest, pieces of space are left out.

    decoder: what decodes the rest, which it is shown before. most_bytes: of memory for the texts.
    Raises ValueError and RecursionError as a decoder does, and ApiError (413) for more memory.
    """
    places = list(_long_stretches(body)) if len(body) > PIECE_BYTES else []
    if 4 * len(body) > most_bytes:
        gaps = zip([0, *[end for _, end, _ in places]], [*[start for start, _, _ in places], len(body)], strict=True)
        taken = _memory(body, gaps) + sum([_memory(body, [(start, end)]) for start, end, _ in places])
        if taken > max(most_bytes, len(body)):
            raise errors.texts_too_large(most_bytes, taken)
    if not places:
        return decoder(body)(body.decode("utf-8-sig"))
    sign = os.urandom(8).hex()  # no text of a request begins so
    named: dict[str, tuple[int, int]] = {}
    rest: list[bytes] = []
    done = 0
    for start, end, instead in places:
        if not instead:
            name = f"{sign}{len(named):06}"
            named[name] = start, end
        rest += [body[done:start], instead or name.encode()]
        done = end
    short = b"".join([*rest, body[done:]])
    try:
        value = decoder(short)(short.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        place = error.pos
        for start, end, instead in places:
            place += end - start - (len(instead) or len(sign) + 6) if start < place else 0
        raise ValueError(f"{error.msg} near character {place}") from None
    texts = {name: _text(body, start, end) for name, (start, end) in named.items()}
    return changed(value, lambda text: texts.get(text, text)) if texts else value


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return the JSON value with other texts, names of fields among them."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [changed(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): changed(item, change) for key, item in value.items()}
    return value


def _long_stretches(body: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Find the beginnings and ends of texts that lie in more than one piece, without quotes, and of pieces of one value.

    What a decoder reads instead is empty for a text, which may not end, a space for spaces, and an error for a long number.
    """
    in_text = escaped = False  # escaped: the piece begins with the character after a backslash
    begun = 0
    for start in range(0, len(body), PIECE_BYTES):
        first = start + escaped
        piece = _without_escaped(body[first : start + PIECE_BYTES])
        escaped = piece.endswith(b"\\")
        quotes = piece.count(b'"')
        if in_text and quotes:
            yield begun, first + piece.find(b'"'), b""
        elif not (in_text or quotes or 0 < len(rest := piece.strip()) <= _MOST_DIGITS or _has_structure(piece)):
            yield start, start + len(piece), b"?" if rest else b" "
        in_text ^= quotes % 2 == 1
        if in_text and quotes:
            begun = first + piece.rfind(b'"') + 1
    if in_text:
        yield begun, len(body), b""


def _has_structure(piece: bytes) -> bool:
    return len(piece.translate(None, b",:[]{}")) < len(piece)


def _memory(body: bytes, places: Iterable[tuple[int, int]]) -> int:
    """Return the bytes that one text of these places takes at most: all its characters as many as the widest."""
    characters, width = 0, 1
    for begin, end in places:
        for start in range(begin, end, PIECE_BYTES):
            piece = body[start : min(start + PIECE_BYTES, end)]
            characters += len(piece.translate(None, _CONTINUING))
            if b"\\ud" in piece or b"\\uD" in piece or len(piece.translate(None, _FOUR_BYTES)) < len(piece):
                width = 4
            elif not piece.isascii() or b"\\u" in piece:
                width = max(width, 2)
    return characters * width


def _is_plain(piece: bytes) -> bool:
    """Tell whether the piece of a text stands for itself, a byte for a character."""
    return piece.isascii() and len(piece.translate(None, _NOT_PLAIN)) == len(piece)


def _without_escaped(piece: bytes) -> bytes:
    """Replace escaped backslashes and quotes; the length stays."""
    return piece.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in piece else piece


def _text(body: bytes, start: int, end: int) -> str:
    """Return the text between two quotes. Raises ValueError."""
    pieces = [(place, min(place + PIECE_BYTES, end)) for place in range(start, end, PIECE_BYTES)]
    if all(_is_plain(body[begin:stop]) for begin, stop in pieces):
        return gathered(body[begin:stop].decode("ascii") for begin, stop in pieces)
    return gathered(_unescaped(body, start, end))


def _unescaped(body: bytes, start: int, end: int) -> Iterator[str]:
    """Yield the text between two quotes. Raises ValueError."""
    utf8 = codecs.getincrementaldecoder("utf-8")()
    while start < end:
        stop = _whole_escapes(body, start, end)
        piece = utf8.decode(body[start:stop], stop == end)
        try:
            yield json.loads(f'"{piece}"')
        except json.JSONDecodeError as error:
            raise ValueError(f"{error.msg} near character {start + error.pos}") from None
        start = stop


def _whole_escapes(body: bytes, start: int, end: int) -> int:
    """Return a place at which a piece of a text can end: not within an escaped character."""
    stop = start + PIECE_BYTES
    if stop >= end:
        return end
    piece = _without_escaped(body[start:stop])
    backslash = piece.rfind(b"\\", len(piece) - 5)
    if backslash < 0:
        return stop
    length = 6 if body[start + backslash + 1 : start + backslash + 2] == b"u" else 2
    return start + backslash if backslash + length > len(piece) else stop
