"""Which deployments a model can have, what their GPUs cost, and how far from their figures measured servers are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from llmirage_client.simulator.engine import ClusterConfig, ConfigError, plan_of
from llmirage_server.cluster.lifecycle.autoscaler import TARGETS
from llmirage_server.config.cluster import PoolConfig, instance_settings
from llmirage_server.perf import look_up
from llmirage_server.perf.bands import SHARES as SHARES
from llmirage_server.perf.bands import UNKNOWN as UNKNOWN
from llmirage_server.perf.bands import Band as Band
from llmirage_server.perf.bands import Quantity as Quantity
from llmirage_server.perf.bands import Share as Share
from llmirage_server.perf.bands import band_of
from llmirage_server.perf.catalogue.lookup import common_gpu_sources, find_gpu, find_model
from llmirage_server.perf.engines.lookup import find_engine

_TENSOR_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, order=True)
class InstanceShape:
    """One instance: its GPU, engine, weight format and how it is split. None: what the configuration says."""

    gpu: str
    engine: str | None
    weights: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def split(self) -> str:
        """Such as TP4, or TP1 DP8 EP8."""
        rest = [f"{name}{size}" for name, size in (("PP", self.pp), ("DP", self.dp), ("EP", self.ep)) if size > 1]
        return " ".join([f"TP{self.tp}", *rest])

    @property
    def name(self) -> str:
        """GPU, parallelism, engine, weights."""
        engine = "" if self.engine is None else f" {self.engine}"
        return f"{self.gpu} {self.split}{engine} {self.weights}"

    def named(self, instances: int) -> str:
        return f"{instances} x {self.name}"

    def counts(self, instances: int) -> tuple[int, ...]:
        """Return the instances of each pool."""
        return (instances,)

    def gpus_of(self, instances: int) -> dict[str, int]:
        """Return the GPUs of that many instances, by their name."""
        return {self.gpu: self.gpus * instances}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of an instance that the shape stands for."""
        return {
            "gpu": self.gpu,
            "engine": self.engine,
            "weights": self.weights,
            "tensor_parallel_size": self.tp,
            "pipeline_parallel_size": self.pp,
            "data_parallel_size": self.dp,
            "expert_parallel_size": self.ep,
        }

    def config(self, base: ClusterConfig, instances: int) -> ClusterConfig:
        """Return the base with `instances` instances of this shape. Raises ConfigError."""
        return dataclasses.replace(base, **self.settings, instances=instances)


@dataclass(frozen=True, slots=True, order=True)
class PoolShape:
    """Separate prefill and decode instances. share: of all instances, those that prefill.

    More instances are never fewer in one of the pools.
    """

    prefill: InstanceShape
    decode: InstanceShape
    share: float

    def counts(self, instances: int) -> tuple[int, ...]:
        """Return the prefill and the decode instances of at least one each."""
        prefill = min(max(1, round(instances * self.share)), max(1, instances - 1))
        return prefill, max(1, instances - prefill)

    def gpus_of(self, instances: int) -> dict[str, int]:
        """Return the GPUs of that many instances, by their name."""
        prefill, decode = self.counts(instances)
        found = self.prefill.gpus_of(prefill)
        for gpu, count in self.decode.gpus_of(decode).items():
            found[gpu] = found.get(gpu, 0) + count
        return found

    @property
    def gpu(self) -> str:
        return " and ".join(dict.fromkeys((self.prefill.gpu, self.decode.gpu)))

    @property
    def split(self) -> str:
        return f"{self.prefill.split} | {self.decode.split}"

    @property
    def name(self) -> str:
        prefill, decode = round(10 * self.share), round(10 * (1 - self.share))
        return f"prefill {self.prefill.name} and decode {self.decode.name}, about {prefill}:{decode}"

    def named(self, instances: int) -> str:
        prefill, decode = self.counts(instances)
        return f"{prefill} prefill x {self.prefill.name} + {decode} decode x {self.decode.name}"

    def config(self, base: ClusterConfig, instances: int) -> ClusterConfig:
        """Return the base with such pools; what else is said of its own pools of these roles stays. Raises ConfigError."""
        pools = []
        for role, shape, count in zip(ROLES, (self.prefill, self.decode), self.counts(instances), strict=True):
            own = next((pool for pool in base.pools if pool.role == role), None)
            settings = instance_settings(own or base) | shape.settings
            pools.append(PoolConfig(name=role, role=role, **{**settings, "instances": count}))
        return dataclasses.replace(base, pools=tuple(pools), instances=1)


