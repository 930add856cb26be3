"""AIPerf's simple formats: requests written by hand, of text, images, sounds and videos.

single_turn: one request a line, of text, images, sounds and videos. Documented by AIPerf.

Lines that share a session_id go out one after the other; each is complete in itself, nothing is carried over.

multi_turn: one conversation a line, its turns written like the lines of single_turn. Documented by AIPerf.

The history grows by the file's turns and the live replies. A first turn that is nothing but a system prompt is no request
of its own: it stands before the history of every turn. Lines that share a session_id are one conversation.

random_pool: requests drawn at random, with replacement, from a file of them or from several. Documented by AIPerf.

A file is one pool, each line of it a request as in single_turn but without times, roles and sessions. A directory has one
pool a file: every request is a line of each, put together in one message. As many requests are drawn as the run asks for.
With a batch size other than 1 the lines are taken apart: all texts of all files are one pool, all images another, and so on,
and a request has as many of each as its batch size says, drawn independently.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

from llmirage_client.workload.checking import Checker, kind_of
from llmirage_client.workload.files import fault, first_line, problems_of, read_bytes, read_rows
from llmirage_client.workload.format import Format, Option, first_keys
from llmirage_client.workload.loading import Loading, StrayKeys
from llmirage_client.workload.schedule import SessionLines, scheduled
from llmirage_client.workload.session import Problem, Session, Turn, Workload

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


TURN_KEYS = frozenset((*MODALITY_KEYS, "type", "timestamp", "delay", "role", "session_id", "output_length", "extra"))
NO_EXTRA: Mapping[str, Any] = {}


@dataclass(slots=True, frozen=True)
class AuthoredTurn:
    """bare: it has nothing but a role and text, so it may become a system prompt."""

    turn: Turn
    role: str
    content: Content
    bare: bool
    session_id: str | None

    @property
    def system_text(self) -> str | None:
        """The text of a turn that is nothing but a system prompt."""
        text = "\n".join(self.content.texts)
        return text if self.role == "system" and self.bare and text else None


class TurnReader:
    """Reads the turns of one file."""

    def __init__(self, stray: StrayKeys) -> None:
        self._contents = ContentReader()
        self._stray = stray

    def read(self, row: Mapping[str, Any], check: Checker, prefix: str = "") -> AuthoredTurn:
        """Read one turn. Problems go to the checker."""
        self._stray.look(row, TURN_KEYS, check, prefix)
        check_type(row, "single_turn", check, prefix)
        content = self._contents.read(row, check, prefix)
        role = check.given(row, "role", check.text, prefix)
        arrival_s = check.ms_as_s(row, "timestamp", prefix)
        delay_s = check.ms_as_s(row, "delay", prefix) or 0.0
        if row.get("timestamp") and row.get("delay"):
            check.rule("timestamp and delay cannot be set together", prefix[:-1] or None)
        max_tokens = check.given(row, "output_length", check.tokens, prefix)
        extra = check.given(row, "extra", check.mapping, prefix) or NO_EXTRA
        session_id = check.given(row, "session_id", check.text, prefix)
        turn = Turn(
            messages=({"role": role or "user", "content": content.rendered()},),
            max_tokens=max_tokens,
            extra=extra,
            delay_s=delay_s,
            arrival_s=arrival_s,
        )
        dispatched = ("timestamp", "delay", "output_length", "extra")
        bare = content.only_text and all(row.get(key) is None for key in dispatched)
        return AuthoredTurn(turn, role or "user", content, bare, session_id or None)


def check_type(row: Mapping[str, Any], name: str, check: Checker, prefix: str = "") -> None:
    """Check that `type`, where it is given, is the name of the format."""
    if row.get("type", name) != name:
        check.fail(f"{prefix}type", f"Input should be '{name}'")


def load(path: str) -> Workload:
    """Load every line of the file. Raises WorkloadError with all problems, each with line and field."""
    file = Loading(path)
    reader = TurnReader(file.stray)
    lines: SessionLines[AuthoredTurn] = SessionLines()
    for row, check in file.rows():
        turn = reader.read(row, check)
        lines.add(turn.session_id, check.line or 0, [turn])
    file.raise_problems()
    sessions = [
        Session(name, tuple(row.turn for row in group), mode="isolated", arrival_s=group[0].turn.arrival_s, line=line)
        for name, line, group in lines.sessions()
    ]
    return scheduled(FORMAT.name, path, sessions, file.notes())


FORMAT = Format(
    name="single_turn",
    summary="one request a line: text, images, sounds, videos",
    needs="'text', 'texts', 'image' or the like on every line",
    recognises=lambda keys: bool(set(MODALITY_KEYS) & set(keys)) and "turns" not in keys,
    load=load,
    order=90,
)


_MULTI_TURN_KEYS = frozenset(("type", "session_id", "turns"))


def load_multi_turn(path: str) -> Workload:
    """Load every conversation of the file. Raises WorkloadError with all problems, each with line and field."""
    file = Loading(path)
    reader = TurnReader(file.stray)
    lines: SessionLines[AuthoredTurn] = SessionLines()
    for row, check in file.rows():
        file.stray.look(row, _MULTI_TURN_KEYS, check)
        check_type(row, MULTI_TURN.name, check)
        session_id = check.given(row, "session_id", check.text)
        entries = check.items(check.required(row, "turns"), "turns", may_be_empty=False) or []
        read = [(check.mapping(entry, f"turns.{i}"), f"turns.{i}.") for i, entry in enumerate(entries)]
        lines.add(session_id, check.line or 0, [reader.read(turn, check, at) for turn, at in read if turn is not None])
    file.raise_problems()
    sessions = []
    for name, line, group in lines.sessions():
        turns = _with_system_prompt(group)
        sessions.append(Session(name, turns, arrival_s=turns[0].arrival_s, line=line))
    return scheduled(MULTI_TURN.name, path, sessions, file.notes())


def _with_system_prompt(authored: Sequence[AuthoredTurn]) -> tuple[Turn, ...]:
    """Return the turns.

    A leading system prompt is part of the first, unless a further system turn or nothing comes after it.
    """
    turns = tuple(entry.turn for entry in authored)
    prompt = authored[0].system_text
    if prompt is None or len(authored) == 1 or authored[1].role == "system":
        return turns
    first = turns[1]
    return (replace(first, messages=({"role": "system", "content": prompt}, *first.messages)), *turns[2:])


MULTI_TURN = Format(
    name="multi_turn",
    summary="conversations of text, images, sounds and videos, one a line",
    needs="'turns', each with 'text' or the like, on every line",
    recognises=lambda keys: "turns.messages" not in keys and any(f"turns.{key}" in keys for key in MODALITY_KEYS),
    load=load_multi_turn,
    order=85,
)


_POOL_KEYS = frozenset((*MODALITY_KEYS, "type")) - {"image_uuids"}
_SINGLE_TURN_ONLY = ("timestamp", "delay", "role", "session_id", "output_length", "extra", "image_uuids")
_LOWEST_SEED = -(2**63)
_MOST_DRAWN = 10_000  # of one kind in a request


def load_random_pool(
    path: str,
    *,
    conversations: int = 100,
    seed: int = 0,
    batch_size_text: int = 1,
    batch_size_image: int = 1,
    batch_size_audio: int = 1,
    batch_size_video: int = 1,
) -> Workload:
    """Draw as many requests as `conversations` says.

    Raises WorkloadError with all problems, each with file, line and field.
    """
    sizes = (batch_size_text, batch_size_image, batch_size_audio, batch_size_video)
    loading = Loading(path)
    reader = ContentReader()
    pools = []
    for file in pool_files(Path(path)):
        name = file.name if Path(path).is_dir() else None
        with problems_of(name, loading.problems) as found:
            pools.append(list(_pool(str(file) if name else path, reader, loading.stray, found)))
    loading.raise_problems()
    if not pools:
        raise fault(path, "is a directory without any file; each file of it is a pool")
    rng = random.Random(seed)
    draws = _draws(pools, conversations, rng) if set(sizes) == {1} else _batches(pools, conversations, sizes, rng)
    turns = (Turn(messages=({"role": "user", "content": content.rendered()},)) for content in draws)
    sessions = [Session(f"session_{number:06d}", (turn,), mode="isolated") for number, turn in enumerate(turns)]
    entries = " x ".join(f"{len(pool):,}" for pool in pools)
    note = f"{conversations:,} requests are drawn from {entries} entries by seed {seed} (--num-conversations, --random-seed)"
    return Workload.of_roots(RANDOM_POOL.name, path, sessions, (note, *loading.notes()))


def _draws(pools: list[list[Content]], count: int, rng: random.Random) -> Iterator[Content]:
    """Yield one entry of each pool for every request."""
    for drawn in zip(*(rng.choices(pool, k=count) for pool in pools), strict=True):
        content = Content()
        for part in drawn:
            content.add(part)
        yield content


def _batches(pools: list[list[Content]], count: int, sizes: tuple[int, ...], rng: random.Random) -> Iterator[Content]:
    """Yield for every request the batch sizes' numbers of texts, images, sounds and videos from all pools."""
    whole = Content()
    for pool in pools:
        for entry in pool:
            whole.add(entry)
    texts, images, audios, videos = sizes
    for _ in range(count):
        yield Content(
            texts=rng.choices(whole.texts, k=texts) if whole.texts else [],
            images=rng.choices(whole.images, k=images) if whole.images else [],
            audios=rng.choices(whole.audios, k=audios) if whole.audios else [],
            videos=rng.choices(whole.videos, k=videos) if whole.videos else [],
        )


