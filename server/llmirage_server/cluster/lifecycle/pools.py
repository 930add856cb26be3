"""Groups of instances that do the same work, and which of them may serve a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.lifecycle.autoscaler import ScalingRule
from llmirage_server.cluster.limits import Role
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import Router
from llmirage_server.cluster.routers.gateway_queue import FlowControl


@dataclass(frozen=True, slots=True, eq=False)
class InstancePool:
    """Instances of one kind.

    router: chooses among the instances of all pools of the same model and half of the work that have this very router.
    role: "both", or one half of disaggregated serving: a prefill pool hands over to the decode pools of its model.
    model: what its instances serve; None: whatever no other pool is named for.
    kv_bytes_per_token, kv_bytes_per_sequence: what travels from a prefill pool, of the whole instance (all ranks); the
        second is state that does not grow with the context (linear attention).
    scaling: how many of the instances are there at a time; None: all. gpus: of an instance.
    """

    name: str
    instances: Sequence[InstanceBase]
    router: Router
    role: Role = "both"
    model: str | None = None
    kv_bytes_per_token: float = 0.0
    kv_bytes_per_sequence: float = 0.0
    scaling: ScalingRule | None = None
    gpus: int = 1

    @property
    def absent(self) -> list[int]:
        """Numbers of the instances that are not there at first."""
        return [] if self.scaling is None else [each.index for each in self.instances[self.scaling.at_first :]]


class Front:
    """The instances that one router chooses from."""

    def __init__(self, router: Router, instances: Sequence[InstanceBase]) -> None:
        self.router = router
        self.instances = instances
        self.accepting: list[InstanceBase] = []  # now; the cluster sees to it

    def choose(self, request: Request, flow_control: FlowControl | None = None) -> InstanceBase:
        """Return one of the accepting instances, of which there must be one; if possible one that is not saturated."""
        among: Sequence[InstanceBase] = self.accepting
        if flow_control is not None:
            among = [instance for instance in among if flow_control.score(instance) < 1] or among
        return among[self.router.choose(request, among)]

    @property
    def load(self) -> float:
        """Sum of 4 * waiting + running requests (vLLM's data-parallel load balancer) per accepting instance."""
        score = sum(instance.load for instance in self.accepting)
        return score / len(self.accepting)


class ModelPools:
    """The pools that serve one model."""

    def __init__(self, pools: Sequence[InstancePool]) -> None:
        self.entry = _fronts([pool for pool in pools if pool.role != "decode"])  # where its requests begin
        self.decode = _fronts([pool for pool in pools if pool.role == "decode"])
        # Of prompt and output together: a request must fit wherever it may come.
        self.max_request_tokens = min(instance.max_request_tokens for pool in pools for instance in pool.instances)


def accepting_front(fronts: Sequence[Front]) -> Front | None:
    """Return the front with the least load per instance, the first of equals; None if no instance accepts."""
    return min((front for front in fronts if front.accepting), key=lambda front: front.load, default=None)


class Pools:
    """All pools of a cluster, by model and by instance."""

    def __init__(self, pools: Sequence[InstancePool]) -> None:
        """Take the pools. Raises ValueError naming everything that does not fit together."""
        if problems := _problems(pools):
            raise ValueError("; ".join(problems))
        self.instances = [instance for pool in pools for instance in pool.instances]
        self.pool_of = [pool for pool in pools for _ in pool.instances]  # by instance number
        models = dict.fromkeys(pool.model for pool in pools)
        self.by_model = {model: ModelPools([pool for pool in pools if pool.model == model]) for model in models}
        self._serving = {**self.by_model, None: self.by_model[pools[0].model]}  # by the model of a request
        self._fronts = [front for serving in self.by_model.values() for front in serving.entry + serving.decode]

    def serving(self, model: str | None) -> ModelPools:
        """Return the pools of a model, of the first one if it is None. Raises ValueError if there are none."""
        found = self._serving.get(model) or self.by_model.get(None)
        if found is None:
            names = ", ".join(str(name) for name in self.by_model)
            raise ValueError(f"no pool serves the model {model!r}: there are pools for {names}")
        return found

    def refresh(self, accepts: Callable[[int], bool]) -> None:
        """Update which instances accept requests, by their numbers."""
        for front in self._fronts:
            front.accepting = [instance for instance in front.instances if accepts(instance.index)]


def _fronts(pools: Sequence[InstancePool]) -> list[Front]:
    """Return one front for each router, over all the pools that have it."""
    routers = {id(pool.router): pool.router for pool in pools}.values()
    return [
        Front(router, [each for pool in pools if pool.router is router for each in pool.instances]) for router in routers
    ]


def _problems(pools: Sequence[InstancePool]) -> list[str]:
    if not any(pool.instances for pool in pools):
        return ["a cluster needs at least one instance"]
    problems = []
    names = [pool.name for pool in pools]
    problems += [f"two pools are called {name!r}" for name in dict.fromkeys(names) if names.count(name) > 1]
    number = 0
    for pool in pools:
        if not pool.instances:
            problems.append(f"pool {pool.name!r} has no instance")
        for instance in pool.instances:
            if instance.index != number:
                problems.append(
                    f"pool {pool.name!r}: instance {instance.index} should be number {number}, "
                    "instances are numbered over the whole cluster"
                )
            if instance.role != pool.role:
                problems.append(
                    f"pool {pool.name!r} is for {pool.role}, but its instance {instance.index} is for {instance.role}"
                )
            number += 1
        if pool.role == "prefill" and not pool.kv_bytes_per_token > 0:
            problems.append(f"prefill pool {pool.name!r} needs kv_bytes_per_token above 0, to time what it hands over")
    for pool in pools:
        partner = {"prefill": "decode", "decode": "prefill"}.get(pool.role)
        if partner and not any(other.role == partner and other.model == pool.model for other in pools):
            model = "" if pool.model is None else f" for the model {pool.model!r}"
            problems.append(f"{pool.role} pool {pool.name!r} has no partner: there is no {partner} pool{model}")
    return problems
