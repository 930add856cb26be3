"""Users who give up: requests that are cancelled on purpose, some time after they went out."""

from __future__ import annotations

from random import Random

from llmirage_client.measure.record import CANCELLED, RequestError

ON_PURPOSE = RequestError(499, CANCELLED, "cancelled on purpose (--request-cancellation-rate)")
BY_RUN = RequestError(499, CANCELLED, "cancelled by the client before the reply was complete")


class Cancellation:
    """A share of the requests is cancelled. Which ones depends on their ids alone, and so on the seed and not on timing."""

    def __init__(self, share: float, delay_s: float) -> None:
        """share: 0 to 1. delay_s: after the whole request is out, on the run's clock."""
        self._share = share
        self.delay_s = delay_s

    def meets(self, request_id: str) -> bool:
        return Random(f"cancel {request_id}").random() < self._share
