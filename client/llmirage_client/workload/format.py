"""What a module in `formats/` declares about itself, as its FORMAT."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from llmirage_client.workload.format_options import Option
from llmirage_client.workload.session import Workload


def never(_: object) -> bool:
    return False


@dataclass(slots=True, frozen=True)
class Format:
    """One workload format.

    recognises: says from the keys of one object whether it is of this format. Besides the top-level ones it is given
    "turns.text" for a key of the first object of a list under a top-level key, and "type=name" for a text under `type`.
    load: reads the file at a path, raises WorkloadError with every problem; the values of `options` come as keyword
    arguments. needs: what such a file must have, for the message when no format fits. order: formats with a lower one are
    asked first. recognises_array: the same as recognises for files whose lines are arrays. recognises_header: the same for
    files of no JSON, from their first line; recognises_magic: for those of no text, from their first bytes.
    recognises_directory: whether a directory is of this format. generates: there is
    no file, the name of the format stands for one and the options say what it holds. fetch: the published file in this
    format, and where it is.
    """

    name: str
    summary: str
    needs: str
    recognises: Callable[[Collection[str]], bool]
    load: Callable[..., Workload]
    aliases: tuple[str, ...] = ()
    order: int = 100
    options: tuple[Option, ...] = ()
    recognises_array: Callable[[list[object]], bool] = never
    recognises_header: Callable[[str], bool] = never
    recognises_directory: Callable[[Path], bool] = never
    recognises_magic: Callable[[bytes], bool] = never
    generates: bool = False
    fetch: str = ""
