"""An outside router against our own: the run that it served, and simulations of the same load on the same cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from llmirage_client.measure.client_error import read_instances
from llmirage_client.measure.record import Record, RunResult
from llmirage_client.measure.route_score import RouteScore, against, route_score
from llmirage_client.measure.run_folder import read_runs
from llmirage_client.measure.usage import usage_counts
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


@dataclass(frozen=True, slots=True)
class RouteScores:
    """measured: the outside router. best: the bound of BEST. simulated: our routers, by name."""

    measured: RouteScore
    best: RouteScore
    simulated: dict[str, RouteScore]

    def json(self) -> dict[str, Any]:
        """Return the figures of --json."""
        return {
            "measured": self._entry(self.measured),
            "best": {"of": BEST} | self._entry(self.best),
            "routers": {name: self._entry(score) for name, score in self.simulated.items()},
        }

    def _entry(self, score: RouteScore) -> dict[str, Any]:
        return asdict(score) | against(score, self.best)

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
        given = {name: getattr(traffic, name) for name in TrafficSettings.__dataclass_fields__}
        return simulate(workload, SimulateSettings(**given, cluster=routed)).result.records

    best = simulated(**_INFINITE_CACHE)
    bounds = Bounds(config)
    for record in best:
        counts = usage_counts(record.exchange.usage or {})
        prompt, hit = counts.get("usage_prompt_tokens", 0), counts.get("usage_prompt_cache_read_tokens", 0)
        ttft_s = bounds.ttft_s(prompt, prompt - hit) if prompt else None
        record.exchange.token_s = [] if ttft_s is None else [record.exchange.start_s + ttft_s]
    return RouteScores(
        route_score(result.records, instances, result.speed),
        replace(route_score(best, instances), balance=1.0),
        {name: route_score(simulated(router=name), instances) for name in _names(settings.routers)},
    )


def _traffic(result: RunResult) -> TrafficSettings:
    """Return the workload and the load of a run as its files have them."""
    given: dict[str, Any] = {}
    for name, about in settings_of(TrafficSettings).items():
        if (value := result.options.get(name)) is not None:
            given[about.field] = (value,) if about.several else tuple(value) if isinstance(value, list) else value
    return TrafficSettings(**given)


def _names(routers: str | None) -> list[str]:
    """Return the routers of a setting; a part such as queue=1 belongs to the llm-d:... before it."""
    names: list[str] = []
    for part in routers.split(",") if routers else ROUTERS:
        if names and "=" in part and ":" not in part:
            names[-1] += f",{part}"
        else:
            names.append(part.strip())
    return names
