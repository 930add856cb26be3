"""Places for root conversations that run at the same time."""

from __future__ import annotations

import math

from llmirage_client.load.share import Share


class Slots:
    """`limit` places (None: as many as are wanted); with a ramp one at first, the others one by one, all after ramp_s.

    share: has its own of these places.
    """

    def __init__(self, limit: int | None, ramp_s: float = 0.0, share: Share | None = None) -> None:
        self.taken = 0
        self._share = share or Share()
        self._limit = math.inf if limit is None else self._share.part(limit)
        self._step_s = ramp_s / (limit - 1) if limit is not None and limit > 1 and ramp_s else 0.0
        self._opened_s = 0.0

    def open(self, now_s: float) -> None:
        """The ramp begins now."""
        self._opened_s = now_s

    def free(self, now_s: float) -> bool:
        return self.taken < self._limit and (not self._step_s or self._opens_s(self.taken) <= now_s)

    def next_s(self, now_s: float) -> float:
        """When the ramp brings the place that is missing now; infinite when only a conversation's end does."""
        waits_for_ramp = self._step_s and self.taken < self._limit
        return max(self._opens_s(self.taken), now_s) if waits_for_ramp else math.inf

    def _opens_s(self, place: int) -> float:
        """When its own place of that number opens, from 0."""
        return self._opened_s + (self._share.index + place * self._share.of) * self._step_s
