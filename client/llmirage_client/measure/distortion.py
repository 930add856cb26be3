"""The part of a run's times that comes from the simulating machine and not from the simulated cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from llmirage_shared.plural import rounded
from llmirage_shared.statistics import Bools, Floats, LogHistogram, ServedTimes

NOTABLE = 0.1  # of what the simulated cluster has
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_JUDGED = ("p50", "p99")


@dataclass(slots=True, frozen=True)
class KeptTime:
    """One quantity by percentile, in ms of cluster time: in the simulated cluster, as the server sent it, as measured.

    measured: None if the server served others besides this run, or this run others besides the server.
    """

    simulated: Mapping[str, float]
    sent: Mapping[str, float]
    measured: Mapping[str, float] | None

    @property
    def seen(self) -> Mapping[str, float]:
        return self.sent if self.measured is None else self.measured

    def excess(self, percentile: str) -> float:
        """Return the relative excess over the simulated cluster; below 0: shorter."""
        simulated = self.simulated[percentile]
        return self.seen[percentile] / simulated - 1 if simulated > 0 else 0.0

    @property
    def distorted(self) -> bool:
        return any(abs(self.excess(percentile)) > NOTABLE for percentile in _JUDGED)


@dataclass(slots=True, frozen=True)
class Distortion:
    """Times of a run as its llmirage servers simulated and sent them, beside the measured ones.

    speed: that of the run; server_speeds: of each server. streams: replies that the figures are of.
    front_end_ms: the server's own work before a request is in the cluster, real time, by percentile. late_ms: how late its
    tokens left, cluster time.
    """

    speed: float
    server_speeds: tuple[float, ...]
    streams: int
    ttft: KeptTime | None
    itl: KeptTime | None
    front_end_ms: Mapping[str, float]
    late_ms: Mapping[str, float]

    @property
    def other_speed(self) -> bool:
        return any(speed != self.speed for speed in self.server_speeds)

    @property
    def notes(self) -> list[str]:
        if self.other_speed:
            runs = " and ".join(sorted({f"{speed:g}" for speed in self.server_speeds}))
            return [
                f"The server runs at --speed {runs}, and this run was told {self.speed:g}: its times are not those of the "
                f"simulated cluster. Give `run` the server's speed."
            ]
        found = [
            f"{name} {self._said(kept)}"
            for name, kept in (("TTFT", self.ttft), ("ITL", self.itl))
            if kept is not None and kept.distorted
        ]
        if not found:
            return []
        return [
            f"At speed {self.speed:g} the figures are partly those of this machine, beside the simulated cluster's: "
            f"{'; '.join(found)}. Of the tokens, 1 % left {rounded(self.late_ms['p99'], 3)} ms late or more. "
            f"{'A lower --speed' if self.speed > 1 else 'A lower load'} or a less busy machine is more exact; "
            "`llmirage simulate` is exact."
        ]

    def _said(self, kept: KeptTime) -> str:
        parts = [
            f"{percentile} {rounded(kept.seen[percentile], 3)} ms instead of {rounded(kept.simulated[percentile], 3)} "
            f"({kept.excess(percentile):+.0%})"
            for percentile in _JUDGED
            if abs(kept.excess(percentile)) > NOTABLE
        ]
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        speeds = [("max" if math.isinf(speed) else speed) for speed in self.server_speeds]
        distorted = any(kept is not None and kept.distorted for kept in (self.ttft, self.itl))
        return asdict(self) | {"server_speeds": speeds, "distorted": distorted}


def distortion_of(
    times: ServedTimes, server_speeds: Sequence[float], speed: float, ok: Bools, values: Mapping[str, Floats]
) -> Distortion | None:
    """Compare the times of a run with those of its servers.

    times: served during the run. values: request_columns of all its requests; ok: which succeeded.

    None if there is nothing to tell: no stream, or a server that does not keep the cluster's time (`--speed max`).
    """
    if not times.streams or any(math.isinf(one) for one in server_speeds):
        return None
    ttft = _known(values.get("time_to_first_token"), ok)
    alone = len(ttft) == times.streams
    itl = _known(values.get("inter_token_latency"), ok) if alone else ttft[:0]
    late = times.tokens_late
    return Distortion(
        speed=speed,
        server_speeds=tuple(server_speeds),
        streams=times.streams,
        ttft=_kept(times.simulated_ttft, times.sent_ttft, ttft if alone else ttft[:0]),
        itl=_kept(times.simulated_itl, times.sent_itl, itl),
        front_end_ms=_percentiles(times.front_end),
        late_ms={name: late.quantile(share) * 1e3 * speed for name, share in _SHARES.items()},
    )


def _known(values: Floats | None, ok: Bools) -> Floats:
    return np.empty(0) if values is None else values[ok & ~np.isnan(values)]


def _kept(simulated: LogHistogram, sent: LogHistogram, measured_ms: Floats) -> KeptTime | None:
    if not simulated.count:
        return None
    seen = (
        {name: float(np.percentile(measured_ms, share * 100)) for name, share in _SHARES.items()}
        if len(measured_ms)
        else None
    )
    return KeptTime(_percentiles(simulated), _percentiles(sent), seen)


def _percentiles(histogram: LogHistogram) -> dict[str, float]:
    return {name: histogram.quantile(share) * 1e3 for name, share in _SHARES.items()}