def _pool(path: str, reader: ContentReader, stray: StrayKeys, problems: list[Problem]) -> Iterator[Content]:
    for row, check in read_rows(read_bytes(path), problems):
        for key in _SINGLE_TURN_ONLY:
            if row.get(key) is not None:
                check.fail(key, "is not for random_pool: its entries have no order, times or sessions (see single_turn)")
        stray.look(row, _POOL_KEYS.union(_SINGLE_TURN_ONLY), check)
        check_type(row, RANDOM_POOL.name, check)
        yield reader.read(row, check)


def pool_files(path: Path) -> list[Path]:
    """Return the file itself, or the files of a directory by name; hidden ones are left alone."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))


def recognises_pool(path: Path) -> bool:
    """Return whether every file begins with an entry of a pool."""
    files = pool_files(path)
    return bool(files) and all(set(MODALITY_KEYS) & first_keys(first_line(str(file))).marks for file in files)


RANDOM_POOL = Format(
    name="random_pool",
    summary="requests drawn at random from a file of them, or from each file of a directory",
    needs="""'"type": "random_pool"' or to be named by --format random_pool (its lines are those of single_turn)""",
    recognises=lambda keys: "type=random_pool" in keys,
    load=load_random_pool,
    order=70,
    options=(
        Option("conversations", "integer", "how many requests are drawn (--num-conversations)", 100, minimum=1),
        Option("seed", "integer", "what is drawn (--random-seed)", 0, minimum=_LOWEST_SEED, maximum=2**63),
        *(
            Option(
                f"batch_size_{kind}",
                "integer",
                f"{kind}s of a request, where the pools have any",
                1,
                minimum=0,
                maximum=_MOST_DRAWN,
            )
            for kind in ("text", "image", "audio", "video")
        ),
    ),
    recognises_directory=recognises_pool,
)
