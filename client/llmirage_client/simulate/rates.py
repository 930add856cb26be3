"""The offered rate of a load beside the rate at which it was answered."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.arrays import Floats
from llmirage_client.measure.columns import Columns
from llmirage_client.workload.session import Workload
from llmirage_shared.plural import plural, rounded

_SHORTFALL = 0.05  # of the offered rate that may be missing from the delivered one
_SHORTFALL_NOISE = 3.0  # standard deviations of a Poisson count
_START_SHARE = 0.25  # of the time in which requests are sent: the cluster fills up
_FEWEST = 20  # requests for a rate to be reported


@dataclass(frozen=True, slots=True)
class LoadRates:
    """Turns of root conversations per second.

    offered: as asked for.
    sent: the rate of turns there were to send, of a load that comes to an end.
    delivered: answered.
    allowed: share of `offered` that may be missing, as the noise of so few conversations explains it.
    held: limit of concurrent conversations, where others waited for these.
    """

    offered: float
    sent: float
    delivered: float
    allowed: float
    held: int | None = None

    @property
    def shortfall(self) -> str | None:
        """The end of a sentence, if less was sent or answered than was offered, by more than the allowed share."""
        least = self.offered * (1 - self.allowed)
        if self.held is not None and min(self.sent, self.delivered) < least:
            text = f"{rounded(min(self.sent, self.delivered), 3)} of {rounded(self.offered)} turns/s were sent"
            return f"{text}, as only {plural(self.held, 'conversation')} may be in progress at a time (--concurrency)"
        if self.sent < least:
            text = f"{rounded(self.sent, 3)} of {rounded(self.offered)} turns/s"
            return f"{text} were there to send: more requests keep new conversations coming"
        if self.delivered < least:
            return f"the load is not sustained: {rounded(self.delivered)} of {rounded(self.offered)} requests/s are answered"
        return None


def rates_of(columns: Columns, offered: float, clumping: float, kept_on: bool) -> LoadRates:
    """Return the rates of recorded requests.

    clumping: requests that come as one.
    kept_on: the load continues after the measured requests, and had filled the cluster before them; else the cluster fills
        up first, and answers are counted as much later as one takes (median).
    """
    roots = columns.agent_depth == 0
    sent_s = columns.start_s[columns.measured & roots]
    allowed = max(_SHORTFALL, _SHORTFALL_NOISE * math.sqrt(clumping / max(sent_s.size, 1)))
    begin_s, end_s = float(sent_s.min(initial=math.inf)), float(sent_s.max(initial=-math.inf))
    if not end_s > begin_s:
        return LoadRates(offered, 0.0, 0.0, allowed)
    answered, later_s = roots & (columns.ok | columns.cancelled), 0.0
    if not kept_on:
        begin_s += _START_SHARE * (end_s - begin_s)
        took_s = (columns.end_s - columns.start_s)[answered & columns.measured]
        later_s = float(np.sort(took_s)[took_s.size // 2]) if took_s.size else 0.0
    sent = offered if kept_on else _within(columns.start_s[roots], begin_s, end_s) / (end_s - begin_s)
    delivered = _within(columns.end_s[answered], begin_s + later_s, end_s + later_s) / (end_s - begin_s)
    return LoadRates(offered, sent, delivered, allowed)


def rates_of_run(workload: Workload, options: RunOptions, columns: Columns, kept_on: bool) -> LoadRates | None:
    """Return the rates; None for loads without one constant rate, and for a handful of requests."""
    rate = options.request_rate_per_s
    if rate is None or options.request_rate_ramp_s or int((columns.measured & (columns.agent_depth == 0)).sum()) < _FEWEST:
        return None
    clumping = max(1.0, 1.0 / options.arrival_smoothness) if options.arrival_pattern == "gamma" else 1.0
    if options.request_rate_of != "turns":
        turns = root_turns(workload)
        rate, clumping = rate * float(turns.mean()), clumping_of(turns) * clumping
    held = options.concurrency if _others_waited(columns, options.concurrency) else None
    return replace(rates_of(columns, rate, clumping, kept_on), held=held)


def rates_text(rates: LoadRates) -> str:
    """Return the rates as a sentence."""
    return (
        f"Offered: {rounded(rates.offered)} requests/s. Delivered: {rounded(rates.delivered)} "
        f"(up to {rates.allowed:.0%} less is no shortfall)."
    )


def rates_json(rates: LoadRates | None) -> dict[str, float | None]:
    """Return the rates for summaries; None where there is no rate."""
    return {
        "offered_per_s": None if rates is None else rates.offered,
        "delivered_per_s": None if rates is None else rates.delivered,
        "shortfall_allowed": None if rates is None else rates.allowed,
    }


def root_turns(workload: Workload) -> Floats:
    """Return the turns of each root; of lengths without the last, which the number of requests may have cut."""
    whole = workload.roots[:-1] if workload.format == "synthetic" and len(workload.roots) > 1 else workload.roots
    return np.array([max(len(workload.sessions[root].turns), 1) for root in whole], dtype=np.float64)


def clumping_of(turns: Floats) -> float:
    """Return the requests that come as one: mean square of the turns of a root over their mean; 1 for single turns."""
    return float((turns**2).mean() / turns.mean())


def _others_waited(columns: Columns, concurrency: int | None) -> bool:
    """Return whether that many root conversations were in progress at a time, and there were more of them."""
    rows = columns.agent_depth == 0
    places = np.unique(columns.conversation[rows], return_inverse=True)[1]
    roots = int(places.max(initial=-1)) + 1
    if concurrency is None or roots <= concurrency:
        return False
    begin_s, end_s = np.full(roots, np.inf), np.full(roots, -np.inf)
    np.minimum.at(begin_s, places, columns.start_s[rows])
    np.maximum.at(end_s, places, columns.end_s[rows])
    changes = np.repeat([1, -1], roots)
    order = np.lexsort((changes, np.concatenate([begin_s, end_s])))  # one that is over makes room for the next
    return bool(np.cumsum(changes[order]).max() >= concurrency)


def _within(times_s: Floats, begin_s: float, end_s: float) -> int:
    return int(((times_s > begin_s) & (times_s <= end_s)).sum())
