"""Times of steps, and what fits in memory: catalogues, parallelism, roofline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from llmirage_shared.settings import ConfigError

_Spec = TypeVar("_Spec")


class DeploymentError(ConfigError):
    """A deployment that cannot work."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        super().__init__([problems] if isinstance(problems, str) else problems)


def look_up(find: Callable[[str], _Spec], setting: str, name: str, problems: list[str]) -> _Spec | None:
    """Return what `find` finds, or None with its problems added to the list. setting: the one that has the name."""
    try:
        return find(name)
    except DeploymentError as error:
        problems.extend(f"{setting}: {problem}" for problem in error.problems)
        return None
