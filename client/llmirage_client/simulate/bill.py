"""The cost of a simulated run: GPU hours, their price, and the energy of the GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmirage_client.measure.metrics import Metrics
from llmirage_client.simulate.cluster_series import Totals, by_pool
from llmirage_client.simulator.deployments import gpu_key, price_source, price_usd_per_h
from llmirage_client.simulator.engine import ConfigError, Entry, ServedPool, read_mapping

# Shares of the TDP. Idle, with weights loaded: 140 to 145 of 700 W of an H100 in state P0 (nvidia-smi in
# github.com/wilicc/gpu-burn/issues/114). Hosts: an HGX node of eight busy H100s draws 8.4 kW at most (Latif et al.,
# Single-Node Power Demand During AI Training, IEEE Access 13, 2025), 2.8 kW more than their TDP: processors, memory,
# NVSwitches, network cards, fans. Other GPUs are taken to have hosts in proportion. Network: switches, transceivers and
# storage servers are 10 % of the power of a cluster of busy H100 nodes (Patel and Nishball, 100,000 H100 Clusters,
# SemiAnalysis, June 2024); they draw it whatever the load.
_IDLE_SHARE = 0.2
_HOST_SHARE = 2800 / (8 * 700)
_NETWORK_SHARE = (1 + _HOST_SHARE) / 9


@dataclass(frozen=True, slots=True)
class Bill:
    """The cost of all GPUs from the first measured request to the last reply, without the warm-up. None: unknown for one.

    gpu_hours: of instances while they are there, idle or not, start up or drain.
    usd: low and high, by the on-demand prices of the catalogue (gpus.yaml there has their sources).
    energy_kwh: of the GPUs alone, at their TDP while a step is in flight; an upper bound of that part, to which hosts,
        networks, cooling and idle GPUs are to be added.
    energy_kwh_with_hosts: also of idle GPUs, and of their hosts with network cards.
    energy_kwh_with_network: also of switches, transceivers and storage servers; without cooling of rooms.
    """

    gpus: int
    gpu_hours: float
    usd: tuple[float, float] | None
    energy_kwh: float | None
    energy_kwh_with_hosts: float | None
    energy_kwh_with_network: float | None
    usd_per_m_output_tokens: tuple[float, float] | None
    kwh_per_m_output_tokens: float | None


def bill_of(pools: Sequence[ServedPool], metrics: Metrics, totals: Totals) -> Bill:
    """Return the bill. totals: of the measured time."""
    tokens_m = metrics.whole_run.get("total_osl", 0.0) / 1e6
    hours = _gpu_hours(pools, totals)
    prices = [pool.deployment.gpu.price_usd_per_h for pool in pools]
    usd = None
    if all(price is not None for price in prices):
        low, high = (sum(its * price[end] for its, price in zip(hours, prices, strict=True) if price) for end in (0, 1))
        usd = low, high
    energy, with_hosts, with_network = _energy_kwh(pools, totals)
    return Bill(
        gpus=sum(pool.config.instances * pool.deployment.gpus for pool in pools),
        gpu_hours=sum(hours),
        usd=usd,
        energy_kwh=energy,
        energy_kwh_with_hosts=with_hosts,
        energy_kwh_with_network=with_network,
        usd_per_m_output_tokens=(usd[0] / tokens_m, usd[1] / tokens_m) if usd is not None and tokens_m else None,
        kwh_per_m_output_tokens=energy / tokens_m if energy is not None and tokens_m else None,
    )


def _gpu_hours(pools: Sequence[ServedPool], totals: Totals) -> list[float]:
    paid_s = by_pool(totals.paid_s, pools)
    return [float(own.sum()) / 3600.0 * pool.deployment.gpus for own, pool in zip(paid_s, pools, strict=True)]


def _energy_kwh(pools: Sequence[ServedPool], totals: Totals) -> tuple[float, float, float] | tuple[None, None, None]:
    """Return the energy of busy GPUs, that of all GPUs with their hosts, and that with the network."""
    if any(pool.deployment.gpu.tdp_w is None or pool.config.fixed_times for pool in pools):
        return None, None, None
    watts = [
        pool.deployment.gpus * (pool.deployment.gpu.tdp_w or 0.0) for pool in pools for _ in range(pool.config.instances)
    ]
    busy, paid = (float(np.dot(watts, seconds)) / 3.6e6 for seconds in (totals.busy_s, totals.paid_s))
    with_hosts = busy + _IDLE_SHARE * max(0.0, paid - busy) + _HOST_SHARE * paid
    return busy, with_hosts, with_hosts + _NETWORK_SHARE * paid


def catalogue_prices(gpus: Sequence[str]) -> tuple[dict[str, float], str]:
    """Return USD per hour of each of these GPUs that has a price, and the source for people."""
    prices = {gpu: price for gpu in gpus if (price := price_usd_per_h(gpu)) is not None}
    return prices, f"middle of the on-demand offers in the catalogue ({price_source()})"


def read_prices(path: str, gpus: Sequence[str]) -> tuple[dict[str, float], str]:
    """Return USD per hour from lines `name: price`; GPUs that are not named have none. Raises ConfigError."""
    problems: list[str] = []
    prices: dict[str, float] = {}
    lines: dict[str, int] = {}
    entries = read_mapping(path, "a price file")
    for entry in entries:
        try:
            key = entry.key if entry.key in gpus else gpu_key(entry.key)
            if key in lines:
                problems.append(f"{path}:{entry.line}: {entry.key}: already given in line {lines[key]}")
            lines.setdefault(key, entry.line)
            prices[key] = _price(entry)
        except (ConfigError, ValueError) as error:
            problems.append(f"{path}:{entry.line}: {entry.key}: {error}")
    if not entries and not problems:
        problems.append(f"{path}: there is no price in it")
    if problems:
        raise ConfigError(problems)
    return {gpu: prices[gpu] for gpu in gpus if gpu in prices}, Path(path).name


def _price(entry: Entry) -> float:
    value = entry.node.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"must be a number of USD per hour of one GPU, not {value!r}")
    return float(value)
