"""The cluster's side of a simulation: tables on the screen, a file for `llmirage report`, and a Chrome trace.

The trace is JSON in the trace event format, to be opened in Perfetto, with steps and requests each on its lane:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format).
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmirage_client.measure.record import Record
from llmirage_client.measure.run_folder import ClusterLevels
from llmirage_client.report.screen import Block, bold, count, number, plain_table, warning
from llmirage_client.simulate.bill import Bill
from llmirage_client.simulate.cluster_series import PHASES, ClusterSeries, Totals, mean_shares
from llmirage_client.simulate.saturation import InstanceQueue, rates_text
from llmirage_client.simulator.deployments import bands_json
from llmirage_client.simulator.engine import StepSpan
from llmirage_shared.plural import plural, rounded

if TYPE_CHECKING:
    from llmirage_client.simulate.simulation import Simulation


_INSTANCES_SHOWN = 16
_MOVES_SHOWN = 12
_BANDS = {
    "ttft_ms": "TTFT (ms)",
    "tpot_ms": "TPOT (ms)",
    "latency_ms": "latency (ms)",
    "output_tok_per_s": "output tokens/s",
}
_STATES = {"growing": "growing", "draining": "draining", "stable": "neither growing nor draining"}
_SHOWN_PHASES = {"accepts requests": "up", "starts up": "starting", "drains": "draining"}


def cluster_blocks(simulation: Simulation) -> list[Block]:
    """Return tables of the cluster's side."""
    series, totals = simulation.series, simulation.totals
    blocks: list[Block] = [
        *_bands(simulation),
        "",
        bold("Cluster, means over time"),
        _instances(series, totals, simulation.queues[1:]),
    ]
    if series.instances > _INSTANCES_SHOWN:
        blocks.append(f"... and {plural(series.instances - _INSTANCES_SHOWN, 'more instance')}")
    if series.changes:
        blocks += ["", _ready_changes(series, totals)]
    blocks += _decisions(series)
    if series.kv_loaded:
        loaded = ", ".join(f"{count(tokens)} from the {tier}" for tier, tokens in series.kv_loaded.items())
        blocks += ["", f"Tokens of KV loaded in the whole run: {loaded}"]
    if totals.step_shares:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in totals.step_shares.items())
        blocks += ["", f"Time of steps: {shares}"]
    if simulation.rates is not None:
        blocks.append(rates_text(simulation.rates))
    blocks.append(_bill(simulation.bill, series.changes))
    if simulation.seeds:
        blocks += ["", bold("Over several seeds"), _seeds(simulation.seeds)]
    if simulation.saturation is not None:
        blocks.append(warning(f"Saturated, queues {_STATES[simulation.queues[0].state]}: {simulation.saturation}."))
    return blocks


def _seeds(spread: Mapping[str, Mapping[str, float]]) -> Block:
    table = plain_table("figure", "mean", "sd", "least", "most")
    for name, found in spread.items():
        table.add_row(name, *(number(found[key]) for key in ("mean", "sd", "min", "max")))
    return table


def _bands(simulation: Simulation) -> list[Block]:
    """Return the bands of the means in which measured servers lie."""
    band = simulation.band
    intervals = bands_json(band, simulation.summary)
    if band is None or not intervals or not intervals.keys() & _BANDS.keys():  # without an answered request there is none
        return []
    table = plain_table("mean", "simulated", "50 % of measured", "90 % of measured")
    for name, heading in _BANDS.items():
        if name not in intervals:
            continue
        figure = simulation.summary[name]
        mean = figure["mean"] if isinstance(figure, dict) else figure
        spans = (" to ".join(map(number, intervals[name][share] or ())) or "unknown" for share in ("50", "90"))
        table.add_row(heading, number(mean), *spans)
    return [
        "",
        bold("Error bands"),
        table,
        f"Bands {band.about}. That of tokens/s holds where the servers, not the load, are the limit.",
    ]


def report_series(series: ClusterSeries) -> ClusterLevels:
    """Return the series in the form of the report's files. A level is the mean from one sample to the next."""
    names = [f"{pool} {index}" for index, pool in enumerate(series.pool)]
    widths = np.maximum(np.diff(series.time_s), 1e-12)
    held = np.diff(series.held) / widths
    queried = np.diff(series.query_tokens)
    hits = np.divide(np.diff(series.hit_tokens), queried, out=np.full(queried.shape, np.nan), where=queried > 0)
    more, shares = {}, mean_shares([share for _, share in series.shares])
    if series.changes:
        more = {name: 1.0 * (series.phase[:, :-1] == PHASES.index(phase)) for name, phase in _SHOWN_PHASES.items()}
    return ClusterLevels(
        instances=tuple(names),
        edges_s=series.time_s,
        levels={
            "running": held[0],
            "waiting": np.maximum(held[1], 0.0),
            "kv_used_pct": 100 * held[2],
            "busy_pct": np.minimum(100 * np.diff(series.busy_s) / widths, 100.0),
            "prefix_hit_pct": 100 * hits,
            "preemptions": np.diff(series.preemptions),
            **more,
        },
        autoscaling=[decision._asdict() for decision in series.autoscaling],
        step_time_s={name: share * float(series.busy_s[:, -1].sum()) for name, share in shares.items()},
    )


