"""A day of hourly rates for `size --day`, from a named shape, a table or the times of a trace."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from llmirage_client.simulator.engine import ConfigError, Entry, YamlNode, read_mapping
from llmirage_client.workload.rates import HOUR_S, SHAPES, shape_name
from llmirage_client.workload.session import Session, Tenant, Turn, Workload
from llmirage_shared.plural import rounded
from llmirage_shared.statistics import Floats

PolicyKind = Literal["reactive", "scheduled"]


@dataclass(frozen=True, slots=True)
class TenantDay(Tenant):
    """rates: requests/s of each hour."""

    rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """reactive: instances start when an hour's load is there; scheduled: so much earlier that they are ready then.

    headroom: of the rate, beyond which instances are there. start_s, disk_gb_per_s: of a start, beside reading the weights,
    and the rate at which these are read.
    """

    policy: PolicyKind = "reactive"
    headroom: float = 0.1
    start_s: float = 60.0
    disk_gb_per_s: float = 5.0  # sequential reads of one PCIe 4.0 NVMe drive, as in the server's disk tier


@dataclass(frozen=True, slots=True)
class SpotOffer:
    """price: share of the on-demand price. notice_s: between the notice of an interruption and its moment."""

    price: float = 0.4
    interruptions_per_h: float = 0.02
    notice_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Day:
    """source: where it is from, for people. trace: the workload whose own times these are, if any. notes: on its rates."""

    tenants: tuple[TenantDay, ...]
    source: str
    trace: Workload | None = None
    policy: ScalingPolicy = ScalingPolicy()
    spot: SpotOffer | None = None
    notes: tuple[str, ...] = ()

    @property
    def rates(self) -> list[float]:
        """Requests per second of all tenants, by hour."""
        return [sum(rates) for rates in zip(*(tenant.rates for tenant in self.tenants), strict=True)]

    @property
    def prioritised(self) -> bool:
        return len({tenant.priority for tenant in self.tenants}) > 1

    def without_priorities(self) -> Day:
        """Return the same day, all of whose requests wait for each other."""
        return replace(self, tenants=tuple(replace(tenant, priority=0) for tenant in self.tenants))


def read_day(place: str, peak: float | None, trace: Callable[[], Workload]) -> Day:
    """Read a day: a named shape of that peak, a table (YAML, JSON, CSV), or else a trace. Raises ConfigError."""
    if (name := shape_name(place)) in SHAPES:
        if peak is None:
            raise ConfigError([f"--day {name} needs --request-rate, the rate of its highest hour"])
        return Day(
            (TenantDay("all", "all", 0, tuple(peak * share for share in SHAPES[name])),), f"{name}, {peak:g} req/s at most"
        )
    if peak is not None:
        raise ConfigError(
            [f"--request-rate: {place} says the rates of the day; it is for named shapes: {', '.join(SHAPES)}"]
        )
    if not Path(place).is_file() and not place.startswith("bundled:"):
        raise ConfigError([f"--day must be a file, or one of {', '.join(SHAPES)}; not {place!r}"])
    if place.endswith((".yaml", ".yml")) or (place.endswith(".json") and _is_table(place)):
        return _read_table(place)
    if place.endswith(".csv") and (rows := _csv_rows(place)):
        return _read_csv(place, rows)
    return _read_trace(place, trace())


def _is_table(place: str) -> bool:
    try:
        return bool({entry.key for entry in read_mapping(place, "a day")} & {"rates", "tenants"})
    except ConfigError:
        return False


def _csv_rows(place: str) -> list[list[str]]:
    """Return the rows of a table of hours; none of another CSV."""
    with open(place, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row]
    return rows if rows and len(rows[0]) > 1 and rows[0][0].strip().lower() == "hour" else []


def _read_csv(place: str, rows: list[list[str]]) -> Day:
    names, problems = [name.strip() for name in rows[0][1:]], list[str]()
    found: list[list[float]] = [[] for _ in names]
    hours = [row[0].strip() for row in rows[1:]]
    if all(hour.isdigit() for hour in hours):
        first = min(1, *map(int, hours), 1) if hours else 0
        for number, hour in enumerate(hours):
            if int(hour) != first + number:
                problems.append(
                    f"{place}:{number + 2}: hour {hour} stands where {first + number} is due: each hour has a row"
                )
                break
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(names) + 1:
            problems.append(f"{place}:{number}: {len(row)} values, and the header has {len(names) + 1}")
            continue
        for rates, text in zip(found, row[1:], strict=True):
            try:
                rates.append(_rate(float(text)))
            except ValueError:
                problems.append(f"{place}:{number}: {text!r} must be a number of requests per second")
    if problems:
        raise ConfigError(problems)
    tenants = tuple(TenantDay(name, name, 0, tuple(rates)) for name, rates in zip(names, found, strict=True))
    return _checked(Day(tenants, place))


_SHORT_S = 300.0  # for which a trace's rate may be above that of its hour
_ABOVE = 1.2  # times the highest hour's rate


def _read_trace(place: str, workload: Workload) -> Day:
    """Return the requests of each hour since the first: a conversation's turns count when it begins.

    The last hour has the rate of the part that the trace covers; the end of a long trace is no hour.
    """
    if not workload.timed:
        raise ConfigError([f"--day {place}: its requests have no times"])
    sessions = [workload.sessions[root] for root in workload.roots]
    starts_s = np.array([session.arrival_s or 0.0 for session in sessions])
    starts_s -= starts_s.min()
    turns, whole, notes = [len(session.turns) for session in sessions], int(starts_s.max() // HOUR_S), list[str]()
    counts = np.bincount((starts_s // HOUR_S).astype(np.int64), turns)
    rest_s = max(float(starts_s.max()) - whole * HOUR_S, HOUR_S / 60)
    seconds = np.array([HOUR_S] * whole + [rest_s])
    if whole and rest_s < 2 * _SHORT_S:
        counts, seconds = counts[:-1], seconds[:-1]
        notes.append(f"The last {rounded(rest_s / 60, 3)} min of the trace are left out: they are no hour.")
    elif rest_s < HOUR_S - 2 * _SHORT_S:
        notes.append(
            f"The last hour of the trace has {rounded(rest_s / 60, 3)} min; their rate is taken for the whole of it."
        )
    rates = counts / seconds
    short = np.bincount((starts_s // _SHORT_S).astype(np.int64), turns)[: int(seconds.sum() // _SHORT_S)]
    highest = float(max(short, default=0.0)) / _SHORT_S
    together = sum(count**2 for count in turns) / max(sum(turns), 1)  # of a conversation's turns, which count at once
    if highest > _ABOVE * rates.max() + 4 * math.sqrt(rates.max() * together / _SHORT_S):
        notes.append(
            f"The trace has {rounded(highest, 3)} req/s for {_SHORT_S / 60:g} min, and "
            f"{rounded(rates.max(), 3)} in its highest hour, which the instances are for: what waits then is "
            "not seen here (simulate it with --fixed-schedule)."
        )
    notes += _other_lengths(sessions, starts_s, rates)
    return _checked(
        Day((TenantDay("all", "all", 0, tuple(rates.tolist())),), f"{place}, its own times", workload, notes=tuple(notes))
    )


_OTHER = 1.25  # times the mean length of all requests
_FEW = 100  # requests of an hour whose mean says little


def _other_lengths(sessions: Sequence[Session], starts_s: Floats, rates: Floats) -> Iterator[str]:
    """Say in which hours requests are longer than the whole trace's, with which each is sized."""
    lengths = [[its for turn in session.turns if (its := _lengths(turn))] for session in sessions]
    hours = np.repeat((starts_s // HOUR_S).astype(np.int64), [len(its) for its in lengths])
    requests = np.bincount(hours, minlength=len(rates))[: len(rates)]
    for place, what in enumerate(("prompt", "reply") if hours.size else ()):
        tokens = np.array([one[place] for its in lengths for one in its], dtype=np.float64)
        sums = np.bincount(hours, tokens, len(rates))[: len(rates)]
        means = np.divide(sums, requests, out=np.zeros(len(rates)), where=requests >= _FEW)
        longest = int(means.argmax())
        if means[longest] > _OTHER * tokens.mean():
            yield (
                f"Hour {longest} has {what} lengths of {means[longest]:,.0f} tokens on average, the whole trace "
                f"{tokens.mean():,.0f}: every hour is sized with those of the whole; size such hours by themselves."
            )


def _lengths(turn: Turn) -> tuple[int, int] | None:
    """Return the tokens of prompt and reply, where the trace says them."""
    if turn.tokens is not None:
        return turn.tokens.input_tokens, turn.tokens.output_tokens
    return None if turn.synthetic is None else (turn.synthetic.tokens, turn.max_tokens or 0)


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError
    return float(value)


def _checked(day: Day) -> Day:
    lengths = {len(tenant.rates) for tenant in day.tenants}
    if len(lengths) != 1 or lengths == {0}:
        raise ConfigError([f"{day.source}: every tenant needs the rates of the same hours, one at least"])
    if not max(day.rates) > 0:
        raise ConfigError([f"{day.source}: no hour has a request"])
    return day


class _TableReader:
    """Reads a mapping with defaults, and keeps all problems with their lines."""

    def __init__(self, place: str) -> None:
        self._place = place
        self.problems: list[str] = []

    def wrong(self, line: int, problem: str) -> None:
        self.problems.append(f"{self._place}:{line}: {problem}")

    def values(self, node: YamlNode, known: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Return numbers of 0 or more and texts of the kind of the defaults."""
        found = dict(known)
        if node.entries is None:
            self.wrong(node.line, f"{what} must be `key: value` lines")
        for entry in node.entries or ():
            if entry.key not in known:
                self.wrong(entry.line, f"{entry.key} is unknown; {what} has {', '.join(known)}")
                continue
            try:
                number = isinstance(known[entry.key], float)
                found[entry.key] = _rate(entry.node.value) if number else entry.node.value
            except ValueError:
                self.wrong(entry.line, f"{entry.key} must be a number, 0 or more, not {entry.node.value!r}")
        return found

    def rates(self, node: YamlNode, hours: Any, shape: Any, peak: float) -> tuple[float, ...]:
        if shape is not None:
            if shape_name(str(shape)) not in SHAPES or not peak:
                self.wrong(node.line, f"shape must be one of {', '.join(SHAPES)}, with its peak in req/s")
                return ()
            return tuple(peak * share for share in SHAPES[shape_name(str(shape))])
        try:
            return tuple(_rate(value) for value in hours)
        except (TypeError, ValueError):
            self.wrong(node.line, "rates must be a list of numbers of requests per second, one an hour")
            return ()


def _read_table(place: str) -> Day:
    entries: dict[str, Entry] = {entry.key: entry for entry in read_mapping(place, "a day")}
    read, tenants = _TableReader(place), list[TenantDay]()
    known = ("rates", "tenants", "autoscaling", "spot")
    for key, entry in entries.items():
        if key not in known:
            read.wrong(entry.line, f"{key} is unknown; a day has {', '.join(known)}")
    if ("rates" in entries) is ("tenants" in entries):
        read.wrong(1, "a day has either rates, or tenants with rates of theirs")
    elif "rates" in entries:
        node = entries["rates"].node
        tenants.append(TenantDay("all", "all", 0, read.rates(node, node.value, None, 0.0)))
    else:
        for node in entries["tenants"].node.items or ():
            fields = {"name": "", "class": None, "priority": 0, "rates": None, "shape": None, "peak": 0.0}
            one = read.values(node, fields, "a tenant")
            name, priority = str(one["name"] or f"tenant {len(tenants) + 1}"), one["priority"]
            if isinstance(priority, bool) or not isinstance(priority, int):
                read.wrong(node.line, f"priority must be a whole number, not {priority!r}")
                priority = 0
            rates = read.rates(node, one["rates"], one["shape"], one["peak"])
            tenants.append(TenantDay(name, str(one["class"] or name), priority, rates))
    policy, spot = ScalingPolicy(), None
    if "autoscaling" in entries:
        entry = entries["autoscaling"]
        fields = {name: getattr(policy, name) for name in ScalingPolicy.__slots__}
        policy = ScalingPolicy(**read.values(entry.node, fields, "autoscaling"))
        if policy.policy not in get_args(PolicyKind) or not policy.disk_gb_per_s:
            read.wrong(entry.line, f"policy must be one of {', '.join(get_args(PolicyKind))}, and disk_gb_per_s above 0")
    if "spot" in entries:
        entry = entries["spot"]
        spot = SpotOffer(
            **read.values(entry.node, {name: getattr(SpotOffer(), name) for name in SpotOffer.__slots__}, "spot")
        )
        if spot.price > 1:
            read.wrong(entry.line, f"price is a share of the on-demand price, 1 at most, not {spot.price:g}")
    if read.problems:
        raise ConfigError(read.problems)
    return _checked(Day(tuple(tenants), place, policy=policy, spot=spot))
