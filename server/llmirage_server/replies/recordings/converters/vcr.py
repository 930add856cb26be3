"""Cassettes of VCR.py and pytest-recording: YAML (or JSON) with `interactions`, each a request and a response.

Bodies are texts, bytes (`!!binary`, perhaps compressed), or JSON under `parsed_body`, as pydantic-ai's serializer writes it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from llmirage_server.replies.recordings.converters.conversion import Exchanged, ForeignFileError, json_of
from llmirage_server.replies.recordings.matching import endpoint_of

_UNKNOWN_ENCODINGS = ("br", "zstd", "deflate", "compress")


def exchanges(document: Any) -> Iterator[Exchanged]:
    """The exchanges with models in a cassette, in its order. Raises ForeignFileError."""
    for number, interaction in enumerate(document["interactions"], 1):
        if not isinstance(interaction, Mapping):
            raise ForeignFileError(f"interaction {number} must be a mapping")
        request, response = interaction.get("request"), interaction.get("response")
        if not isinstance(request, Mapping) or not isinstance(response, Mapping):
            raise ForeignFileError(f"interaction {number} needs a request and a response")
        parts = urlsplit(str(request.get("uri", request.get("url", ""))))
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        body = json_of(_plain(request))
        if endpoint_of(path) is None or body is None:
            continue
        status = response.get("status", response.get("status_code"))
        status = status.get("code") if isinstance(status, Mapping) else status
        if not isinstance(status, int):
            raise ForeignFileError(f"interaction {number}: the response has no status code")
        headers = dict(_headers(response))
        data = _plain(response)
        if headers.get("content-encoding", "") in _UNKNOWN_ENCODINGS and not _is_text(data):
            raise ForeignFileError(
                f"interaction {number}: the response is compressed ({headers['content-encoding']}): "
                "record the cassette with decode_compressed_response=True"
            )
        yield Exchanged(str(request.get("method", "POST")).upper(), path, _headers(request), body, status, headers, data)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _headers(part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names in lower case; a name may have one value or a list."""
    for name, values in (part.get("headers") or {}).items():
        for value in values if isinstance(values, list) else [values]:
            yield str(name).lower(), str(value)


def _plain(part: Mapping[str, Any]) -> bytes:
    """The bytes of a body, decompressed."""
    if "parsed_body" in part:
        return json.dumps(part["parsed_body"], ensure_ascii=False, separators=(",", ":")).encode()
    body = part.get("body", part.get("content"))
    if isinstance(body, Mapping):
        body = base64.b64decode(str(body["base64_string"])) if "base64_string" in body else body.get("string")
    data = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else b""
    if data[:2] == b"\x1f\x8b":
        try:
            return zlib.decompress(data, zlib.MAX_WBITS | 32)
        except zlib.error:
            raise ForeignFileError("a compressed body is damaged") from None
    return data
