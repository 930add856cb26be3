"""Images, sounds and videos of a message: links and encoded data as they are, files of this machine as base64."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

MediaKind = Literal["image", "audio", "video"]

_AUDIO_FORMATS = ("wav", "mp3")


class MediaError(ValueError):
    """Media that cannot be sent; the message is for the user."""


class MediaFiles:
    """What a chat request holds for a medium. A file is read once, however often it is named."""

    def __init__(self) -> None:
        self._encoded: dict[tuple[MediaKind, str], str] = {}

    def content(self, kind: MediaKind, value: str) -> str:
        """A link or a data URI for images and videos, "wav,BASE64" or "mp3,BASE64" for sounds. Raises MediaError."""
        if kind == "audio":
            head, comma, data = value.partition(",")
            if comma and head.lower() in _AUDIO_FORMATS:
                return f"{head.lower()},{data}"
            if value.startswith("data:audio/") and comma:
                return f"{head.removeprefix('data:audio/').partition(';')[0] or 'wav'},{data}"
        elif value.startswith("data:"):
            return value
        if "://" in value:
            return self._link(kind, value)
        if (kind, value) not in self._encoded:
            self._encoded[kind, value] = _encoded_file(kind, value)
        return self._encoded[kind, value]

    def _link(self, kind: MediaKind, value: str) -> str:
        try:
            url = urlparse(value)
        except ValueError as error:
            raise MediaError(f"is no valid URL: {error}") from None
        if not url.scheme or not url.netloc:
            raise MediaError("is no valid URL: it needs a scheme and a host")
        if kind == "audio":
            raise MediaError(
                "must be a file, 'wav,BASE64', 'mp3,BASE64' or a data URI: chat requests carry no links to sounds"
            )
        return value


def _encoded_file(kind: MediaKind, name: str) -> str:
    try:
        data = Path(name).expanduser().read_bytes()
    except FileNotFoundError:
        raise MediaError(f"no such file: {_short(name)} (and it is neither a URL nor encoded data)") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise MediaError(f"cannot be read: {getattr(error, 'strerror', None) or error}: {_short(name)}") from None
    subtype = _subtype(kind, data)
    if subtype is None:
        known = {"image": "PNG, JPEG, GIF, WebP or BMP image", "audio": "WAV or MP3 sound", "video": "MP4 or WebM video"}
        raise MediaError(f"{_short(name)} is no {known[kind]}")
    text = base64.b64encode(data).decode("ascii")
    return f"{subtype},{text}" if kind == "audio" else f"data:{kind}/{subtype};base64,{text}"


def _subtype(kind: MediaKind, data: bytes) -> str | None:
    """What the first bytes say; the name of a file may say anything."""
    riff = data[8:12] if data.startswith(b"RIFF") else b""
    if kind == "image":
        starts = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"BM": "bmp"}
        return "webp" if riff == b"WEBP" else next((name for start, name in starts.items() if data.startswith(start)), None)
    if kind == "audio":
        if riff == b"WAVE":
            return "wav"
        frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0
        return "mp3" if frame or data.startswith(b"ID3") else None
    if data[4:8] == b"ftyp":
        return "mp4"
    return "webm" if data.startswith(b"\x1a\x45\xdf\xa3") else None


def _short(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:57]}...")
