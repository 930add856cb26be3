"""Scores of routers: of the run that an outside router served, and of simulations of its load with our own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from llmirage_client.measure.client_error import read_instances
from llmirage_client.measure.record import Record, RunResult, usage_counts
from llmirage_client.measure.run_folder import read_runs
from llmirage_client.operations.simulate import SimulateSettings, simulate
from llmirage_client.settings.load import TrafficSettings
from llmirage_client.settings.simulation import RouteScoreSettings
from llmirage_client.simulator.bounds import Bounds
from llmirage_client.simulator.cluster_settings import ClusterSettings, cluster_config
from llmirage_client.simulator.engine import ROUTERS
from llmirage_shared.settings import InputRefused, settings_of

# A store of all KV that costs nothing: any instance finds what any other has computed.
_INFINITE_CACHE = {"kv_store_gib": 1e6, "kv_store_gb_per_s": 1e6, "router": "least_loaded"}
BEST = "an infinite KV cache that all instances share at no cost; TTFT on an idle instance, by the performance model"


PERCENTILES = (50, 90, 99)


@dataclass(slots=True, frozen=True)
class RouteScore:
    """The routing of a run's successful requests.

    requests: successful and streamed; placed: those of which the instance is known. hit_rate: the cached share of their
    prompt tokens. balance: the most computed tokens (uncached prompts and replies) of an instance over the mean of all; 1 is
    even. ttft_ms: mean, p50, p90, p99. None: not known.
    """

    requests: int
    placed: int
    failed: int
    hit_rate: float | None
    balance: float | None
    ttft_ms: dict[str, float] | None

    def ttft_over_best(self, best: RouteScore) -> dict[str, float] | None:
        """Return how many times the best figures the times to the first token are; None: not known."""
        if self.ttft_ms is None or best.ttft_ms is None:
            return None
        return {name: self.ttft_ms[name] / value for name, value in best.ttft_ms.items() if value}


@dataclass(frozen=True, slots=True)
class RouteScores:
    """measured: the outside router. best: the bound of BEST. simulated: our routers, by name."""

    measured: RouteScore
    best: RouteScore
    simulated: dict[str, RouteScore]

    def json(self) -> dict[str, Any]:
        return {
            "measured": self._entry(self.measured),
            "best": {"of": BEST} | self._entry(self.best),
            "routers": {name: self._entry(score) for name, score in self.simulated.items()},
        }

    def _entry(self, score: RouteScore) -> dict[str, Any]:
        return asdict(score) | {"ttft_over_best": score.ttft_over_best(self.best)}

    def rows(self) -> Iterator[tuple[str, RouteScore]]:
        """Yield all scores in the order of the table: the measured one, the bound, and our routers by their TTFT."""
        yield "measured", self.measured
        yield "best possible", self.best
        yield from sorted(self.simulated.items(), key=lambda entry: (entry[1].ttft_ms or {}).get("mean", float("inf")))


def route_scores(run: str, stamps: str, settings: RouteScoreSettings, cluster: ClusterSettings) -> RouteScores:
    """Score a run, and simulations of its load on the cluster. stamps: of the run's server.

    Raises InputRefused and ConfigError.
    """
    [result] = read_runs([run])
    config = cluster_config(cluster, 0)
    if not all(pool.ttft_ms is pool.itl_ms is None for pool in config.all_pools):
        raise InputRefused(["fixed times (ttft_ms, itl_ms) are the same with every router: leave them out"])
    instances = sum(pool.instances for pool in config.all_pools)
    placed = read_instances(stamps)
    if not placed.keys() & {record.request_id for record in result.records}:
        raise InputRefused([f"{stamps} has none of the requests of {run}, by X-Request-ID"])
    if (last := max(placed.values())) >= instances:
        raise InputRefused(
            [f"{stamps} has requests of instance {last}, but the cluster has {instances}: give that of the server"]
        )
    for record in result.records:
        record.exchange.instance = placed.get(record.request_id)
    traffic = _traffic(result)
    workload = settings.workload or (None if traffic.isl is not None else result.workload_path)
    if not workload and traffic.isl is None:
        raise InputRefused([f"{run} does not say its workload: name it with --workload"])

    def simulated(**overrides: Any) -> list[Record]:
        routed = replace(cluster, overrides={**cluster.overrides, **overrides})
        return simulate(workload, replace(traffic, cluster=routed)).result.records

    best = simulated(**_INFINITE_CACHE)
    bounds = Bounds(config)
    for record in best:
        prompt, hit, _ = _tokens(record)
        ttft_s = bounds.ttft_s(prompt, prompt - hit) if prompt else None
        record.exchange.token_s = [] if ttft_s is None else [record.exchange.start_s + ttft_s]
    return RouteScores(
        route_score(result.records, instances, result.speed),
        replace(route_score(best, instances), balance=1.0),
        {name: route_score(simulated(router=name), instances) for name in _names(settings.routers)},
    )


def route_score(records: Iterable[Record], instances: int, speed: float = 1.0) -> RouteScore:
    """Return the score of a run whose records name their instance.

    instances: all there are, idle ones too. speed: seconds of the cluster in one of the records.
    """
    prompts = cached = failed = placed = 0
    ttft_ms: list[float] = []
    computed = np.zeros(instances)
    for record in records:
        exchange = record.exchange
        if record.phase != "profiling" or record.cancelled:
            continue
        if not record.ok or not exchange.token_s:
            failed += 1
            continue
        ttft_ms.append((exchange.token_s[0] - exchange.start_s) * 1000 * speed)
        prompt, hit, reply = _tokens(record)
        prompts, cached = prompts + prompt, cached + hit
        if exchange.instance is not None and 0 <= exchange.instance < instances:
            placed += 1
            computed[exchange.instance] += prompt - hit + reply
    return RouteScore(
        len(ttft_ms),
        placed,
        failed,
        cached / prompts if prompts else None,
        float(computed.max() / computed.mean()) if computed.any() else None,
        _statistics(ttft_ms) if ttft_ms else None,
    )


def _statistics(values: list[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values))} | {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES}


def _tokens(record: Record) -> tuple[int, int, int]:
    """Return the tokens of a request: of its prompt, of these the cached ones, and of its reply."""
    counts = usage_counts(record.exchange.usage or {})
    tags = ("usage_prompt_tokens", "usage_prompt_cache_read_tokens", "usage_completion_tokens")
    prompt, hit, reply = (counts.get(tag, 0) for tag in tags)
    return prompt, hit, reply


def _traffic(result: RunResult) -> SimulateSettings:
    """Return a simulation of the workload and the load of a run, as its files have them."""
    given: dict[str, Any] = {}
    for name, about in settings_of(TrafficSettings).items():
        if (value := result.options.get(name)) is not None:
            given[about.field] = (value,) if about.several else tuple(value) if isinstance(value, list) else value
    return SimulateSettings(**given)


def _names(routers: str | None) -> list[str]:
    """Return the routers of a setting; a part such as queue=1 belongs to the llm-d:... before it."""
    names: list[str] = []
    for part in routers.split(",") if routers else ROUTERS:
        if names and "=" in part and ":" not in part:
            names[-1] += f",{part}"
        else:
            names.append(part.strip())
    return names
