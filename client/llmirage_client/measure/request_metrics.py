"""The metrics of requests: of one when its line is written, and of all as arrays when the run is over.

The formulas stand once, in `_formulas`; docs/metrics.md explains them. They use the operators that floats and arrays share.
A value that is not known is NaN, so that no formula needs a branch for it. `_OneRequest` and `_ManyRequests` hold the few
operations that floats and arrays do not share.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from llmirage_client.measure.catalogue import PER_REQUEST, SHORT_NAMES, frame_name, own_metrics
from llmirage_client.measure.columns import Columns
from llmirage_client.measure.record import USAGE_TAGS, Record, usage_counts
from llmirage_shared.extensions import error_text
from llmirage_shared.statistics import Bools, Floats, first_known, ratio

logger = logging.getLogger("llmirage")

_NAN = math.nan
Value = TypeVar("Value", float, Floats)


class _Arithmetic(Protocol[Value]):
    def where(self, chosen: Any, values: Value) -> Value:
        """Return the values where chosen, NaN elsewhere."""
        ...

    def first_known(self, *choices: Value | None) -> Value:
        """Return the first choice that is neither None nor NaN."""
        ...

    def ratio(self, upper: Value | float, lower: Value) -> Value:
        """Return upper / lower; NaN where lower is not above 0."""
        ...

    def less(self, value: Value, part: Value) -> Value:
        """Return value - part, at least 0; a part that is not known counts as 0."""
        ...


def _formulas(
    do: _Arithmetic[Value],
    speed: float,
    start_s: Value,
    body_s: Value,
    first_s: Value,
    second_s: Value,
    last_s: Value,
    end_s: Value,
    first_output_s: Value,
    events: Value,
    input_tokens: Value,
    output_tokens: Value,
    asked_tokens: Value,
    usage: Mapping[str, Value],
) -> dict[str, Value]:
    """Return values by metric tag: times in ms, rates per second of cluster time.

    The arguments are those of Columns. body_s, last_s and token counts are NaN for a request that failed; first_s, second_s,
    first_output_s and events also for a reply that was not streamed.
    """
    latency_s, ttft_s = (last_s - start_s) * speed, (first_s - start_s) * speed
    decode_s = do.where(events > 1, latency_s - ttft_s)
    isl = do.first_known(usage.get("usage_prompt_tokens"), input_tokens)
    osl = do.first_known(usage.get("usage_completion_tokens"), output_tokens, events)
    itl_s = do.ratio(decode_s, osl - 1)
    full_decode_s = do.where(events > 1, (end_s - first_s) * speed)
    full_itl_s = do.ratio(full_decode_s, osl - 1)
    ms = speed * 1e3
    values = {
        "time_to_first_token": ttft_s * 1e3,
        "time_to_second_token": (second_s - first_s) * ms,
        "time_to_first_output_token": (first_output_s - start_s) * ms,
        "request_latency": latency_s * 1e3,
        "decode_duration": decode_s * 1e3,
        "full_decode_duration": full_decode_s * 1e3,
        "inter_token_latency": itl_s * 1e3,
        "full_response_inter_token_latency": full_itl_s * 1e3,
        "output_token_throughput_per_user": do.ratio(1.0, itl_s),
        "full_response_output_token_throughput_per_user": do.ratio(1.0, full_itl_s),
        "e2e_output_token_throughput": do.ratio(osl, latency_s),
        "prefill_throughput_per_user": do.ratio(isl, ttft_s),
        "input_sequence_length": isl,
        "output_sequence_length": osl,
        "output_token_count": osl,
        "http_req_waiting": (body_s - start_s) * ms,
        "http_req_receiving": (end_s - body_s) * ms,
        "http_req_duration": (body_s - start_s + (end_s - body_s)) * ms,
        "osl_mismatch_diff_pct": 100 * do.ratio(osl - asked_tokens, asked_tokens),
    }
    reasoning = usage.get("usage_reasoning_tokens")
    if reasoning is not None:
        values["output_token_count"] = do.less(osl, reasoning)
        values["reasoning_token_count"] = do.where((reasoning > 0) & (osl == osl), reasoning)  # NaN is not itself
    return values


class _OneRequest:
    """Floats; ints stay ints, as token counts are written."""

    @staticmethod
    def where(chosen: Any, values: float) -> float:
        return values if chosen else _NAN

    @staticmethod
    def first_known(*choices: float | None) -> float:
        for value in choices:
            if value is not None and value == value:
                return value
        return _NAN

    @staticmethod
    def ratio(upper: float, lower: float) -> float:
        return upper / lower if lower > 0 else _NAN

    @staticmethod
    def less(value: float, part: float) -> float:
        return max(value - part, 0)


def request_metrics(record: Record, speed: float = 1.0) -> dict[str, float]:
    """Return every scalar metric that this request has, by tag; times in ms and rates per second of cluster time.

    Only a request that succeeded has any. A metric without a basis is left out, never zero: those of streaming when the
    reply came in one piece, the per-token ones when it has fewer than two tokens, usage_* when the server gave no usage.
    """
    if not record.ok:
        return {}
    exchange = record.exchange
    usage = usage_counts(exchange.usage) if exchange.usage else {}
    stamps, streamed = exchange.token_s, exchange.streamed
    found = _formulas(
        _OneRequest,
        speed,
        exchange.start_s,
        _NAN if exchange.body_s is None else exchange.body_s,
        stamps[0] if streamed and stamps else _NAN,
        stamps[1] if streamed and len(stamps) > 1 else _NAN,
        stamps[-1] if stamps else _NAN,
        _NAN if exchange.end_s is None else exchange.end_s,
        _NAN if exchange.first_output_s is None or not streamed else exchange.first_output_s,
        len(stamps) if streamed else _NAN,
        _NAN if record.input_tokens is None else record.input_tokens,
        _NAN if record.output_tokens is None else record.output_tokens,
        _NAN if record.output_tokens_asked is None else record.output_tokens_asked,
        usage,
    )
    metrics = {tag: value for tag, value in found.items() if value == value}
    metrics.update(usage)
    return metrics


def chunk_gaps_of(record: Record, speed: float = 1.0) -> Floats:
    """Return inter_chunk_latency.

    The gaps between a streamed reply's content events, ms of cluster time, shape (events - 1,).
    """
    if not record.ok or not record.exchange.streamed:
        return np.empty(0)
    return _gaps_ms(np.array(record.exchange.token_s), speed)


class _ManyRequests:
    """Arrays with one value a request."""

    first_known = staticmethod(first_known)
    ratio = staticmethod(ratio)

    @staticmethod
    def where(chosen: Any, values: Floats) -> Floats:
        return values if chosen.all() else np.where(chosen, values, np.nan)

    @staticmethod
    def less(value: Floats, part: Floats) -> Floats:
        return np.maximum(value - np.nan_to_num(part), 0)


def request_columns(columns: Columns, speed: float = 1.0) -> dict[str, Floats]:
    """Return by tag, an array with one value a row, NaN where the request does not have the metric.

    No array where none has it.

    Beside the metrics of `request_metrics` those that need the whole run's records: delays since requests were due, the
    server's token counts against the client's, and TTFT of first and of later turns where there are later turns.
    """
    where, ok, usage = _ManyRequests.where, columns.ok, columns.usage
    counts = {tag: where(ok, usage[tag]) for tag in USAGE_TAGS if tag in usage}
    streamed = ok & columns.streamed
    found = _formulas(
        _ManyRequests,
        speed,
        columns.start_s,
        where(ok, columns.body_s),
        where(streamed, columns.first_s),
        where(streamed, columns.second_s),
        where(ok, columns.last_s),
        columns.end_s,
        where(streamed, columns.first_output_s),
        where(streamed, columns.events.astype(np.float64)),
        where(ok, columns.input_tokens),
        where(ok, columns.output_tokens),
        columns.asked_tokens,
        counts,
    )
    found |= {
        "credit_to_start_latency": where(ok, columns.start_s - columns.issued_s) * (speed * 1e3),
        "effective_latency": where(ok, columns.end_s - columns.issued_s) * (speed * 1e3),
        **counts,
    }
    for tag, ours in (("usage_prompt_tokens", columns.input_tokens), ("usage_completion_tokens", columns.output_tokens)):
        if tag in counts:
            found[f"{tag}_diff_pct"] = 100 * ratio(np.abs(counts[tag] - ours), ours)
    later = columns.turn_index > 0
    if later.any():
        found["first_turn_time_to_first_token"] = where(~later, found["time_to_first_token"])
        found["subsequent_turn_time_to_first_token"] = where(later, found["time_to_first_token"])
    return {tag: values for tag, values in found.items() if not np.isnan(values).all()}


def all_request_columns(columns: Columns, speed: float, options: Mapping[str, Any]) -> dict[str, Floats]:
    """Return `request_columns` with the user's own metrics, those installed and those that the options of a run name."""
    found = request_columns(columns, speed)
    try:
        metrics = own_metrics(options.get("metric") or ())
    except ValueError as error:  # files of a run that was made elsewhere
        logger.warning("Metrics were left out: %s", error)
        metrics = []
    if metrics:
        frame = {name: np.full(len(columns), np.nan) for name in map(frame_name, PER_REQUEST)}
        frame |= {frame_name(tag): values for tag, values in found.items()} | request_facts(columns)
    for metric in metrics:
        try:
            values = np.asarray(metric.value(frame), dtype=np.float64)
            if values.shape != (len(columns),):
                raise ValueError(f"its values have the shape {values.shape}, not ({len(columns)},)")
        except Exception as error:
            logger.warning("Metric %s was left out: %s", metric.tag, error_text(error))
            continue
        if not np.isnan(values := np.where(columns.ok, values, np.nan)).all():
            found[metric.tag] = values
    return found


