"""The metrics of the simulated cluster for /metrics, under the names of the engine whose API is spoken.

Nothing is counted while tokens flow: a request is counted when it ends, from the times that the cluster wrote; requests in
flight are read at each scrape. Times are the cluster's, so at any `--speed` those of a real one; but for two histograms of
what this server itself takes, in real time.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from llmirage_server.cluster.gateway import Gateway
from llmirage_server.cluster.lifecycle.lifecycle import Scaling, ScalingDecision
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.snapshots import InstanceSnapshot
from llmirage_server.drivers.pacing import Pacing
from llmirage_server.telemetry.metric_names import ENGINE_NAMES, HistogramFamily, MetricFamily
from llmirage_server.telemetry.scrape import CacheSettings, EngineMetrics, Standing, StepWork, token_counts

_OWN_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

# Of flow control's queue durations, by llm-d-router's pkg/epp/metrics/metrics.go.
_STAY_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_MOST_MEDIA = 10_000  # remembered: at 400 KB each, vLLM's mm_processor_cache_gb of 4
Place = tuple[int, int]  # index of the instance, data-parallel rank there
Engine = tuple[str, int]  # model, number of the rank among all that are shown


class PrometheusMetrics:
    """The metrics of all instances."""

    def __init__(
        self,
        names: Callable[[], Sequence[str]],
        dialect: str = "openai",
        caches: Mapping[str, CacheSettings] | None = None,
        work: Mapping[str, StepWork] | None = None,
    ) -> None:
        """names: of the served models; the first stands for instances that serve any. dialect: whose names to use.

        caches, work: by pool.
        """
        self._names = names
        self._families = ENGINE_NAMES[dialect]
        self._engines: dict[tuple[str, Place], EngineMetrics] = {}
        self._caches = caches or {}
        self._work = work or {}
        self._media: OrderedDict[int, None] = OrderedDict()  # digests, least recently used first
        self._sleep: dict[int, tuple[int, int]] = {}  # the level, and the changes of the instance by then; -1: all sleep
        self.errors = 0  # of the server's own code

    def sleep(self, level: int, instance: InstanceSnapshot | None = None) -> None:
        """Note that an instance has been put to sleep, or all of them together."""
        index, changes = (-1, 0) if instance is None else (instance.index, instance.changes)
        self._sleep[index] = level, changes

    def wake(self, index: int = -1) -> None:
        """Note that an instance wakes up, or all of them together."""
        self._sleep.pop(index, None)

    def sleep_level(self, instance: InstanceSnapshot | None = None) -> int | None:
        """Return the level at which an instance sleeps, or all of them together; None: it is awake.

        Whoever starts, stops or crashes an instance that sleeps ends its sleep.
        """
        index, changes = (-1, 0) if instance is None else (instance.index, instance.changes)
        level, then = self._sleep.get(index, (None, 0))
        return level if changes == then else None

    def count_error(self) -> None:
        """Count a request that failed inside the server."""
        self.errors += 1

    def ended(self, request: Request, finish_reason: str) -> None:
        """Count a request that has ended. finish_reason: of its complete reply."""
        if request.dropped:  # no engine has seen it
            return
        if request.failed:
            reason = "error"
        elif request.produced < request.output_tokens:
            reason = "abort"
        else:
            reason = "length" if finish_reason == "length" else "stop"
        self._engine(request.model, _place(request)).ended(request, reason)

    def answered(self, replies: Sequence[Request]) -> None:
        """Count a prompt whose replies have all ended; not one that was left."""
        first = replies[0]
        if all(reply.produced >= reply.output_tokens and not reply.failed for reply in replies):
            longest = max([reply.produced for reply in replies])
            self._engine(first.model, _place(first)).answered(len(replies), longest)

    def media(self, model: str, instance: int, digests: Iterable[int]) -> None:
        """Count images and sounds of a prompt. digests: equal ones have the same."""
        engine, known = self._engine(model, (instance, 0)), self._media
        for digest in digests:
            engine.media_queries += 1
            engine.media_hits += digest in known
            known[digest] = None
            known.move_to_end(digest)
            if len(known) > _MOST_MEDIA:
                known.popitem(last=False)

    @property
    def generated_tokens(self) -> int:
        """Generated tokens of requests that have ended."""
        return sum([engine.counts["generation_tokens"] for engine in self._engines.values()])

    def exposition(
        self, ranks: Sequence[InstanceSnapshot], under_way: Iterable[Request], held_bytes: Mapping[str, int], now_s: float
    ) -> str:
        """Return all metrics in Prometheus's text format 0.0.4.

        ranks: data-parallel ones of each instance, in order: the engines 0, 1 and so on, or one by its number there.
        under_way: requests that have not ended. held_bytes: by holder. now_s: the cluster's time.
        """
        numbers = {(state.index, state.rank): number for number, state in enumerate(ranks, ranks[0].rank)}
        states = {(self._model(state.model), number): state for number, state in enumerate(ranks, ranks[0].rank)}
        for state in ranks:
            self._engine(state.model, (state.index, state.rank))
        ended = {(model, numbers[place]): at for (model, place), at in self._engines.items() if place in numbers}
        begun: dict[Engine, Counter[str]] = {engine: Counter() for engine in ended}
        rates: dict[Engine, float] = dict.fromkeys(ended, 0.0)
        for request in under_way:
            place = _place(request)
            if place not in numbers:
                continue
            engine = self._model(request.model), numbers[place]
            ended.setdefault(engine, self._engine(request.model, place))
            begun.setdefault(engine, Counter()).update(token_counts(request))
            rates[engine] = rates.get(engine, 0.0) + _tokens_per_s(request, now_s)
        standings = {
            engine: self._standing(ended[engine], {**counts, "tokens_per_s": rates[engine]}, states.get(engine))
            for engine, counts in sorted(begun.items(), key=lambda item: item[0][1])
        }
        return "\n".join([*_own_lines(states, self.errors, held_bytes), *self._lines(standings)]) + "\n"

    def _standing(self, ended: EngineMetrics, begun: Mapping[str, float], state: InstanceSnapshot | None) -> Standing:
        if state is None:
            return Standing([ended], begun)
        level = self.sleep_level(state)
        if level is None:
            level = self.sleep_level()
        return Standing([ended], begun, [state], self._work.get(state.pool), level)

    def _lines(self, standings: Mapping[Engine, Standing]) -> Iterator[str]:
        names = self._families
        models: dict[str, list[Standing]] = {}
        for (model, _), at in standings.items():
            models.setdefault(model, []).append(at)
        groups = {
            "instance": [({**names.instance_labels(*engine), **self._role(at)}, at) for engine, at in standings.items()],
            "model": [
                ({**names.model_labels, **self._role(at), "model_name": model}, at)
                for model, (first, *others) in models.items()
                for at in [first.with_others(others)]
            ],
        }
        yield from self._cache_lines(standings)
        yield from self._adapter_lines(standings)
        for family in names.samples:
            yield from _sample_lines(names.prefix, family, groups[family.each])
        for histogram in names.histograms:
            yield from _histogram_lines(names.prefix, histogram, groups[histogram.each])

    def _role(self, at: Standing) -> Mapping[str, str]:
        """Return the label of instances that all prefill, or all decode."""
        label, roles = self._families.role_label, {state.role for state in at.states}
        return {label: roles.pop()} if label and roles in ({"prefill"}, {"decode"}) else {}

    def _cache_lines(self, standings: Mapping[Engine, Standing]) -> Iterator[str]:
        labels_of, name = self._families.cache_labels, f"{self._families.prefix}cache_config_info"
        if labels_of is None:
            return
        yield from _head(name, "gauge", "How instances were told to have their KV cache.")
        found = dict[str, None]()
        for (_, index), at in standings.items():
            for state in at.states:
                if (cache := self._caches.get(state.pool)) is not None:
                    found[_labels(labels_of(cache, state.kv_total_tokens // cache.block_size, index))] = None
        yield from [f"{name}{{{labels}}} 1.0" for labels in found]

    def _adapter_lines(self, standings: Mapping[Engine, Standing]) -> Iterator[str]:
        """Yield vLLM's family whose labels are names of LoRA adapters; its value is the present."""
        found = [(index, state.adapters) for (_, index), at in standings.items() for state in at.states if state.adapters]
        if not found or self._families.cache_labels is None:
            return
        name = f"{self._families.prefix}lora_requests_info"
        yield from _head(name, "gauge", "LoRA adapters with running and with waiting requests.")
        for index, reading in found:
            labels = {
                "max_lora": str(reading.most),
                "running_lora_adapters": ",".join(reading.running),
                "waiting_lora_adapters": ",".join(reading.waiting),
            }
            which = {"engine": str(index)} if len(found) > 1 else {}
            yield f"{name}{{{_labels(which | labels)}}} {time.time()}"

    def _engine(self, model: str | None, place: Place) -> EngineMetrics:
        engine = self._model(model), place
        found = self._engines.get(engine)
        if found is None:
            found = self._engines[engine] = EngineMetrics(self._families.measures)
        return found

    def _model(self, model: str | None) -> str:
        return model or self._names()[0]


