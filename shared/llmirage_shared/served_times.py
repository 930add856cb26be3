"""What a server knows of its own pace: times of replies as the cluster has them, and as they left the server.

GET /llmirage/pacing shows it, and `llmirage run` reads it before and after its load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from llmirage_shared.log_histogram import LogHistogram


@dataclass(slots=True)
class ServedTimes:
    """Of streamed replies of one choice that were sent to their end, each as it ends. TTFT and ITL are cluster time.

    TTFT: from the arrival of the request to the first token that shows. ITL: the mean of the gaps after it, if there are
    any. simulated: by the cluster; sent: when the server wrote these tokens to the connection.

    Of everything that is served, in real time: front_end: from the arrival of a request until the cluster has it;
    tokens_late: from the time at which a token was due until it was written.
    """

    simulated_ttft: LogHistogram = field(default_factory=LogHistogram)
    sent_ttft: LogHistogram = field(default_factory=LogHistogram)
    simulated_itl: LogHistogram = field(default_factory=LogHistogram)
    sent_itl: LogHistogram = field(default_factory=LogHistogram)
    front_end: LogHistogram = field(default_factory=LogHistogram)
    tokens_late: LogHistogram = field(default_factory=LogHistogram)

    @property
    def streams(self) -> int:
        return self.simulated_ttft.count

    def ended(self, simulated_ttft_s: float, sent_ttft_s: float, gaps: int, simulated_s: float, sent_s: float) -> None:
        """A stream has ended. simulated_s, sent_s: from its first token to its last, over so many gaps."""
        self.simulated_ttft.add(max(simulated_ttft_s, 0.0))
        self.sent_ttft.add(max(sent_ttft_s, 0.0))
        if gaps:
            self.simulated_itl.add(max(simulated_s, 0.0) / gaps)
            self.sent_itl.add(max(sent_s, 0.0) / gaps)

    def since(self, before: ServedTimes) -> ServedTimes:
        """What was added after `before`. Raises ValueError if that is no earlier state of it."""
        return ServedTimes(*[getattr(self, one.name).since(getattr(before, one.name)) for one in fields(self)])

    def merged(self, other: ServedTimes) -> ServedTimes:
        """What two servers served."""
        return ServedTimes(*[getattr(self, one.name).merged(getattr(other, one.name)) for one in fields(self)])

    def as_dict(self) -> dict[str, dict[str, object]]:
        """JSON-able; see `from_dict`."""
        return {one.name: getattr(self, one.name).as_dict() for one in fields(self)}

    @staticmethod
    def from_dict(value: Mapping[str, Mapping[str, object]]) -> ServedTimes:
        """Raises KeyError, TypeError or ValueError for anything that `as_dict` does not give."""
        return ServedTimes(*[LogHistogram.from_dict(value[one.name]) for one in fields(ServedTimes)])