Shape = InstanceShape | PoolShape
ROLES: tuple[Literal["prefill", "decode"], ...] = ("prefill", "decode")


def units(config: ClusterConfig) -> int:
    """Return how many times a cluster has what `Bounds` are of: separate pools as a whole, else an instance."""
    separate = any(pool.role != "both" for pool in config.all_pools)
    return 1 if separate else sum(pool.instances for pool in config.all_pools)


def decoding(config: ClusterConfig) -> int:
    """Return the number of instances over which requests in flight are spread."""
    return sum(pool.instances for pool in config.all_pools if pool.role != "prefill")


def steady(config: ClusterConfig) -> tuple[ClusterConfig, list[str]]:
    """Return the cluster with all its instances there all the time, and notes on what that leaves out.

    A single pool becomes the cluster itself.
    """
    notes = [note] if (note := left_out(config)) else []
    if config.events:
        notes.append(
            "The cluster's events (crashes, stops and starts) are left out: all instances are there all the time. "
            "`llmirage simulate` and `sweep` follow them."
        )
    if any(pool.scales for pool in config.all_pools):
        notes.append(
            "Autoscaling (scale_on_...) is left out: all instances are there all the time. `llmirage sweep` compares it "
            "with fixed numbers."
        )
    pools = tuple(dataclasses.replace(pool, **_NOT_SCALED) for pool in config.pools)
    config = dataclasses.replace(config, events=(), pools=pools, max_gpu_budget=None, **_NOT_SCALED)
    if len(pools) == 1:
        config = dataclasses.replace(config, pools=(), **instance_settings(pools[0]))
    return config, notes


def has_fixed_times(config: ClusterConfig) -> bool:
    """Tell whether times of the user's own replace the performance model in one of its pools."""
    return any(pool.fixed_times for pool in config.all_pools)


def left_out(config: ClusterConfig) -> str:
    """Return the server's settings that would change the figures and that no simulation follows, in words; "" for none."""
    unset = {"rate_limit": None, "token_limit": None, "faults": None, "replay": None}
    given = [name for name, value in unset.items() if getattr(config, name) != value]
    return f"Left out, as only `llmirage serve` has them: {', '.join(given)}." if given else ""


_NOT_SCALED: dict[str, Any] = {
    **{f"scale_on_{target}": None for target in TARGETS},
    "initial_instances": None,
    "min_instances": 1,
}


@dataclass(frozen=True, slots=True)
class Refused:
    """A shape that cannot be, and why."""

    shape: Shape
    reason: str


def shapes(
    base: ClusterConfig,
    gpus: Sequence[str],
    engines: Sequence[str | None] = (None,),
    weights: Sequence[str] = ("auto",),
    tps: Sequence[int] = (),
    pps: Sequence[int] = (),
    dps: Sequence[int] = (),
    eps: Sequence[int] = (),
    longest: int = 0,
) -> tuple[list[InstanceShape], list[Refused]]:
    """Return every shape worth a try, and those that cannot be, the nearest first.

    longest: tokens of the longest request, prompt and reply together, that an instance must have room for.

    Sizes that are given are all tried with each other; a size that is not given is searched as far as it can matter:
    tensor parallelism over 1 to 8 GPUs that the fast link joins; for a mixture of experts also with its experts spread
    whole over them, and with attention data parallelism; and pipelines of two or four stages where nothing else fits on a
    GPU. Raises ConfigError for unknown names.
    """
    problems: list[str] = []
    look_up(find_model, "model", base.model, problems)
    for name in dict.fromkeys(gpus):
        look_up(find_gpu, "gpus", name, problems)
    for name in dict.fromkeys(filter(None, engines)):
        look_up(find_engine, "engines", name, problems)
    if problems:
        raise ConfigError(problems)
    possible: list[InstanceShape] = []
    refused: list[Refused] = []
    without_room: list[Refused] = []
    published = find_model(base.model).native_weights
    formats = dict.fromkeys(published if name == "auto" else name for name in weights)
    for gpu in dict.fromkeys(find_gpu(name).key if not name.endswith((".yaml", ".yml")) else name for name in gpus):
        stages = _stages(gpu, find_model(base.model).experts > 1, tps, dps, eps)
        widest = max(tp * dp for tp, dp, _ in stages)
        deep = [stage for stage in stages if stage[0] * stage[1] == widest]
        for engine, dtype in product(dict.fromkeys(engines), formats):
            for place, depths in enumerate([pps] if pps else _DEPTHS):
                splits = product(depths, deep if place else stages)
                tried = [InstanceShape(gpu, engine, dtype, tp, pp, dp, ep) for pp, (tp, dp, ep) in splits]
                fit = []
                for shape in tried:
                    try:
                        [pool] = plan_of(shape.config(base, 1))
                    except ConfigError as error:
                        refused += [] if place else [Refused(shape, "; ".join(error.problems))]
                        continue
                    if longest <= pool.max_model_len:
                        fit.append(shape)
                    else:
                        limit = f"max_model_len is {pool.max_model_len:,}, at most the model's and what the KV cache holds"
                        reason = f"a request of {longest:,} tokens can never finish: {limit}"
                        without_room.append(Refused(shape, reason))
                possible += fit
                if fit:
                    break
    return possible, without_room + refused


