"""How a command says that it will not do what was asked: a line a problem, and exit status 2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from llmirage_shared.settings import InputRefused


def refuse(problems: Iterable[str], command: str = "") -> NoReturn:
    """Raises InputRefused. command: its name, to stand before the first line."""
    raise InputRefused(problems, command)