def pacing_exposition(pacing: Pacing) -> str:
    """Return the server's own use of resources, in Prometheus's text format."""
    lines: list[str] = []
    for name, help, histogram in (
        ("front_end_seconds", "From the arrival of a request until the simulated cluster has it.", pacing.front_end),
        ("token_late_seconds", "From the time at which a token is due until it is written.", pacing.lags),
    ):
        full = f"llmirage:{name}"
        lines += [f"# HELP {full} {help} Real time.", f"# TYPE {full} histogram"]
        lines += [f'{full}_bucket{{clock="wall",le="{bound}"}} {histogram.up_to(bound):.1f}' for bound in _OWN_S]
        lines += [f'{full}_bucket{{clock="wall",le="+Inf"}} {histogram.count:.1f}']
        lines += [f'{full}_count{{clock="wall"}} {histogram.count:.1f}', f'{full}_sum{{clock="wall"}} {histogram.sum_s!r}']
    return "\n".join(lines) + "\n"


def gateway_exposition(gateway: Gateway, now: float, first_model: str) -> str:
    """Return the queues of a gateway, as pkg/epp/metrics of llm-d-router names them: in the old way and in the new one."""
    readings, lines = gateway.readings(now), list[str]()
    for prefix in ("inference_extension", "llm_d_epp") if readings else ():
        size, held, saturation, stay = (
            f"{prefix}_flow_control_{name}"
            for name in ("queue_size", "queue_bytes", "pool_saturation", "request_queue_duration_seconds")
        )
        for name, help, place in ((size, "Requests", 0), (held, "Bytes of requests", 1)):
            lines += _head(name, "gauge", f"{help} that wait at the router.")
            for reading in readings:
                for (fairness_id, priority), waiting in reading.waiting.items():
                    of_flow = _flow_labels(fairness_id, priority, reading.model or first_model)
                    lines.append(f"{name}{{{_labels(of_flow)}}} {waiting[place]:.1f}")
        lines += _head(saturation, "gauge", "Saturation of the instances: from 1 on requests wait at the router.")
        for reading in readings:
            of_pool = _labels({"inference_pool": reading.model or first_model, "stage": "effective"})
            lines.append(f"{saturation}{{{of_pool}}} {reading.saturation!r}")
        lines += _head(stay, "histogram", "Time from the arrival at the router's queue to the outcome.")
        for (model, fairness_id, priority, outcome), stays in gateway.durations.items():
            of_stay = _labels(_flow_labels(fairness_id, priority, model or first_model) | {"outcome": outcome})
            lines += [f'{stay}_bucket{{{of_stay},le="{bound}"}} {stays.up_to(bound):.1f}' for bound in _STAY_S]
            lines.append(f'{stay}_bucket{{{of_stay},le="+Inf"}} {stays.count:.1f}')
            lines += [f"{stay}_count{{{of_stay}}} {stays.count:.1f}", f"{stay}_sum{{{of_stay}}} {stays.sum_s!r}"]
    return "".join([line + "\n" for line in lines])


