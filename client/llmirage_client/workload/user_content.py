"""The text, images, sounds and videos that a row of AIPerf's simple formats gives, as the content of a chat message."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

from llmirage_client.workload.checking import Checker, kind_of

MediaKind = Literal["image", "audio", "video"]

_AUDIO_FORMATS = ("wav", "mp3")


class MediaError(ValueError):
    """Media that cannot be sent; the message is for the user."""


class MediaFiles:
    """Media files as chat requests hold them. A file is read once, however often it is named."""

    def __init__(self) -> None:
        self._encoded: dict[tuple[MediaKind, str], str] = {}

    def content(self, kind: MediaKind, value: str) -> str:
        """Return a link or a data URI for images and videos, "wav,BASE64" or "mp3,BASE64" for sounds. Raises MediaError."""
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
    """Return the type that the first bytes show; a file name proves nothing."""
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


_MEDIA: tuple[MediaKind, ...] = ("image", "audio", "video")
MODALITY_KEYS = ("text", "texts", "image", "images", "image_uuids", "audio", "audios", "video", "videos")
_MEDIA_KEYS = frozenset(MODALITY_KEYS) - {"text", "texts"}
_OBJECT_KEYS = ("name", "contents")


@dataclass(slots=True)
class Content:
    """images: each with the id under which the server may have it already, or None."""

    texts: list[str] = field(default_factory=list)
    images: list[tuple[str, str | None]] = field(default_factory=list)
    audios: list[str] = field(default_factory=list)
    videos: list[str] = field(default_factory=list)

    @property
    def only_text(self) -> bool:
        return not (self.images or self.audios or self.videos)

    def add(self, other: Content) -> None:
        self.texts += other.texts
        self.images += other.images
        self.audios += other.audios
        self.videos += other.videos

    def rendered(self) -> str | list[dict[str, Any]]:
        """Return a single text as it is, anything else as parts in the order texts, images, sounds, videos."""
        if len(self.texts) == 1 and self.only_text:
            return self.texts[0]
        parts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in self.texts if text]
        for url, uuid in self.images:
            if uuid is not None:
                parts.append({"type": "image_url", "image_url": {"url": url}, "uuid": uuid})
            elif url:
                parts.append({"type": "image_url", "image_url": {"url": url}})
        for sound in self.audios:
            form, _, data = sound.partition(",")
            parts.append({"type": "input_audio", "input_audio": {"data": data, "format": form}})
        parts += [{"type": "video_url", "video_url": {"url": url}} for url in self.videos]
        return parts or ""


class ContentReader:
    """Reads the content keys of rows; each problem goes to the checker of its row."""

    def __init__(self) -> None:
        self._files = MediaFiles()

    def read(self, row: Mapping[str, Any], check: Checker, prefix: str = "") -> Content:
        content = Content(texts=[text for text, _ in self._values(row, "text", check, prefix)])
        for kind in _MEDIA if not row.keys().isdisjoint(_MEDIA_KEYS) else ():
            values = [self._medium(kind, value, at, check) for value, at in self._values(row, kind, check, prefix)]
            if kind == "image":
                content.images = self._with_ids(row, values, check, prefix)
            elif kind == "audio":
                content.audios = [value for value in values if value]
            else:
                content.videos = [value for value in values if value]
        if not any(row.get(key) for key in MODALITY_KEYS):
            check.rule(
                "At least one modality must be provided (text, image, audio, video or their plurals)", prefix[:-1] or None
            )
        return content

    def _values(self, row: Mapping[str, Any], kind: str, check: Checker, prefix: str) -> list[tuple[str, str]]:
        """Return the values under `kind` and its plural, texts or {"name", "contents"}, each with its place."""
        one, many = row.get(kind), row.get(f"{kind}s")
        if one and many:
            check.rule(f"{kind} and {kind}s cannot be set together", prefix[:-1] or None)
        if one is not None and (one or not many):
            text = check.text(one, prefix + kind)
            return [] if text is None else [(text, prefix + kind)]
        if many is None:
            return []
        found = []
        for i, entry in enumerate(check.items(many, f"{prefix}{kind}s") or []):
            at = f"{prefix}{kind}s.{i}"
            if isinstance(entry, str):
                found.append((entry, at))
            elif isinstance(entry, dict):
                known = (*_OBJECT_KEYS, "uuids") if kind == "image" else _OBJECT_KEYS
                check.unknown_keys(entry, known, f"{at}.")
                if entry.get("name") is not None:
                    check.text(entry["name"], f"{at}.name")
                contents = entry.get("contents")
                texts = () if contents is None else check.texts(contents, f"{at}.contents") or ()
                found += [(value, f"{at}.contents.{j}") for j, value in enumerate(texts)]
            else:
                check.fail(at, f'Input should be a text or an object {{"name", "contents"}}, got {kind_of(entry)}')
        return found

    def _medium(self, kind: MediaKind, value: str, at: str, check: Checker) -> str:
        if not value:
            return ""
        try:
            return self._files.content(kind, value)
        except MediaError as error:
            check.fail(at, str(error))
            return ""

    def _with_ids(
        self, row: Mapping[str, Any], urls: list[str], check: Checker, prefix: str
    ) -> list[tuple[str, str | None]]:
        """Return the images with their cache ids: `image_uuids` beside plain images, `uuids` inside an object."""
        given = row.get("images")
        objects = [entry for entry in given if isinstance(entry, dict)] if isinstance(given, list) else []
        ids = row.get("image_uuids")
        at = f"{prefix}image_uuids"
        if ids is None:
            return self._with_object_ids(objects, urls, check, prefix) if objects else [(url, None) for url in urls]
        uuids = check.texts(ids, at)
        if row.get("image") is not None:
            check.rule("image_uuids cannot be used with the singular image field", at)
        elif objects:
            check.rule("image_uuids cannot be set when images is provided as objects; use 'uuids' in each", at)
        elif uuids is not None and urls and len(uuids) != len(urls):
            check.rule(f"image_uuids length ({len(uuids)}) must match images length ({len(urls)})", at)
        elif uuids is not None and "" in uuids:
            check.rule("image_uuids must not contain empty strings", at)
        elif uuids is not None:
            return list(zip(urls or [""] * len(uuids), uuids, strict=True))
        return []

    def _with_object_ids(
        self, objects: list[dict[str, Any]], urls: list[str], check: Checker, prefix: str
    ) -> list[tuple[str, str | None]]:
        images: list[tuple[str, str | None]] = []
        remaining = iter(urls)
        for i, entry in enumerate(objects):
            at = f"{prefix}images.{i}.uuids"
            contents = entry.get("contents") if isinstance(entry.get("contents"), list) else []
            uuids = check.texts(entry.get("uuids") or [], at) or ()
            own = [next(remaining, "") for _ in contents or []]
            if "" in uuids:
                check.rule("uuids must not contain empty strings", at)
            elif uuids and own and len(uuids) != len(own):
                check.rule(f"uuids length ({len(uuids)}) must match contents length ({len(own)})", at)
            elif uuids:
                images += zip(own or [""] * len(uuids), uuids, strict=True)
            else:
                images += [(url, None) for url in own]
        return images
