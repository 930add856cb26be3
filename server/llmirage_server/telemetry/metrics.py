"""The metrics of the simulated cluster under vLLM's names, for /metrics.

Nothing is counted while tokens flow: a request is counted when it ends, from the times that the cluster wrote; requests in
flight are read at each scrape. Times are the cluster's, so at any `--speed` those of a real one; but for two histograms of
what this server itself takes, in real time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from llmirage_server.cluster.request import Request
from llmirage_server.cluster.snapshots import InstanceSnapshot
from llmirage_server.drivers.pacing import Pacing


class PrometheusHistogram:
    """Counts by bucket. bounds: upper bounds of the buckets, ascending; one more bucket follows the last."""

    __slots__ = ("_bounds", "_counts", "count", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self.count += times
        self.sum += value * times

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Each bound as Prometheus writes it, and the number of values up to it."""
        total = 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            total += count
            yield str(float(bound)), total
        yield "+Inf", self.count


def one_two_five(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... up to `most`."""
    bounds: list[int] = []
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > most:
                return bounds
            bounds.append(digit * power)
        power *= 10


# vllm/v1/metrics/loggers.py (v0.11): the buckets of its histograms.
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
           160.0, 640.0, 2560.0)  # fmt: skip
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
              1920.0, 7680.0)  # fmt: skip
_TOKENS = tuple(one_two_five(1_000_000))

_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "time_to_first_token_seconds": ("Time to first token in seconds.", _TTFT_S),
    "inter_token_latency_seconds": ("Inter-token latency in seconds; each token counts with its request's mean.", _ITL_S),
    "request_time_per_output_token_seconds": ("Mean time per output token of a request in seconds.", _ITL_S),
    "e2e_request_latency_seconds": ("End-to-end latency of a request in seconds.", _REQUEST_S),
    "request_queue_time_seconds": ("Time of a request before its first step in seconds.", _REQUEST_S),
    "request_prefill_time_seconds": ("Time of a request from its first step to its first token in seconds.", _REQUEST_S),
    "request_decode_time_seconds": ("Time of a request from its first to its last token in seconds.", _REQUEST_S),
    "request_prompt_tokens": ("Prompt tokens of a request.", _TOKENS),
    "request_generation_tokens": ("Generated tokens of a request.", _TOKENS),
}
_COUNTERS = {
    "prompt_tokens": "Prompt tokens of requests.",
    "generation_tokens": "Generated tokens.",
    "num_preemptions": "Preemptions.",
    "prefix_cache_queries": "Prefix cache queries, in tokens.",
    "prefix_cache_hits": "Prefix cache hits, in tokens.",
}
_GAUGES = {
    "num_requests_running": "Requests in the batch of the engine.",
    "num_requests_waiting": "Requests that wait to be processed.",
    "kv_cache_usage_perc": "Share of the KV memory in use: 1 is all of it.",
}
_OWN_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_REASONS = ("stop", "length", "abort", "error")

Engine = tuple[str, int]  # model, index of the instance


class EngineMetrics:
    """The counters of one instance: requests that ended there."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(_REASONS, 0)
        self.histograms = {name: PrometheusHistogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}

    def ended(self, request: Request, reason: str) -> None:
        add, produced = self.histograms, request.produced
        self.finished[reason] += 1
        self.prompt_tokens += request.prompt_tokens
        self.generation_tokens += produced
        if math.isnan(request.first_token_s):
            return
        add["time_to_first_token_seconds"].add(request.first_token_s - request.arrival_s)
        if not math.isnan(request.admitted_s):
            add["request_queue_time_seconds"].add(max(0.0, request.admitted_s - request.arrival_s))
            add["request_prefill_time_seconds"].add(max(0.0, request.first_token_s - request.admitted_s))
        if reason in ("abort", "error"):
            return
        decode_s = request.finished_s - request.first_token_s
        if produced > 1:
            each_s = decode_s / (produced - 1)
            add["inter_token_latency_seconds"].add(each_s, produced - 1)
            add["request_time_per_output_token_seconds"].add(each_s)
        add["request_decode_time_seconds"].add(decode_s)
        add["e2e_request_latency_seconds"].add(request.finished_s - request.arrival_s)
        add["request_prompt_tokens"].add(request.prompt_tokens)
        add["request_generation_tokens"].add(produced)


class PrometheusMetrics:
    """The metrics of all instances."""

    def __init__(self, names: Callable[[], Sequence[str]]) -> None:
        """names: of the served models; the first stands for instances that serve any."""
        self._names = names
        self._engines: dict[Engine, EngineMetrics] = {}
        self.errors = 0  # of the server's own code

    def count_error(self) -> None:
        """Count a request that failed inside the server."""
        self.errors += 1

    def ended(self, request: Request, finish_reason: str) -> None:
        """Count a request that has ended. finish_reason: of its complete reply."""
        if request.failed:
            reason = "error"
        elif request.produced < request.output_tokens:
            reason = "abort"
        else:
            reason = "length" if finish_reason == "length" else "stop"
        self._engine(request.model, max(0, request.instance)).ended(request, reason)

    @property
    def generated_tokens(self) -> int:
        """Of requests that have ended."""
        return sum([engine.generation_tokens for engine in self._engines.values()])

    def exposition(
        self, instances: Iterable[InstanceSnapshot], under_way: Iterable[Request], held_bytes: Mapping[str, int]
    ) -> str:
        """All metrics in Prometheus's text format 0.0.4. under_way: requests that have not ended. held_bytes: by holder."""
        states = {(self._model(state.model), state.index): state for state in instances}
        for model, index in states:
            self._engine(model, index)
        begun = {engine: [0, 0] for engine in self._engines}
        for request in under_way:
            tokens = begun.setdefault((self._model(request.model), max(0, request.instance)), [0, 0])
            tokens[0] += request.prompt_tokens if not math.isnan(request.first_token_s) else 0
            tokens[1] += request.produced
        return "\n".join(self._lines(states, begun, held_bytes)) + "\n"

    def _lines(
        self, states: dict[Engine, InstanceSnapshot], begun: dict[Engine, list[int]], held_bytes: Mapping[str, int]
    ) -> Iterator[str]:
        for name, help in _GAUGES.items():
            yield from _head(name, "gauge", help)
            for engine, state in states.items():
                yield f"vllm:{name}{{{_labels(engine)}}} {_gauge(name, state)}"
        yield "# HELP llmirage:instances Instances by what they are: up, starting, draining or down."
        yield "# TYPE llmirage:instances gauge"
        found = Counter((model, state.state) for (model, _), state in states.items())
        for model in dict.fromkeys(model for model, _ in states):
            for phase in ("up", "starting", "draining", "down"):
                yield f'llmirage:instances{{model_name="{_escaped(model)}",state="{phase}"}} {float(found[model, phase])}'
        yield "# HELP llmirage:internal_errors_total Requests that failed inside the server; its log has tracebacks."
        yield "# TYPE llmirage:internal_errors_total counter"
        yield f"llmirage:internal_errors_total {self.errors:.1f}"
        yield "# HELP llmirage:held_bytes What the server keeps beyond requests, in bytes, by what keeps it."
        yield "# TYPE llmirage:held_bytes gauge"
        for holder, held in held_bytes.items():
            yield f'llmirage:held_bytes{{holder="{holder}"}} {float(held)}'
        for name, help in _COUNTERS.items():
            yield from _head(f"{name}_total", "counter", help)
            for engine, metrics in self._engines.items():
                value = _counter(name, metrics, begun.get(engine, [0, 0]), states.get(engine))
                yield f"vllm:{name}_total{{{_labels(engine)}}} {value:.1f}"
        yield from _head("request_success_total", "counter", "Requests by what ended them.")
        for engine, metrics in self._engines.items():
            for reason, count in metrics.finished.items():
                yield f'vllm:request_success_total{{finished_reason="{reason}",{_labels(engine)}}} {count:.1f}'
        for name, (help, _) in _HISTOGRAMS.items():
            yield from _head(name, "histogram", help)
            for engine, metrics in self._engines.items():
                labels, histogram = _labels(engine), metrics.histograms[name]
                for bound, count in histogram.buckets():
                    yield f'vllm:{name}_bucket{{{labels},le="{bound}"}} {count:.1f}'
                yield f"vllm:{name}_count{{{labels}}} {histogram.count:.1f}"
                yield f"vllm:{name}_sum{{{labels}}} {histogram.sum!r}"

    def _engine(self, model: str | None, index: int) -> EngineMetrics:
        engine = self._model(model), index
        found = self._engines.get(engine)
        if found is None:
            found = self._engines[engine] = EngineMetrics()
        return found

    def _model(self, model: str | None) -> str:
        return model or self._names()[0]


def pacing_exposition(pacing: Pacing) -> str:
    """What the server itself takes, in Prometheus's text format."""
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


def _gauge(name: str, state: InstanceSnapshot) -> float:
    if name == "kv_cache_usage_perc":
        return state.kv_used_tokens / state.kv_total_tokens if state.kv_total_tokens else 0.0
    return float(state.running if name == "num_requests_running" else state.waiting)


def _counter(name: str, metrics: EngineMetrics, begun: Sequence[int], state: InstanceSnapshot | None) -> int:
    if name == "prompt_tokens":
        return metrics.prompt_tokens + begun[0]
    if name == "generation_tokens":
        return metrics.generation_tokens + begun[1]
    if state is None:
        return 0
    known = {
        "num_preemptions": state.preemptions,
        "prefix_cache_queries": state.prefix_query_tokens,
        "prefix_cache_hits": state.prefix_hit_tokens,
    }
    return known[name]


def _head(name: str, kind: str, help: str) -> Iterator[str]:
    yield f"# HELP vllm:{name} {help}"
    yield f"# TYPE vllm:{name} {kind}"


def _labels(engine: Engine) -> str:
    return f'engine="{engine[1]}",model_name="{_escaped(engine[0])}"'


def _escaped(model: str) -> str:
    return model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
