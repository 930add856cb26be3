"""What a module in `formats/` declares about itself, as its FORMAT."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from llmirage_client.workload.session import Workload


@dataclass(slots=True, frozen=True)
class Format:
    """One workload format.

    recognises: says from the top-level keys of one object whether it is of this format. load: reads the file at a
    path, raises WorkloadError with every problem. needs: what such a file must have, for the message when no format
    fits. order: formats with a lower one are asked first.
    """

    name: str
    summary: str
    needs: str
    recognises: Callable[[Collection[str]], bool]
    load: Callable[[str], Workload]
    aliases: tuple[str, ...] = ()
    order: int = 100
