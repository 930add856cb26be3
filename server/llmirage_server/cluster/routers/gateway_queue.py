"""Requests that wait at the router while instances are saturated: flow control of the Gateway API's inference extension.

Rules and defaults are those of llm-d's router, which has the extension's endpoint picker (llm-d/llm-d-router at 520af478):
pkg/epp/framework/plugins/flowcontrol/saturationdetector/utilization (detector.go, config.go), fairness/roundrobin and
pkg/epp/flowcontrol/controller/internal/processor.go. Here the metrics of instances are never old.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.request import Request

Flow = tuple[str, int]
"""A fairness id, and a priority."""


@dataclass(frozen=True, slots=True)
class FlowControl:
    """When requests wait, and which go first.

    priorities: of objectives; higher goes first, 0 without one, and a request below 0 is refused instead of waiting.
    queue_depth, kv_utilization: waiting requests, or share of the KV memory, with which an instance is saturated
        (DefaultQueueDepthThreshold and DefaultKVCacheUtilThreshold in config.go).
    """

    priorities: Mapping[str, int] = field(default_factory=dict)
    queue_depth: int = 5
    kv_utilization: float = 0.8

    def score(self, instance: InstanceBase) -> float:
        """Return how saturated an instance is: 1 is fully."""
        used = instance.kv_used_tokens / max(instance.kv_total_tokens, 1)
        return max(instance.waiting / self.queue_depth, used / self.kv_utilization)

    def saturation(self, instances: Sequence[InstanceBase]) -> float:
        """Return the mean score of instances; 0 if there are none: requests then wait for one to start."""
        return sum([self.score(instance) for instance in instances]) / max(len(instances), 1)

    def priority(self, request: Request) -> int:
        return self.priorities.get(request.objective, 0)


class GatewayQueue:
    """The waiting requests of one model: bands of equal priority, in each of which the flows take turns."""

    def __init__(self) -> None:
        self._bands: dict[int, OrderedDict[str, OrderedDict[Request, None]]] = {}  # the flow whose turn it is first
        self._priorities: dict[Request, int] = {}

    def add(self, request: Request, priority: int) -> None:
        flows = self._bands.setdefault(priority, OrderedDict())
        flows.setdefault(request.fairness_id, OrderedDict())[request] = None
        self._priorities[request] = priority

    def remove(self, request: Request) -> None:
        """Remove a request; its flow keeps its turn while it has others."""
        priority = self._priorities.pop(request)
        flows = self._bands[priority]
        del flows[request.fairness_id][request]
        if not flows[request.fairness_id]:
            del flows[request.fairness_id]
        if not flows:
            del self._bands[priority]

    def pop(self) -> Request:
        """Remove and return the request whose turn it is: the oldest of the next flow in the highest band."""
        flows = self._bands[max(self._bands)]
        name, flow = next(iter(flows.items()))
        request = next(iter(flow))
        flows.move_to_end(name)
        self.remove(request)
        return request

    def __len__(self) -> int:
        return len(self._priorities)

    def sizes(self) -> dict[Flow, int]:
        """Return the number of waiting requests of each flow that has some."""
        return {(name, priority): len(flow) for priority, flows in self._bands.items() for name, flow in flows.items()}
