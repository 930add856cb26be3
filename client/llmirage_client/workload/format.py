"""What a module in `formats/` declares about itself, as its FORMAT."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from llmirage_client.workload.format_options import Option
from llmirage_client.workload.session import Workload


def _no(_: object) -> bool:
    return False


@dataclass(slots=True, frozen=True)
class Format:
    """One workload format.

    recognises: says from the top-level keys of one object whether it is of this format. load: reads the file at a
    path, raises WorkloadError with every problem; the values of `options` come as keyword arguments. needs: what such a
    file must have, for the message when no format fits. order: formats with a lower one are asked first.
    recognises_array: the same as recognises for files whose lines are arrays. generates: there is no file, the name of the
    format stands for one and the options say what it holds.
    """

    name: str
    summary: str
    needs: str
    recognises: Callable[[Collection[str]], bool]
    load: Callable[..., Workload]
    aliases: tuple[str, ...] = ()
    order: int = 100
    options: tuple[Option, ...] = ()
    recognises_array: Callable[[list[object]], bool] = _no
    generates: bool = False
