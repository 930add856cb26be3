"""What a simulated run costs: GPU hours, their price, and the energy of the GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmirage_client.measure.metrics import Metrics
from llmirage_client.simulate.cluster_series import ClusterSeries, Totals
from llmirage_client.simulator.engine import ServedPool


@dataclass(frozen=True, slots=True)
class Bill:
    """Of all GPUs from the first measured request to the last reply, without the warm-up. None: not known for one of them.

    gpu_hours: of instances while they are there, idle or not, start up or drain. usd: low and high, by the on-demand prices
    of the catalogue (gpus.yaml there has their sources). energy_kwh: of the GPUs alone, at their TDP while a step is
    under way; an upper bound of that part, to which hosts, networks, cooling and idle GPUs are to be added.
    """

    gpus: int
    gpu_hours: float
    usd: tuple[float, float] | None
    energy_kwh: float | None
    usd_per_m_output_tokens: tuple[float, float] | None
    kwh_per_m_output_tokens: float | None


def bill_of(pools: Sequence[ServedPool], metrics: Metrics, series: ClusterSeries, totals: Totals) -> Bill:
    """totals: of the measured time."""
    hours = metrics.whole_run.get("benchmark_duration", 0.0) / 3600.0
    tokens_m = metrics.whole_run.get("total_osl", 0.0) / 1e6
    there = _shares(pools, series)
    counts = [share * pool.deployment.gpus for share, pool in zip(there, pools, strict=True)]
    prices = [pool.deployment.gpu.price_usd_per_h for pool in pools]
    usd = None
    if all(price is not None for price in prices):
        low, high = (sum(count * price[end] for count, price in zip(counts, prices, strict=True) if price) for end in (0, 1))
        usd = low * hours, high * hours
    energy = _energy_kwh(pools, totals)
    return Bill(
        gpus=sum(pool.config.instances * pool.deployment.gpus for pool in pools),
        gpu_hours=sum(counts) * hours,
        usd=usd,
        energy_kwh=energy,
        usd_per_m_output_tokens=(usd[0] / tokens_m, usd[1] / tokens_m) if usd is not None and tokens_m else None,
        kwh_per_m_output_tokens=energy / tokens_m if energy is not None and tokens_m else None,
    )


def _shares(pools: Sequence[ServedPool], series: ClusterSeries) -> list[float]:
    """How many instances of each pool are paid for, in the mean over time."""
    if not series.changes or not series.time_s[-1]:
        return [pool.config.instances for pool in pools]
    shares, first = [], 0
    for pool in pools:
        paid_s = series.paid_s[first : first + pool.config.instances]
        shares.append(float(paid_s.sum() / series.time_s[-1]))
        first += pool.config.instances
    return shares


def _energy_kwh(pools: Sequence[ServedPool], totals: Totals) -> float | None:
    if any(pool.deployment.gpu.tdp_w is None or pool.config.fixed_times for pool in pools):
        return None
    watts = [
        pool.deployment.gpus * (pool.deployment.gpu.tdp_w or 0.0) for pool in pools for _ in range(pool.config.instances)
    ]
    return float(np.dot(watts, totals.busy_s)) / 3.6e6
