"""The summary of a simulation for people and scripts: the output of `llmirage simulate --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmirage_client.measure.breakdowns import RequestGroup
from llmirage_client.measure.metrics import Metrics
from llmirage_client.measure.slo import STATISTICS
from llmirage_shared.statistics import Summary

if TYPE_CHECKING:
    from llmirage_client.simulate.bill import Bill
    from llmirage_client.simulate.cluster_series import Totals
    from llmirage_client.simulate.saturation import InstanceQueue

SHOWN_STATISTICS = ("mean", *(name for name in STATISTICS if name[0] == "p"), "min", "max")
_TIMES = {
    "ttft_ms": "time_to_first_token",
    "tpot_ms": "inter_token_latency",
    "itl_ms": "inter_chunk_latency",
    "latency_ms": "request_latency",
}


def summary_of(metrics: Metrics, totals: Totals, bill: Bill, queues: Sequence[InstanceQueue]) -> dict[str, Any]:
    """Return plain figures by name, for JSON; None where there is none.

    ttft_ms, tpot_ms, itl_ms, latency_ms: every statistic that an objective may name; tpot_ms is the mean gap of each
    request's tokens, itl_ms every single gap. saturated, queue, queues: see simulate.saturation. kv_loaded_tokens: by
    tier, where there are any.
    """
    tiers = {"kv_loaded_tokens": dict(totals.kv_loaded)} if totals.kv_loaded else {}
    return figures_of_run(metrics) | {
        "preemptions": int(totals.preemptions.sum()),
        "saturated": queues[0].overloaded is not None,
        "queue": queues[0].state,
        "queues": [_queue_json(queue, totals) for queue in queues[1:]],
        "utilisation": float(totals.utilisation.mean()),
        "gpus": bill.gpus,
        "instances_ready": totals.mean_ready,
        "instances_most": totals.most_ready,
        "output_tok_per_s_per_gpu": metrics.whole_run.get("output_token_throughput", 0.0) / bill.gpus,
        "gpu_hours": bill.gpu_hours,
        "energy_kwh_at_tdp": bill.energy_kwh,
        "energy_kwh_with_hosts": bill.energy_kwh_with_hosts,
        "energy_kwh_with_network": bill.energy_kwh_with_network,
        "usd_per_m_output_tokens": bill.usd_per_m_output_tokens,
        "step_shares": totals.step_shares,
        **tiers,
    }


def _queue_json(queue: InstanceQueue, totals: Totals) -> dict[str, Any]:
    first_s, worst_s, last_s = queue.waited_s
    return {
        "instance": queue.instance,
        "state": queue.state,
        "overloaded": queue.overloaded,
        "requests": queue.requests,
        "waited_first_s": first_s,
        "waited_worst_s": worst_s,
        "waited_last_s": last_s,
        "waiting_most": int(totals.most[1, queue.instance]) if queue.instance is not None else 0,
    }


def figures_of_run(metrics: Metrics) -> dict[str, Any]:
    """Return the figures that runs against endpoints have, too."""
    whole = metrics.whole_run
    cached = whole.get("overall_usage_prompt_cache_read_pct")
    return _times(metrics.per_request) | {
        "output_tok_per_s": whole.get("output_token_throughput", 0.0),
        "total_tok_per_s": whole.get("total_token_throughput", 0.0),
        "requests": int(whole.get("request_count", 0)),
        "failed_requests": int(whole.get("error_request_count", 0)),
        "duration_s": whole.get("benchmark_duration", 0.0),
        "request_per_s": whole.get("request_throughput", 0.0),
        "goodput_per_s": whole.get("goodput"),
        "cached_token_share": None if cached is None else cached / 100.0,
        **_tenants(metrics),
    }


def _times(per_request: Mapping[str, Summary]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, tag in _TIMES.items():
        found = per_request.get(tag)
        figures[name] = found and {statistic: getattr(found, STATISTICS[statistic]) for statistic in SHOWN_STATISTICS}
    return figures


def _tenants(metrics: Metrics) -> dict[str, Any]:
    """Return figures by tenant, class and priority, where there are several of them, and the fairness among tenants."""
    found: dict[str, Any] = {
        f"by_{kind}": {one.name: _group(one, sum(other.tokens for other in several)) for one in several}
        for kind, several in metrics.by_tenants.items()
    }
    return found | ({"fairness": dict(metrics.fairness)} if "tenant" in metrics.by_tenants else {})


def _group(one: RequestGroup, tokens: float) -> dict[str, Any]:
    return {
        "requests": one.ok,
        "failed_requests": one.failed,
        **{name: times for name, times in _times(one.per_request).items() if name != "itl_ms"},
        "token_share": one.tokens / tokens if tokens else None,
        "good_request_fraction": one.good_share,
    }
