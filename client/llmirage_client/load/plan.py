"""From options to a load: the roots of a phase and their order, the arrival process, the end of the phase; its length."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Literal, TypeVar

from llmirage_client.load.arrivals import Arrivals, AtRate, Schedule, Slots, Start, Stop, Users
from llmirage_client.load.options import RunOptions, Share
from llmirage_client.settings import SamplingStrategy
from llmirage_client.workload.rates import unit_gaps
from llmirage_client.workload.session import Session, Workload
from llmirage_client.workload.summary import requests_by_root

_T = TypeVar("_T")

_TOUCH_S = 1e-6  # times of a file that are counted from its first one are no nearer to what the file says
_HOUR_S, _DAY_S = 3600.0, 86_400.0


class Roots(Iterator[Session]):
    """Roots in order, which can be looked at before they are taken. count: of them at most."""

    def __init__(self, source: Iterator[Session], peek: Callable[[int], list[Session]], count: int | None = None) -> None:
        self._source = source
        self._peek = peek
        self._left = count

    def __next__(self) -> Session:
        if self._left is not None:
            if not self._left:
                raise StopIteration
            self._left -= 1
        return next(self._source)

    def upcoming(self, count: int) -> list[Session]:
        """Return up to `count` roots that come next."""
        return self._peek(count if self._left is None else min(count, self._left))


class Peekable(Iterator[_T]):
    """An iterator that can be looked into."""

    def __init__(self, source: Iterator[_T]) -> None:
        self._source = source
        self._ahead: deque[_T] = deque()

    def __next__(self) -> _T:
        return self._ahead.popleft() if self._ahead else next(self._source)

    def peek(self, count: int) -> list[_T]:
        """Return up to `count` things that come next."""
        self._ahead.extend(itertools.islice(self._source, max(count - len(self._ahead), 0)))
        return list(itertools.islice(self._ahead, count))


def conversations(sampler: Sampler, workload: Workload, options: RunOptions, with_children: bool = True) -> Roots:
    """Return the roots to run, in order; without end when only a cap or a duration limits the run.

    Without children, roots that send nothing themselves are passed over.
    """
    if options.fixed_schedule:
        scheduled = itertools.islice(_scheduled(workload, options), options.num_conversations)
        own = Peekable(options.share.pick(scheduled))
        return Roots(own, own.peek)
    count = options.num_conversations
    if count is None and not options.open_ended:
        count = len(workload.roots) - workload.skipped
    if count is not None:
        count = options.share.part(count, options.warmup_num_conversations or 0)
    roots = sampler if with_children else (session for session in sampler if session.turns)
    return Roots(roots, sampler.upcoming, count)


def places(sampler: Sampler, options: RunOptions) -> Iterator[int]:
    """Yield the places, in the order of roots, of those that a phase begins now; conversations are named by them.

    They are the same whether one worker or several do the run, except after a warm-up limited by time or requests.
    """
    share = options.share
    if not options.fixed_schedule:
        first_root = options.first_root
        return itertools.count(first_root + share.first(sampler.taken - first_root), share.of)
    warmed_up = options.first_root + (options.warmup_num_conversations or 0)
    return itertools.count((sampler.taken if share.of == 1 else warmed_up) + share.index, share.of)


def own_requests(options: RunOptions) -> int | None:
    """Return the cap on requests for this worker; 0 if it has no slot in which to send any."""
    share = options.share
    if options.concurrency is not None and not share.part(options.concurrency):
        return 0
    return None if options.request_count is None else share.part(options.request_count)


def moments(options: RunOptions, start_s: float) -> list[tuple[float, Literal["close", "end", "cancel"]]]:
    """Return when a phase that begins at start_s closes, ends and is cancelled."""
    hard_s, soft_s, grace_s = options.benchmark_duration_s, options.soft_duration_s, options.benchmark_grace_period_s
    after: list[tuple[float, Literal["close", "end", "cancel"]]] = []
    if soft_s is not None:
        after.append((soft_s, "close"))
    if hard_s is not None:
        after += [(hard_s, "end"), (hard_s + grace_s, "cancel")]
    return [(start_s + after_s / options.speed, what) for after_s, what in after if after_s < math.inf]


def scheduled_roots(workload: Workload, options: RunOptions) -> int:
    """Return how many roots a fixed schedule has within its bounds."""
    return sum(1 for _ in _window(workload, options))


def long_schedule(workload: Workload, options: RunOptions) -> str | None:
    """Return a note on a fixed schedule that lasts more than a day, and on what makes it shorter; None for others."""
    if not options.fixed_schedule:
        return None
    roots = _by_arrival(workload, options)
    zero_s = _zero_s(roots, options)
    most = [count for count in (options.num_conversations, options.request_count) if count is not None]
    sent = roots[: min(most, default=None)]
    times_s = (time_s for root in sent for time_s in (root.arrival_s, *(turn.arrival_s for turn in root.turns)))
    last_s = max((time_s for time_s in times_s if time_s is not None and time_s <= options.schedule_end_s), default=zero_s)
    lasts_s = (last_s - zero_s) / options.schedule_speedup / options.speed
    durations_s = (options.soft_duration_s, options.benchmark_duration_s)
    if min(lasts_s, *(end_s / options.speed for end_s in durations_s if end_s is not None), math.inf) <= _DAY_S:
        return None
    speedup = math.ceil(lasts_s * options.schedule_speedup / _HOUR_S)
    until_ms = (zero_s + _HOUR_S * options.schedule_speedup * options.speed) * 1e3
    return (
        f"The schedule lasts {lasts_s / _DAY_S:,.1f} days, by the times of the file: --fixed-schedule-speedup {speedup} "
        f"sends it in an hour, --fixed-schedule-end-offset {until_ms:.0f} its first hour."
    )


def arrivals(
    workload: Workload, options: RunOptions, roots: Iterator[Session], start: Start, stop: Stop, rng: Random
) -> Arrivals:
    """Return the arrival process that the options ask for."""
    share = options.share
    slots = Slots(options.concurrency, options.concurrency_ramp_s / options.speed, share)
    if options.fixed_schedule:
        return Schedule(roots, start, stop, slots, options.speed)
    if options.user_rate_per_s is not None:
        turns = [len(workload.sessions[root].turns) for root in workload.roots]
        mean_turns = sum(turns) / len(turns)
        rate_per_s = options.user_rate_per_s
        return Users(roots, start, stop, slots, options.num_users, rate_per_s, mean_turns, options.speed, share)
    if (rates := options.rates) is not None:
        first_gap, gaps = own_gaps(unit_gaps(options.arrival_pattern, options.arrival_smoothness, rng), share)
        of_roots = options.request_rate_of == "conversations"
        return AtRate(roots, start, stop, slots, rates, gaps, options.speed, first_gap, of_roots)
    slots = Slots(options.concurrency or 1, options.concurrency_ramp_s / options.speed, share)
    return Arrivals(roots, start, stop, slots)


def _window(workload: Workload, options: RunOptions) -> Iterator[Session]:
    for root in workload.roots:
        session = workload.sessions[root]
        if options.schedule_start_s - _TOUCH_S <= (session.arrival_s or 0.0) <= options.schedule_end_s + _TOUCH_S:
            yield session


def _by_arrival(workload: Workload, options: RunOptions) -> list[Session]:
    return sorted(_window(workload, options), key=lambda session: session.arrival_s or 0.0)


def _zero_s(roots: Sequence[Session], options: RunOptions) -> float:
    """Return when the run begins, by the times of the file. roots: of the schedule, by time."""
    return (roots[0].arrival_s or 0.0) if options.schedule_auto_offset and roots else options.schedule_start_s


def _scheduled(workload: Workload, options: RunOptions) -> Iterator[Session]:
    """Yield the roots within the schedule's bounds, by time, with the times at which they arrive in this run."""
    roots = _by_arrival(workload, options)
    zero_s = _zero_s(roots, options)
    unchanged = zero_s == 0 and options.schedule_speedup == 1 and options.schedule_end_s == float("inf")
    for session in roots:
        yield session if unchanged else _moved(session, zero_s, options)


