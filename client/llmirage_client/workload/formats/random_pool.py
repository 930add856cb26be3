"""random_pool: requests drawn at random, with replacement, from a file of them or from several. Documented by AIPerf.

A file is one pool, each line of it a request as in single_turn but without times, roles and sessions. A directory has one
pool a file: every request is a line of each, put together in one message. As many requests are drawn as the run asks for.
With a batch size other than 1 the lines are taken apart: all texts of all files are one pool, all images another, and so on,
and a request has as many of each as its batch size says, drawn independently.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from llmirage_client.workload.authored_turn import check_type
from llmirage_client.workload.checking import StrayKeys
from llmirage_client.workload.files import fault, read_bytes, read_rows
from llmirage_client.workload.first_keys import first_keys
from llmirage_client.workload.format import Format
from llmirage_client.workload.format_options import Option
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError
from llmirage_client.workload.user_content import MODALITY_KEYS, Content, ContentReader

_KEYS = frozenset((*MODALITY_KEYS, "type")) - {"image_uuids"}
_SINGLE_TURN_ONLY = ("timestamp", "delay", "role", "session_id", "output_length", "extra", "image_uuids")
_LOWEST_SEED = -(2**63)
_MOST = 10_000  # of one kind in a request


def load(
    path: str,
    *,
    conversations: int = 100,
    seed: int = 0,
    batch_size_text: int = 1,
    batch_size_image: int = 1,
    batch_size_audio: int = 1,
    batch_size_video: int = 1,
) -> Workload:
    """As many requests as conversations says. Raises WorkloadError with all problems, each with file, line and field."""
    sizes = (batch_size_text, batch_size_image, batch_size_audio, batch_size_video)
    problems: list[Problem] = []
    stray = StrayKeys()
    reader = ContentReader()
    pools = []
    for file in pool_files(Path(path)):
        found: list[Problem] = []
        pools.append(list(_pool(str(file), reader, stray, found)))
        problems += [replace(problem, file=file.name) for problem in found] if Path(path).is_dir() else found
    if problems:
        raise WorkloadError(path, problems)
    if not pools:
        raise fault(path, "is a directory without any file; each file of it is a pool")
    rng = random.Random(seed)
    draws = _draws(pools, conversations, rng) if set(sizes) == {1} else _batches(pools, conversations, sizes, rng)
    turns = (Turn(messages=({"role": "user", "content": content.rendered()},)) for content in draws)
    sessions = [Session(f"session_{number:06d}", (turn,), mode="isolated") for number, turn in enumerate(turns)]
    entries = " x ".join(f"{len(pool):,}" for pool in pools)
    note = f"{conversations:,} requests are drawn from {entries} entries by seed {seed} (--num-conversations, --random-seed)"
    return Workload.of_roots(FORMAT.name, path, sessions, (note, *stray.notes()))


def _draws(pools: list[list[Content]], count: int, rng: random.Random) -> Iterator[Content]:
    """One entry of each pool for every request."""
    for drawn in zip(*(rng.choices(pool, k=count) for pool in pools), strict=True):
        content = Content()
        for part in drawn:
            content.add(part)
        yield content


def _batches(pools: list[list[Content]], count: int, sizes: tuple[int, ...], rng: random.Random) -> Iterator[Content]:
    """So many texts, images, sounds and videos for every request, of all that the pools hold."""
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
    try:
        data = read_bytes(path)
    except WorkloadError as error:
        problems += error.problems
        return
    for row, check in read_rows(data, problems):
        for key in _SINGLE_TURN_ONLY:
            if row.get(key) is not None:
                check.fail(key, "is not for random_pool: its entries have no order, times or sessions (see single_turn)")
        stray.look(row, _KEYS.union(_SINGLE_TURN_ONLY), check)
        check_type(row, FORMAT.name, check)
        yield reader.read(row, check)


def pool_files(path: Path) -> list[Path]:
    """The file itself, or the files of a directory by name; hidden ones are left alone."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))


def recognises_directory(path: Path) -> bool:
    """Whether every file begins with an entry of a pool."""
    files = pool_files(path)
    return bool(files) and all(set(MODALITY_KEYS) & first_keys(_first_line(file)).marks for file in files)


def _first_line(file: Path) -> bytes:
    try:
        return next((line for line in read_bytes(str(file)).split(b"\n") if line.strip()), b"")
    except WorkloadError:
        return b""


FORMAT = Format(
    name="random_pool",
    summary="requests drawn at random from a file of them, or from each file of a directory",
    needs="""'"type": "random_pool"' or to be named by --format random_pool (its lines are those of single_turn)""",
    recognises=lambda keys: "type=random_pool" in keys,
    load=load,
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
                maximum=_MOST,
            )
            for kind in ("text", "image", "audio", "video")
        ),
    ),
    recognises_directory=recognises_directory,
)
