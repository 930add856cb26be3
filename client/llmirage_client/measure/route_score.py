"""How well requests were routed: cached prompt tokens, the balance of instances, and times to the first token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmirage_client.measure.record import Record
from llmirage_client.measure.usage import usage_counts

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
        counts = usage_counts(exchange.usage or {})
        prompt, hit = counts.get("usage_prompt_tokens", 0), counts.get("usage_prompt_cache_read_tokens", 0)
        prompts, cached = prompts + prompt, cached + hit
        if exchange.instance is not None and 0 <= exchange.instance < instances:
            placed += 1
            computed[exchange.instance] += prompt - hit + counts.get("usage_completion_tokens", 0)
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


def against(score: RouteScore, best: RouteScore) -> dict[str, Any]:
    """Return how many times the best figures a score's times to the first token are; None: not known."""
    if score.ttft_ms is None or best.ttft_ms is None:
        return {"ttft_over_best": None}
    return {"ttft_over_best": {name: score.ttft_ms[name] / value for name, value in best.ttft_ms.items() if value}}
