"""Which root conversation of a workload comes next."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from llmirage_client.choices import SamplingStrategy
from llmirage_client.load.share import Share
from llmirage_client.workload.session import Session, Workload


class Sampler:
    """The roots of a workload without end, in the order of a strategy; one sampler feeds all phases of a run.

    sequential: file order, from the top again. shuffle: all of them in a random order, then all in another. random: drawn
    with replacement. skip: so many of the order are passed over; runs that each begin where the one before stopped have
    no conversation in common until the workload is used up. share: only those whose places, from there on, are its own.
    vary: number the repeats of a root, so that each has fresh tokens. taken: how far the order has been followed, what was
    passed over included.
    """

    def __init__(
        self,
        workload: Workload,
        strategy: SamplingStrategy,
        seed: int | None,
        skip: int = 0,
        share: Share | None = None,
        vary: bool = False,
    ) -> None:
        roots = [workload.sessions[root] for root in workload.roots]
        # Those a dataset offset put at the end come only when the order itself gets there.
        self._roots = roots if strategy == "sequential" else roots[: len(roots) - workload.skipped]
        self._order = self._follow(strategy, Random() if seed is None else Random(f"sampling {seed}"))
        self._share = share or Share()
        self._vary = vary
        self._skipped = skip
        self.taken = 0
        self._pass_over(skip)

    @property
    def used_up(self) -> bool:
        """Whether more were taken than there are, so that some came again."""
        return self.taken > len(self._roots)

    def __iter__(self) -> Iterator[Session]:
        return self

    def __next__(self) -> Session:
        if self._share.of > 1:
            place = self.taken - self._skipped
            self._pass_over(self._share.first(place) - place)
        session, repeat = next(self._order)
        self.taken += 1
        return replace(session, repeat=repeat) if repeat and self._vary else session

    def _pass_over(self, count: int) -> None:
        for _ in range(count):
            next(self._order)
            self.taken += 1

    def _follow(self, strategy: SamplingStrategy, rng: Random) -> Iterator[tuple[Session, int]]:
        """Each root with the number of times that it came before."""
        roots = self._roots
        if not roots:
            return
        if strategy == "random":
            before: Counter[str] = Counter()
            while True:
                session = rng.choice(roots)
                yield session, before[session.id]
                before[session.id] += 1
        for repeat in itertools.count():
            for session in roots if strategy == "sequential" else rng.sample(roots, len(roots)):
                yield session, repeat
