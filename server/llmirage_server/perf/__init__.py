"""Times of steps, and what fits in memory: catalogues, parallelism, roofline."""

from __future__ import annotations

from collections.abc import Sequence


class DeploymentError(ValueError):
    """A deployment that cannot work. `problems` has one sentence for each reason, written for the user."""

    def __init__(self, problems: Sequence[str]) -> None:
        problems = [problems] if isinstance(problems, str) else problems
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