def _moved(session: Session, zero_s: float, options: RunOptions) -> Session:
    """Return it with times counted from zero_s, at the schedule's speed-up, without turns after the schedule's end."""
    turns = []
    for turn in session.turns:
        if turn.arrival_s is not None:
            if turn.arrival_s > options.schedule_end_s + _TOUCH_S:
                break
            turn = replace(turn, arrival_s=(turn.arrival_s - zero_s) / options.schedule_speedup)
        turns.append(turn)
    arrival_s = ((session.arrival_s or 0.0) - zero_s) / options.schedule_speedup
    return replace(session, turns=tuple(turns), arrival_s=arrival_s)


def own_gaps(gaps: Iterator[float], share: Share) -> tuple[float, Iterator[float]]:
    """Return how long the share's own first tick is after the very first, and the gaps between its own ticks.

    The ticks of all shares together are those of the run: any arrival process stays the same.
    """
    if share.of == 1:
        return 0.0, gaps
    return sum(itertools.islice(gaps, share.index)), _sums(gaps, share.of)


def _sums(gaps: Iterator[float], count: int) -> Iterator[float]:
    while True:
        yield sum(itertools.islice(gaps, count))


class Sampler:
    """The roots of a workload without end, in the order of a strategy; one sampler feeds all phases of a run.

    sequential: file order, from the top again.
    shuffle: all of them in a random order, then all in another.
    random: drawn with replacement.
    skip: number of roots of the order to pass over; runs that each begin where the one before stopped have no conversation
        in common until the workload is used up.
    share: only those whose places, from there on, are its own.
    vary: number the repeats of a root, so that each has fresh tokens.
    taken: number of roots of the order taken, including those passed over.
    """

    def __init__(
        self,
        workload: Workload,
        strategy: SamplingStrategy,
        seed: int | None,
        skip: int = 0,
        share: Share | None = None,
        vary: bool = False,
    ) -> None:
        roots = workload.roots
        # Those a dataset offset put at the end come only when the order itself gets there.
        self._sessions = workload.sessions
        self._roots = roots if strategy == "sequential" else roots[: len(roots) - workload.skipped]
        self._order = Peekable(self._follow(strategy, Random() if seed is None else Random(f"sampling {seed}")))
        self._share = share or Share()
        self._vary = vary
        self._skipped = skip
        self.taken = 0
        self._pass_over(skip)

    @property
    def used_up(self) -> bool:
        """True if more were taken than there are, so that some were repeated."""
        return self.taken > len(self._roots)

    def __iter__(self) -> Iterator[Session]:
        return self

    def __next__(self) -> Session:
        if self._share.of > 1:
            place = self.taken - self._skipped
            self._pass_over(self._share.first(place) - place)
        drawn = next(self._order)
        self.taken += 1
        return self._numbered(*drawn)

    def upcoming(self, count: int) -> list[Session]:
        """Return the next `count` of its own roots without taking them."""
        share = self._share
        place = self.taken - self._skipped
        first = share.first(place) - place
        return [self._numbered(*drawn) for drawn in self._order.peek(first + count * share.of)[first :: share.of]][:count]

    def _numbered(self, session: Session, repeat: int) -> Session:
        return replace(session, repeat=repeat) if repeat and (self._vary or session.routed) else session

    def _pass_over(self, count: int) -> None:
        for _ in range(count):
            next(self._order)
            self.taken += 1

    def _follow(self, strategy: SamplingStrategy, rng: Random) -> Iterator[tuple[Session, int]]:
        """Yield each root with the number of times that it came before."""
        roots = self._roots
        if not roots:
            return
        if strategy == "random":
            before: Counter[str] = Counter()
            while True:
                root = rng.choice(roots)
                yield self._sessions[root], before[root]
                before[root] += 1
        for repeat in itertools.count():
            for root in roots if strategy == "sequential" else rng.sample(roots, len(roots)):
                yield self._sessions[root], repeat


