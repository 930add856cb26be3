"""How a command says that it will not do what was asked: a line a problem, and exit status 2."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NoReturn

import click


def refuse(problems: Iterable[str], command: str = "") -> NoReturn:
    """command: its name, to stand before the first line."""
    text = "\n".join(problems)
    click.echo(f"llmirage {command}: {text}" if command else text, err=True)
    sys.exit(2)
