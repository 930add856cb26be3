"""A line of profile_export.jsonl back into a Record: ours, or one that AIPerf wrote."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from llmirage_client.measure.columns import BRANCH_MODES
from llmirage_client.measure.record import Exchange, Record, RequestError
from llmirage_client.measure.usage import USAGE_TAGS, usage_of

_IN_MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3, "µs": 1e-3, "ns": 1e-6}


class RecordLineError(ValueError):
    """The line is not that of a request; the message says why."""


def record_of(line: Mapping[str, Any], start_unix_ns: int, speed: float) -> Record:
    """The record that made the line, on a run clock that starts at start_unix_ns. Raises RecordLineError.

    Texts are not in the file; everything that metrics are computed from is, to the nanosecond.
    """
    metadata, metrics = line.get("metadata"), line.get("metrics") or {}
    if not isinstance(metadata, dict) or not isinstance(metrics, dict):
        raise RecordLineError("it has no metadata of a request")
    own = line.get("llmirage")
    own = own if isinstance(own, dict) else {}

    def moment_s(key: str) -> float | None:
        value = metadata.get(key)
        return (value - start_unix_ns) / (1e9 * speed) if isinstance(value, int) and not isinstance(value, bool) else None

    start_s = moment_s("request_start_ns")
    if start_s is None:
        raise RecordLineError("it has no request_start_ns")
    issued_s = moment_s("credit_issued_ns")
    correlation_id = str(metadata.get("x_correlation_id") or metadata.get("x_request_id") or metadata.get("session_num"))
    exchange = Exchange(
        start_s=start_s,
        ack_s=moment_s("request_ack_ns"),
        end_s=moment_s("request_end_ns"),
        status=_whole(own.get("status")),
        streamed=own.get("streamed", "time_to_first_token" in metrics or not metrics) is True,
        finish_reason=own.get("finish_reason"),
        error=_error(line.get("error")),
        skipped_events=_whole(own.get("skipped_events")) or 0,
        retries=_whole(own.get("retries")) or 0,
        url=own.get("url"),
        other_model=_names(own.get("other_model")),
    )
    record = Record(
        session_num=_whole(metadata.get("session_num")) or 0,
        conversation_id=str(metadata.get("conversation_id") or ""),
        turn_index=_whole(metadata.get("turn_index")) or 0,
        request_id=str(metadata.get("x_request_id") or ""),
        correlation_id=correlation_id,
        root_correlation_id=str(metadata.get("root_correlation_id") or correlation_id),
        parent_correlation_id=metadata.get("parent_correlation_id"),
        agent_depth=_whole(metadata.get("agent_depth")) or 0,
        issued_s=start_s if issued_s is None else issued_s,
        exchange=exchange,
        phase=str(metadata.get("benchmark_phase") or "profiling"),
        cancelled=metadata.get("was_cancelled") is True,
        input_tokens_asked=_whole(own.get("input_tokens_asked")),
        output_tokens_asked=_whole(own.get("output_tokens_asked")),
        parent_turn_index=_whole(own.get("parent_turn_index")),
        turns=_whole(own.get("turns")),
        joined=tuple(map(str, own.get("joined", ()))),
    )
    if own.get("branch_mode") in BRANCH_MODES:
        record.branch_mode = own["branch_mode"]
    elif record.parent_correlation_id is not None or record.agent_depth:
        record.branch_mode = "spawn"  # AIPerf does not say; only a fork would continue its parent
    _take_measured(record, metrics, own, speed)
    return record


def _take_measured(record: Record, metrics: Mapping[str, Any], own: Mapping[str, Any], speed: float) -> None:
    exchange = record.exchange
    counts = {tag: value for tag in USAGE_TAGS if (value := _whole(_value(metrics, tag))) is not None}
    exchange.usage = usage_of(counts) or None
    record.input_tokens = _whole(own.get("input_tokens"))
    record.output_tokens = _whole(own.get("output_tokens"))
    # Without the server's count the lengths are the client's; those of AIPerf always are, unless it was told otherwise.
    if record.input_tokens is None and (not own or "usage_prompt_tokens" not in counts):
        record.input_tokens = _whole(_value(metrics, "input_sequence_length"))
    if record.output_tokens is None and (not own or "usage_completion_tokens" not in counts):
        record.output_tokens = _whole(_value(metrics, "output_sequence_length"))
    first_ms, latency_ms = _ms(metrics, "time_to_first_token"), _ms(metrics, "request_latency")
    output_ms = _ms(metrics, "time_to_first_output_token")
    if output_ms is not None:
        exchange.first_output_s = exchange.start_s + output_ms / (1e3 * speed)
    if first_ms is None:
        exchange.token_s = [] if latency_ms is None else [exchange.start_s + latency_ms / (1e3 * speed)]
        return
    gaps = _value(metrics, "inter_chunk_latency")
    factor = _IN_MS.get(_unit(metrics, "inter_chunk_latency"), 1.0) / (1e3 * speed)
    first_s = exchange.start_s + first_ms / (1e3 * speed)
    if isinstance(gaps, list):
        exchange.token_s = list(accumulate([gap * factor for gap in gaps], initial=first_s))
    else:
        exchange.token_s = [first_s]
    if latency_ms is not None:
        last_s = exchange.start_s + latency_ms / (1e3 * speed)
        if len(exchange.token_s) > 1:
            exchange.token_s[-1] = last_s  # free of the roundings of all gaps
        elif last_s > first_s:
            exchange.token_s.append(last_s)


def _names(value: Any) -> tuple[str, str] | None:
    return (str(value[0]), str(value[1])) if isinstance(value, list) and len(value) == 2 else None


def _error(value: Any) -> RequestError | None:
    if not isinstance(value, dict):
        return None
    return RequestError(_whole(value.get("code")), str(value.get("type") or "error"), str(value.get("message") or ""))


def _value(metrics: Mapping[str, Any], tag: str) -> Any:
    entry = metrics.get(tag)
    return entry.get("value") if isinstance(entry, dict) else None


def _unit(metrics: Mapping[str, Any], tag: str) -> str:
    entry = metrics.get(tag)
    return str(entry.get("unit")) if isinstance(entry, dict) else ""


def _ms(metrics: Mapping[str, Any], tag: str) -> float | None:
    value = _value(metrics, tag)
    return value * _IN_MS.get(_unit(metrics, tag), 1.0) if isinstance(value, (int, float)) else None


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value) else None