def model_shown(options: RunOptions, workload: Workload) -> str:
    """Return the model of the command line or the endpoint, else those that the file names."""
    if options.model:
        return options.model
    turns = [turn for session in workload.sessions.values() for turn in session.turns]
    names = [turn.model or (turn.payload or {}).get("model") for turn in turns]
    return ", ".join(dict.fromkeys(str(name) for name in names if name)) or "unnamed"


def run_name(options: RunOptions, workload: Workload, load: str = "") -> str:
    """Return the default name of a run's folder: MODEL-ENDPOINT-LOAD."""
    model = re.sub(r"[^\w.-]+", "_", model_shown(options, workload))
    return f"{model}-openai-{options.endpoint_type or 'chat'}-{load or _load_shown(options)}"


def expected_requests(workload: Workload, options: RunOptions) -> int | None:
    """Return the requests that the run sends if nothing fails; None when only time limits it, or the roots are drawn."""
    count = options.num_conversations
    if options.fixed_schedule and (options.schedule_start_s or options.schedule_end_s < float("inf")):
        return None if scheduled_roots(workload, options) < len(workload.roots) else sum(requests_by_root(workload).values())
    if options.user_rate_per_s is not None or (count is options.request_count is None and options.open_ended):
        return options.request_count
    by_root = list(requests_by_root(workload).values())
    once = by_root[: len(by_root) - workload.skipped]
    if options.sampling != "sequential" and count is not None and len(set(by_root)) > 1:
        expected = None
    elif count is None:
        expected = sum(once)
    else:
        before, after = (
            divmod(number, len(by_root)) for number in (options.first_root, options.first_root + count)
        )  # passes over the file, and roots of the next
        expected = (after[0] - before[0]) * sum(by_root) + sum(by_root[: after[1]]) - sum(by_root[: before[1]])
    if options.request_count is not None:
        return options.request_count if count is None or expected is None else min(options.request_count, expected)
    return expected


def _load_shown(options: RunOptions) -> str:
    if options.fixed_schedule:
        return "fixed_schedule"
    if options.user_rate_per_s is not None:
        return f"user_centric{options.user_rate_per_s:g}"
    if options.request_rate_series is not None:
        return "request_rate_series"
    if options.request_rate_per_s is not None:
        return f"request_rate{options.request_rate_per_s:g}"
    return f"concurrency{options.concurrency}"