def request_facts(columns: Columns) -> dict[str, Any]:
    """Return the columns of a frame that are no metrics. start_s: on the run's clock."""
    return {"start_s": columns.start_s, "conversation": columns.conversation, "turn": columns.turn_index, "ok": columns.ok}


def chunk_gaps_ms(columns: Columns, speed: float = 1.0) -> Floats:
    """Return inter_chunk_latency.

    All gaps between content events of the same reply, row after row, in ms of cluster time.
    """
    if columns.stamps_s is None:
        return np.empty(0)
    chosen = columns.ok & columns.streamed & (columns.events > 1)
    stamps = columns.stamps_s
    if not chosen.all():
        stamps = stamps[np.repeat(chosen, columns.events)]
    # One difference over all stamps, less those across replies.
    gaps = _gaps_ms(stamps, speed)
    within = np.ones(gaps.size, dtype=bool)
    within[np.cumsum(columns.events[chosen])[:-1] - 1] = False
    return gaps[within]


def _gaps_ms(stamps_s: Floats, speed: float) -> Floats:
    gaps: Floats = stamps_s[1:] - stamps_s[:-1]  # np.diff costs two microseconds more, for every line that is written
    gaps *= speed * 1e3
    return gaps


_LARGER_IS_BETTER = {"output_token_throughput_per_user", "e2e_output_token_throughput", "prefill_throughput_per_user"}
_OF_A_GROUP = {"first_turn_time_to_first_token", "subsequent_turn_time_to_first_token", "inter_chunk_latency", "error_isl"}
_NAMES = {name: tag for name, tag in SHORT_NAMES.items() if tag in PER_REQUEST and tag not in _OF_A_GROUP}


