"""Prompt tokens of images, sounds and files; images and sounds by OpenAI's rules for its GPT-4o models.

Source: platform.openai.com/docs/guides/images-vision ("Calculating costs"): detail low is 85 tokens; else the image is
scaled to fit into 2048 x 2048, then its shortest side down to 768, and each tile of 512 x 512 is 170 tokens on top of 85.
Sounds: 10 tokens a second.

A text file is read. A PDF counts by its pages, another file by its bytes: reading these takes a parser that hostile input
must be kept from. A missing file (an unknown id, an address) is one token: nothing is fetched.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import io
import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_shared.texts import PIECE, utf8_text

BASE_TOKENS = 85
TILE_TOKENS = 170
_MEDIA = ("image_url", "input_image", "input_audio")
_UNKNOWN_SIZE = (1024, 1024)  # of an image that is not in the request: nothing is fetched
_HEADER_CHARACTERS = 400_000  # of base64: the size of a JPEG may come after its thumbnails
_SOUND_BYTES_PER_S = {"wav": 48_000.0, "pcm16": 48_000.0, "mp3": 16_000.0}
_SOUND_TOKENS_PER_S = 10.0

# docs.claude.com, "PDF support": a page takes 1,500 to 3,000 tokens of text, by how dense it is.
PAGE_TOKENS = 1_500
PAGE_BYTES = 50_000  # of a PDF that hides its pages in compressed objects
MOST_PAGES = 1_000
_FILE_BYTES_PER_TOKEN = 4  # of any other file
_MOST_FILE_TOKENS = MOST_PAGES * PAGE_TOKENS
_PAGE = re.compile(rb"/Type\s{0,8}/Page[^s]")
_PAGE_BYTES = 32  # that it matches at most
_TEXT_START_BYTES = 4096  # of a file, in which no text has a zero byte


def image_tokens(width: int, height: int, detail: str = "auto") -> int:
    """Return the tokens of an image of that many pixels."""
    if detail == "low":
        return BASE_TOKENS
    scale = min(1.0, 2048 / max(width, height, 1))
    scale *= min(1.0, 768 / max(1.0, min(width, height) * scale))
    tiles = math.ceil(width * scale / 512) * math.ceil(height * scale / 512)
    return BASE_TOKENS + TILE_TOKENS * max(1, tiles)


def part_tokens(part: Mapping[str, Any]) -> int:
    """Return the tokens of a content part that is an image or a sound; 1 for any other."""
    kind = part.get("type")
    if kind in ("image_url", "input_image"):
        image = part.get("image_url")
        url, detail = image, part.get("detail")
        if isinstance(image, Mapping):
            url, detail = image.get("url"), image.get("detail")
        width, height = image_size(url if isinstance(url, str) else "") or _UNKNOWN_SIZE
        return image_tokens(width, height, str(detail or "auto"))
    sound = part.get("input_audio")
    if isinstance(sound, Mapping):
        size = len(str(sound.get("data") or "")) * 3 / 4
        seconds = size / _SOUND_BYTES_PER_S.get(str(sound.get("format")), 16_000.0)
        return max(1, math.ceil(seconds * _SOUND_TOKENS_PER_S))
    return 1


def audio_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the tokens of the sounds in messages in chat's form."""
    return sum([part_tokens(part) for part in _media_parts(messages) if part.get("type") == "input_audio"])


