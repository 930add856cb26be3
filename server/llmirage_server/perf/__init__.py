"""Times of steps, and what fits in memory: catalogues, parallelism, roofline."""

from __future__ import annotations

from collections.abc import Iterable

from llmirage_shared.settings import ConfigError


class DeploymentError(ConfigError):
    """A deployment that cannot work."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        super().__init__([problems] if isinstance(problems, str) else problems)
