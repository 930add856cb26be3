"""The metrics of one request, as its line in the records file has them. The same formulas on arrays: request_columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmirage_client.measure.record import Record
from llmirage_client.measure.usage import usage_counts


def request_metrics(record: Record, speed: float = 1.0) -> dict[str, float]:
    """Every scalar metric that this request has, by tag; times in ms and rates per second of cluster time.

    Only a request that succeeded has any. A metric without a basis is left out, never zero: those of streaming when the
    reply came in one piece, the per-token ones when it has fewer than two tokens, usage_* when the server gave no usage.
    """
    if not record.ok:
        return {}
    exchange = record.exchange
    metrics: dict[str, float] = {}
    usage = usage_counts(exchange.usage) if exchange.usage else {}

    arrivals = exchange.token_s
    latency_s = (arrivals[-1] - exchange.start_s) * speed if arrivals else None
    ttft_s = (arrivals[0] - exchange.start_s) * speed if arrivals and exchange.streamed else None
    if ttft_s is not None:
        metrics["time_to_first_token"] = ttft_s * 1e3
        if len(arrivals) > 1:
            metrics["time_to_second_token"] = (arrivals[1] - arrivals[0]) * speed * 1e3
        if exchange.first_output_s is not None:
            metrics["time_to_first_output_token"] = (exchange.first_output_s - exchange.start_s) * speed * 1e3
    if latency_s is not None:
        metrics["request_latency"] = latency_s * 1e3
        if ttft_s is not None and len(arrivals) > 1:
            metrics["decode_duration"] = (latency_s - ttft_s) * 1e3

    isl = usage.get("usage_prompt_tokens", record.input_tokens)
    osl = usage.get("usage_completion_tokens", record.output_tokens)
    if osl is None and exchange.streamed:
        osl = len(arrivals)
    if latency_s is not None and ttft_s is not None and osl is not None and osl > 1 and len(arrivals) > 1:
        itl_s = (latency_s - ttft_s) / (osl - 1)
        metrics["inter_token_latency"] = itl_s * 1e3
        if itl_s > 0:
            metrics["output_token_throughput_per_user"] = 1 / itl_s
    if osl is not None and latency_s:
        metrics["e2e_output_token_throughput"] = osl / latency_s
    if isl is not None and ttft_s:
        metrics["prefill_throughput_per_user"] = isl / ttft_s

    if isl is not None:
        metrics["input_sequence_length"] = isl
    if osl is not None:
        metrics["output_sequence_length"] = osl
        reasoning = usage.get("usage_reasoning_tokens", 0)
        metrics["output_token_count"] = max(osl - reasoning, 0)
        if reasoning:
            metrics["reasoning_token_count"] = reasoning
        if record.output_tokens_asked:
            metrics["osl_mismatch_diff_pct"] = 100 * (osl - record.output_tokens_asked) / record.output_tokens_asked
    metrics.update(usage)
    return metrics


def chunk_gaps_ms(record: Record, speed: float = 1.0) -> npt.NDArray[np.float64]:
    """inter_chunk_latency: the gaps between a streamed reply's content events, ms of cluster time, shape (events - 1,)."""
    if not record.ok or not record.exchange.streamed or len(record.exchange.token_s) < 2:
        return np.empty(0)
    return np.diff(np.array(record.exchange.token_s)) * (speed * 1e3)