def media_digests(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the digest of each image and sound in messages in chat's form."""
    return [part_digest(part) for part in _media_parts(messages)]


def _media_parts(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    contents = [content for message in messages if isinstance(content := message.get("content"), list)]
    return [part for content in contents for part in content if part.get("type") in _MEDIA]


def part_digest(part: Mapping[str, Any]) -> int:
    """Return a 32-bit hash that tells images and sounds apart."""
    hashed = hashlib.blake2b(digest_size=4)
    _feed(hashed, part)
    return int.from_bytes(hashed.digest())


def _feed(hashed: hashlib.blake2b, value: Any) -> None:
    """Add a value of JSON. Long texts piece by piece: each keeps threads waiting."""
    if isinstance(value, Mapping):
        for name in sorted(value, key=str):
            _feed(hashed, str(name))
            _feed(hashed, value[name])
        return
    if isinstance(value, bytes):
        hashed.update(value)
        return
    text = value if isinstance(value, str) else repr(value)
    for start in range(0, len(text), PIECE):
        hashed.update(text[start : start + PIECE].encode("utf-8", "replace"))
    hashed.update(b"\0")


def image_size(url: str) -> tuple[int, int] | None:
    """Return width and height of an image in a data URL (PNG, JPEG, GIF, WebP), None if unknown."""
    head, _, data = url.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64"):
        return None
    data = data[:_HEADER_CHARACTERS]
    try:
        header = base64.b64decode(data[: len(data) - len(data) % 4])
        return _png(header) or _gif(header) or _webp(header) or _jpeg(header)
    except (binascii.Error, ValueError, struct.error):
        return None


def _png(header: bytes) -> tuple[int, int] | None:
    if header[:8] != b"\x89PNG\r\n\x1a\n":
        return None
    width, height = struct.unpack(">II", header[16:24])
    return width, height


def _gif(header: bytes) -> tuple[int, int] | None:
    if header[:6] not in (b"GIF87a", b"GIF89a"):
        return None
    width, height = struct.unpack("<HH", header[6:10])
    return width, height


def _webp(header: bytes) -> tuple[int, int] | None:
    if header[:4] != b"RIFF" or header[8:12] != b"WEBP":
        return None
    if header[12:16] == b"VP8X":
        return int.from_bytes(header[24:27], "little") + 1, int.from_bytes(header[27:30], "little") + 1
    if header[12:16] == b"VP8L":
        bits = int.from_bytes(header[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack("<HH", header[26:30])
    return width & 0x3FFF, height & 0x3FFF


def _jpeg(header: bytes) -> tuple[int, int] | None:
    if header[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 9 < len(header):
        if header[at] != 0xFF:
            return None
        marker, size = header[at + 1], int.from_bytes(header[at + 2 : at + 4])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", header[at + 5 : at + 9])
            return width, height
        at += 2 + size
    return None


def read_file(part: Mapping[str, Any]) -> str | int:
    """Return the text of a content part `file` or `input_file`; if it cannot be read, its estimated tokens."""
    data = _data(part)
    if data is None:
        return 1
    if data.startswith(b"%PDF-"):
        pages = _pages(data) or -(-len(data) // PAGE_BYTES)
        return PAGE_TOKENS * min(pages, MOST_PAGES)
    if b"\0" not in data[:_TEXT_START_BYTES]:
        with contextlib.suppress(UnicodeDecodeError):
            return utf8_text(data)
    return min(_MOST_FILE_TOKENS, max(1, len(data) // _FILE_BYTES_PER_TOKEN))


def _pages(data: bytes) -> int:
    """Return the number of pages that a PDF names, up to MOST_PAGES."""
    found = 0
    for start in range(0, len(data), PIECE):
        end = start + PIECE
        found += sum(1 for match in _PAGE.finditer(data, start, end + _PAGE_BYTES) if match.start() < end)
        if found >= MOST_PAGES:
            break
    return found


def _data(part: Mapping[str, Any]) -> bytes | None:
    """Return the bytes of a file part, given as a data URL, as base64 alone, or as stored bytes."""
    inner = part.get("file")
    given = (inner if isinstance(inner, Mapping) else part).get("file_data")
    if isinstance(given, bytes):
        return given
    if not isinstance(given, str) or not given:
        return None
    return decoded(given, given.find(",") + 1 if given.startswith("data:") else 0)


def decoded(encoded: str, start: int = 0) -> bytes | None:
    """Return the bytes encoded as base64 from `start` on, None if they are invalid.

    They are read piece by piece: no other thread runs in the meantime.
    """
    whole = io.BytesIO()  # is not copied at the end
    rest = ""
    try:
        for place in range(start, len(encoded), PIECE):
            given = rest + "".join(encoded[place : place + PIECE].split())
            end = len(given) & ~3
            whole.write(binascii.a2b_base64(given[:end]))
            rest = given[end:]
        whole.write(binascii.a2b_base64(rest))
    except ValueError:
        return None
    return whole.getvalue()