def scaling_exposition(scaling: Scaling, accelerators: Mapping[str, str]) -> str:
    """Return the latest decision on each pool under the names that llm-d's workload-variant-autoscaler has for HPA and KEDA.

    accelerators: by pool.
    """
    lines = list[str]()
    gauges: Mapping[str, tuple[str, Callable[[ScalingDecision], float]]] = {
        "desired_replicas": ("Desired number of replicas.", lambda decided: decided.desired),
        "current_replicas": ("Current number of replicas.", lambda decided: decided.current),
        "desired_ratio": ("Desired replicas over current ones.", lambda decided: decided.desired / (decided.current or 1)),
    }
    for name, (about, value) in gauges.items() if scaling.latest else ():
        lines += _head(f"wva_{name}", "gauge", about)
        for pool, decided in scaling.latest.items():
            of_variant = _labels({"variant_name": pool, "namespace": "llmirage", "accelerator_type": accelerators[pool]})
            lines.append(f"wva_{name}{{{of_variant}}} {float(value(decided))}")
    return "".join([line + "\n" for line in lines])


def _flow_labels(fairness_id: str, priority: int, model: str) -> dict[str, str]:
    found = {"fairness_id": fairness_id or "default-flow", "priority": str(priority), "inference_pool": model}
    return found | {"model_name": model, "target_model_name": model}