def _instances(series: ClusterSeries, totals: Totals, queues: Sequence[InstanceQueue]) -> Block:
    table = plain_table("instance", "busy", "batch", "most", "waiting", "most", "KV used", "most", "cache hits", "preempted")
    states = {
        queue.instance: f", {'full' if queue.state == 'stable' else queue.state}"
        for queue in queues
        if queue.overloaded is not None
    }
    for index, pool in enumerate(series.pool[:_INSTANCES_SHOWN]):
        queried = totals.query_tokens[index]
        table.add_row(
            f"{index} ({pool}){states.get(index, '')}",
            f"{totals.utilisation[index]:.0%}",
            number(totals.means[0, index]),
            count(totals.most[0, index]),
            number(totals.means[1, index]),
            count(totals.most[1, index]),
            f"{totals.means[2, index]:.0%}",
            f"{totals.most[2, index]:.0%}",
            f"{totals.hit_tokens[index] / queried:.0%}" if queried else "-",
            count(totals.preemptions[index]),
        )
    return table


def _ready_changes(series: ClusterSeries, totals: Totals) -> str:
    """Return when the number of instances that accept requests changed."""
    ready = series.ready()
    steps = [f"{ready[0]:.0f} at the start"]
    moves = np.flatnonzero(np.diff(ready))
    steps += [f"{ready[at + 1]:.0f} from {series.time_s[at + 1]:.0f} s" for at in moves[:_MOVES_SHOWN]]
    more = f" and {moves.size - _MOVES_SHOWN} more changes" if moves.size > _MOVES_SHOWN else ""
    return f"Ready instances: {', '.join(steps)}{more}; mean {totals.mean_ready:.2f}"


def _decisions(series: ClusterSeries) -> list[str]:
    """Return a line for each pool that is scaled."""
    lines = []
    for pool in dict.fromkeys(one.pool for one in series.autoscaling):
        decided = [one for one in series.autoscaling if one.pool == pool]
        desired = [one.desired for one in decided]
        met = sum(all((value or 0.0) <= one.targets[name] for name, value in one.observed.items()) for one in decided)
        lines.append(
            f"Autoscaling of {pool}: {plural(len(decided), 'decision')} for {min(desired)} to {max(desired)} instances, "
            f"{met / len(decided):.0%} of them on target{', none carried out' if decided[0].advisory else ''}"
        )
    return lines


def _bill(bill: Bill, changes: bool) -> str:
    gpus = plural(bill.gpus, "GPU")
    parts = [f"{gpus}{' at most' if changes else ''}, {rounded(bill.gpu_hours, 3)} GPU hours"]
    if bill.usd_per_m_output_tokens is not None:
        low, high = bill.usd_per_m_output_tokens
        parts.append(
            f"{rounded(low, 3)} to {rounded(high, 3)} USD per million output tokens (on-demand prices of the catalogue)"
        )
    if bill.kwh_per_m_output_tokens is not None:
        parts.append(f"{rounded(bill.kwh_per_m_output_tokens, 3)} kWh per million (GPUs at their TDP while busy)")
    return "; ".join(parts)


_REQUESTS = 1  # process id of the requests; instances follow
MOST_EVENTS = 500_000


def write_trace(path: Path | str, steps: Sequence[Sequence[StepSpan]], records: Sequence[Record]) -> int:
    """Write the steps of every instance and the lives of all requests; return how many events were left out.

    Runs of steps of one batch are one event each. Raises OSError.
    """
    left_out = 0
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for number, event in enumerate(_events(steps, records)):
            if number >= MOST_EVENTS:
                left_out += 1
                continue
            file.write(("" if number == 0 else ",\n") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")
    return left_out


def _events(steps: Sequence[Sequence[StepSpan]], records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    yield _name("process_name", _REQUESTS, 0, "requests")
    for index in range(len(steps)):
        yield _name("process_name", _REQUESTS + 1 + index, 0, f"instance {index}")
    yield from _request_events(records)
    for index, spans in enumerate(steps):
        for span in spans:
            yield _step_event(_REQUESTS + 1 + index, span)


def _step_event(process: int, span: StepSpan) -> dict[str, Any]:
    parts = [word for word, there in (("prefill", span.prompt_tokens), ("decode", span.decodes)) if there]
    name = " and ".join(parts)
    if span.steps > 1:
        name = f"{name} x {span.steps}"
    figures = {"steps": span.steps, "prompt_tokens": span.prompt_tokens, "decoding_sequences": span.decodes}
    return _slice(name, process, 0, span.start_s, span.end_s, figures)


def _request_events(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """Yield requests in as few lanes as there are at one time."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for record in sorted(records, key=lambda record: record.exchange.start_s):
        exchange = record.exchange
        start_s, end_s = exchange.start_s, exchange.end_s if exchange.end_s is not None else exchange.start_s
        while busy and busy[0][0] <= start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (end_s, lane))
        usage = exchange.usage or {}
        figures = {
            "conversation": record.conversation_id,
            "turn": record.turn_index,
            "prompt_tokens": usage.get("prompt_tokens", record.input_tokens),
            "output_tokens": usage.get("completion_tokens", len(exchange.token_s)),
            "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            "error": None if exchange.error is None else exchange.error.message,
        }
        yield _slice(f"{record.conversation_id}:{record.turn_index}", _REQUESTS, lane, start_s, end_s, figures)
        if exchange.token_s:
            yield _slice("to first token", _REQUESTS, lane, start_s, exchange.token_s[0], {})
            yield _slice("tokens", _REQUESTS, lane, exchange.token_s[0], exchange.token_s[-1], {})


def _slice(name: str, process: int, lane: int, start_s: float, end_s: float, figures: dict[str, Any]) -> dict[str, Any]:
    """Return a slice in whole microseconds: viewers drop one that ends after the slice around it, were it by a rounding."""
    begin_us, end_us = round(start_s * 1e6), round(end_s * 1e6)
    return {"name": name, "ph": "X", "pid": process, "tid": lane, "ts": begin_us, "dur": end_us - begin_us, "args": figures}


def _name(kind: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}