def parse_goodput(text: str) -> dict[str, float]:
    """Return limits by metric tag, in the metric's own unit (ms, tokens/sec/user), from "name:limit name:limit".

    A name is a tag of a per-request metric, as AIPerf has it, or the short name of one (vLLM's are among these).
    "class/name:limit" is for a service class, instead of the limit of that name that holds for all; its key is class/tag.
    Raises ValueError with one line a problem.
    """
    limits: dict[str, float] = {}
    problems = []
    for part in text.replace(",", " ").split():
        of_class, slash, rest = part.rpartition("/")
        name, colon, limit_text = rest.partition(":")
        tag = _NAMES.get(name, name)
        key = of_class + slash + tag
        try:
            limit = float(limit_text)
        except ValueError:
            limit = math.nan
        if tag not in PER_REQUEST or tag in _OF_A_GROUP:
            problems.append(f"{part!r}: no metric of single requests is called {name!r}; known are {', '.join(_NAMES)}")
        elif not colon or not (0 < limit < math.inf):
            problems.append(f"{part!r}: expected {name}:LIMIT with a limit above zero in {PER_REQUEST[tag].unit}")
        elif key in limits:
            problems.append(f"{part!r}: {key} has a limit already")
        limits[key] = limit
    if not limits:
        problems.append("no objective given; an example is ttft:200")
    if problems:
        raise ValueError("\n".join(problems))
    return limits


def goodput_problem(text: str) -> str | None:
    """Return the problems of the limits, one a line; None if there are none."""
    try:
        parse_goodput(text)
    except ValueError as error:
        return str(error)
    return None


def good_requests(columns: Columns, metrics: Mapping[str, Floats], limits: Mapping[str, float]) -> Bools:
    """Return a mask of rows that met every limit; failed requests and missing metrics do not meet it.

    One exception: a reply of a single token has no time per further token, and is not held to one.
    """
    good = columns.ok.copy()
    lengths = metrics.get("output_sequence_length")
    single = np.zeros(len(columns), dtype=bool) if lengths is None else lengths <= 1
    classes = np.array([tenant.service_class for tenant in columns.tenants] or [""])[columns.tenant]
    for key, limit in limits.items():
        of_class, slash, tag = key.rpartition("/")
        own = [other.rpartition("/")[0] for other in limits if other.endswith(f"/{tag}")]
        held = classes == of_class if slash else ~np.isin(classes, own)
        values = metrics.get(tag)
        if values is None:
            values = np.full(len(columns), np.nan)
        with np.errstate(invalid="ignore"):
            met = values >= limit if tag in _LARGER_IS_BETTER else values <= limit
        if tag in ("inter_token_latency", "output_token_throughput_per_user", "time_to_second_token"):
            met |= np.isnan(values) & single
        good &= met | ~held
    return good