def _own_lines(states: Mapping[Engine, InstanceSnapshot], errors: int, held_bytes: Mapping[str, int]) -> Iterator[str]:
    """Yield the lines of families that no engine has a name for."""
    yield from _head("llmirage:instances", "gauge", "Instances by what they are: up, starting, draining or down.")
    found = Counter((model, state.state) for (model, _), state in states.items() if not state.rank)
    for model in dict.fromkeys(model for model, _ in states):
        for phase in ("up", "starting", "draining", "down"):
            yield f"llmirage:instances{{{_labels({'model_name': model, 'state': phase})}}} {float(found[model, phase])}"
    help = "Requests that failed inside the server; its log has tracebacks."
    yield from _head("llmirage:internal_errors_total", "counter", help)
    yield f"llmirage:internal_errors_total {errors:.1f}"
    yield from _head(
        "llmirage:held_bytes", "gauge", "What the server keeps beside bodies of requests, in bytes, by what keeps it."
    )
    for holder, held in held_bytes.items():
        yield f'llmirage:held_bytes{{holder="{holder}"}} {float(held)}'
    yield from _tier_lines(states)


def _tier_lines(states: Mapping[Engine, InstanceSnapshot]) -> Iterator[str]:
    """Yield the lines of instances that keep KV outside their GPUs, or share a store of it."""
    if not any(state.tiers for state in states.values()):
        return
    for name, help in (
        ("hit", "Prompt tokens found there, beyond what the GPUs and nearer tiers had."),
        ("loaded", "Tokens of KV that came from there."),
    ):
        full = f"llmirage:kv_tier_{name}_tokens_total"
        yield from _head(full, "counter", help)
        for (model, index), state in states.items():
            for tier in state.tiers:
                labels = _labels({"model_name": model, "engine": str(index), "tier": tier.name})
                yield f"{full}{{{labels}}} {float(tier.hit_tokens if name == 'hit' else tier.loaded_tokens)}"


def _place(request: Request) -> Place:
    """Return the rank that a request counts for, also one that no instance has taken."""
    index = max(request.instance, request.only_instance)
    return (index, request.at_rank) if index >= 0 else (0, 0)


def _tokens_per_s(request: Request, now_s: float) -> float:
    """Return the tokens per second of a request since its first token; 0 for one that is done."""
    done = request.produced >= request.output_tokens
    taken_s = now_s - request.first_token_s
    return (request.produced - 1) / taken_s if taken_s > 0 and not done else 0.0


def _sample_lines(prefix: str, family: MetricFamily, group: Iterable[tuple[dict[str, str], Standing]]) -> Iterator[str]:
    name = prefix + family.name
    shown = [(labels, at) for labels, at in group if at.speculates or not family.of_drafts]
    if not shown and family.of_drafts:
        return
    yield from _head(name, family.kind, family.help)
    for labels, at in shown:
        if family.kind == "gauge" and not at.states:
            continue
        value = family.value(at)
        if isinstance(value, Mapping):
            for key, each in value.items():
                yield f"{name}{{{_labels({family.label: key, **labels})}}} {float(each)}"
        else:
            yield f"{name}{{{_labels(labels)}}} {float(value)}"


def _histogram_lines(
    prefix: str, family: HistogramFamily, group: Iterable[tuple[dict[str, str], Standing]]
) -> Iterator[str]:
    name = prefix + family.name
    yield from _head(name, "histogram", family.help)
    for labels, at in group:
        plain, histogram = _labels(labels), at.histogram(family.measure, family.bounds)
        for bound, count in histogram.buckets():
            yield f'{name}_bucket{{{plain},le="{bound}"}} {count:.1f}'
        yield f"{name}_count{{{plain}}} {histogram.count:.1f}"
        yield f"{name}_sum{{{plain}}} {float(histogram.sum)!r}"


def _head(name: str, kind: str, help: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