_Stage = tuple[int, int, int]  # tensor, attention data and expert parallelism
_DEPTHS: tuple[tuple[int, ...], ...] = ((1,), (2,), (4,))  # the next where nothing fits


def _stages(gpu: str, moe: bool, tps: Sequence[int], dps: Sequence[int], eps: Sequence[int]) -> list[_Stage]:
    """Return the splits of a pipeline stage, the smallest first.

    Of the sizes that are not given, those that suit the given ones: within the fast link, experts whole on a GPU or
    sliced over all of them.
    """
    link = find_gpu(gpu).link_gpus
    sizes = [size for size in _TENSOR_SIZES if size <= link]
    most = max([link, *eps])
    found = []
    for tp, dp in product(tps or sizes, dps or (sorted({*sizes, *eps}) if moe else (1,))):
        gpus = tp * dp
        mixed = tp > 1 and dp > 1 and not (tps or dps)
        if mixed or (gpus > most and not (tps and dps)):
            continue
        sliced = dp == 1 or bool(dps)
        spread = eps or ([*([1] if sliced or gpus == 1 else []), *([gpus] if gpus > 1 else [])] if moe else [1])
        found += [(tp, dp, ep) for ep in spread if gpus % ep == 0 and (sliced or ep > 1 or gpus == 1)]
    given = product(tps or (1,), dps or (1,), eps or (1,))  # which says what is wrong with them
    return sorted(set(found) or given, key=lambda stage: (stage[0] * stage[1], stage[2], -stage[0]))


def price_usd_per_h(gpu: str) -> float | None:
    """Return the middle of the on-demand offers that the catalogue knows of for one GPU; None: it knows none."""
    offers = find_gpu(gpu).price_usd_per_h
    return None if offers is None else sum(offers) / 2


def hourly_usd(config: ClusterConfig, prices: Mapping[str, float]) -> float | None:
    """USD for an hour of all its GPUs; None: the price of one of them is not known. Raises ConfigError."""
    pools = plan_of(config)
    if any(pool.deployment.gpu.key not in prices for pool in pools):
        return None
    return sum(prices[pool.deployment.gpu.key] * pool.deployment.gpus * pool.config.instances for pool in pools)


def gpus_of(config: ClusterConfig) -> list[str]:
    """Return the catalogue's names of the GPUs in it, each once. Raises ConfigError."""
    return list(dict.fromkeys(pool.deployment.gpu.key for pool in plan_of(config)))


def models_of(config: ClusterConfig) -> str:
    """Return the models of its pools, each once."""
    return ", ".join(dict.fromkeys(pool.model for pool in config.all_pools))


def price_source() -> str:
    """Return the source of the catalogue's prices."""
    return common_gpu_sources()["price_source"]


def gpu_key(name: str) -> str:
    """Return the catalogue's own name of a GPU. Raises ConfigError."""
    return find_gpu(name).key


def is_moe(model: str) -> bool:
    """Return whether a model is a mixture of experts."""
    return find_model(model).experts > 1


def model_key(name: str) -> str:
    """Return the catalogue's own name of a model. Raises ConfigError."""
    return find_model(name).name


def summary_line(config: ClusterConfig) -> str:
    """One line about each pool's instances. Raises ConfigError."""
    return "; ".join(f"{pool.config.instances} x {pool.deployment.describe()}" for pool in plan_of(config))


OF_SPLIT = ("experts", "peer_to_peer")  # assumptions that differ by how an instance is split


def assumed(config: ClusterConfig, *left_out: str, only: Sequence[str] = ()) -> list[str]:
    """Return the values of the main settings that were not given, in words.

    left_out, only: names of settings. Raises ConfigError.
    """
    found = []
    for pool in plan_of(config):
        parts = [text for name, text in pool.assumptions.items() if name not in left_out and (not only or name in only)]
        if parts:
            found.append((f"pool {pool.config.name}: " if config.pools else "") + "; ".join(parts))
    return found


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
