"""Within which bands of its simulated figures measured servers like a cluster lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_server.perf.bands import SHARES, UNKNOWN, Band, Quantity, Share, band_of

__all__ = ["FIGURES", "SHARES", "UNKNOWN", "Band", "Quantity", "Share", "band_of_cluster", "bands_json"]

# Of the figures of `simulate --json`, the mean.
FIGURES: dict[str, Quantity] = {
    "ttft_ms": "ttft",
    "tpot_ms": "tpot",
    "latency_ms": "latency",
    "output_tok_per_s": "throughput",
}


def band_of_cluster(config: ClusterConfig, concurrency: float | None = None, isl: float | None = None) -> Band | None:
    """Return the band of the pool with the weakest evidence; None where times are the user's own. Raises ConfigError.

    concurrency: requests in flight on an instance. isl: tokens of a prompt, mean. None: not known.
    """
    pools = plan_of(config)
    if any(pool.config.fixed_times for pool in pools):
        return None
    band = max((band_of(pool.deployment, concurrency, isl) for pool in pools), key=lambda band: band.factors["latency"][90])
    if all(pool.config.role == "both" for pool in pools):
        return band
    separate = "no measured runs with separate prefill and decode pools in the band"
    return replace(band, caution="; ".join(filter(None, (band.caution, separate))), measured=False)


def bands_json(band: Band | None, summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the intervals of the means of a simulation, by figure and share; None where nothing is known of them."""
    if band is None:
        return None
    means = {name: summary[name]["mean"] if isinstance(summary[name], dict) else summary[name] for name in FIGURES}
    intervals = {
        name: {str(share): band.interval(FIGURES[name], mean, share) for share in SHARES}
        for name, mean in means.items()
        if mean
    }
    return {**intervals, "of": band.of, "caution": band.caution}
