"""AgentX: lanes that replay recorded trees from sampled instants on, without end.

A lane always has one tree under way: the root of a trace with all its agents. Its first trace is taken up at an instant of
the recording, by primers in the warm-up (the last request of every agent before the instant, with a reply of one token) and
then by each agent's next request in the profile; when the tree is over the lane takes the next trace of the sampler from its
beginning. A warm-up may continue the trees without pauses, also with replies of one token, until each lane has sent a number
of requests or a time is over; the profile begins where it ended.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Protocol

from llmirage_client.load.arrivals import Arrivals, Slots, Steps, Stop
from llmirage_client.load.conversation import Conversation, Family, Group, RequestTree, Resumption, Timer, Until
from llmirage_client.load.options import LaneOptions, RunOptions
from llmirage_client.load.plan import Sampler
from llmirage_client.load.plays import Play, sampled_instant_s, streams_of
from llmirage_client.measure.submission import ReplayCounts
from llmirage_client.workload.session import Session, Workload
from llmirage_shared.plural import plural

_FEWEST_RECORDS = 10  # before errors can cancel a run


class Clock(Protocol):
    """The part of an interpreter that lanes use."""

    def now(self) -> float: ...

    def call_soon(self, callback: Callable[[], object]) -> None: ...

    def call_at(self, when_s: float, callback: Callable[[], object]) -> Timer: ...


class Lanes:
    """The lanes of a run, through all its phases.

    problem: the reason for which the run was given up.
    failed_roots: number of requests of roots that failed in the warm-up; there is no profile then.
    replay: what is counted.
    """

    def __init__(self, workload: Workload, options: RunOptions, sampler: Sampler) -> None:
        assert options.lanes is not None
        self.options: LaneOptions = options.lanes
        self.problem: str | None = None
        self.failed_roots = 0
        self.replay = ReplayCounts(skipped_s={"system": 0.0, "tree": 0.0})
        self._workload = workload
        self._sampler = sampler
        self._plays: Counter[str] = Counter()  # by trace
        self._seed = options.seed
        self.plays = list(self._first_plays(options.concurrency or 1))
        self.replay.lanes = [play.about() for play in self.plays]

    def _first_plays(self, lanes: int) -> Iterator[Play]:
        lane, attempts = 0, lanes + 2 * max(len(self._workload.roots), 1)
        while lane < lanes and attempts:
            attempts -= 1
            root = next(self._sampler)
            if not root.turns:
                continue
            streams = streams_of(self._workload, root)
            low, high = self.options.start_min, self.options.start_max
            origin_s = sampled_instant_s(streams, low, high, self._seed, lane)
            turns = {stream.session.id: stream.next_turn(origin_s) for stream in streams}
            play = Play(streams, lane, 0, "", origin_s, turns)
            if any(not play.gated(*each) for each in play.under_way()):
                play.marker = self._marker(play)
                yield play
                lane += 1

    def recycled(self, lane: int) -> Play:
        """Give a lane the next trace, from its beginning."""
        root = next(root for root in self._sampler if root.turns)
        play = Play(streams_of(self._workload, root), lane, self.plays[lane].place + 1, "", root.turns[0].recorded_s or 0.0)
        play.marker = self._marker(play)
        self.plays[lane] = play
        return play

    def _marker(self, play: Play) -> str:
        """Return a text that no other play of any run has before its first user message; none where there are no markers."""
        if not self.options.marks:
            return ""
        trace = play.root.id
        digest = hashlib.sha256(f"{self.options.run_id}:{self._plays[trace]}:{play.lane}:{trace}".encode()).hexdigest()
        self._plays[trace] += 1
        return f"[rid:{digest[:12]}]\n\n"


Stage = Literal["primers", "pressure", "profile"]
Begin = Callable[[Conversation, float], None]


class LaneArrivals(Arrivals):
    """The roots of one phase of a run over lanes.

    stage: what the conversations are under way for.
    """

    def __init__(
        self, lanes: Lanes, name: str, options: RunOptions, family: Family, begin: Begin, stop: Stop, clock: Clock,
        cancel: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(iter(()), _no_root, stop, Slots(None))
        self.stage: Stage = "primers" if name == "warmup" else "profile"
        self._lanes = lanes
        self._options = lanes.options
        self._speed = options.speed
        self._family = family
        self._begin = begin
        self._clock = clock
        self._cancel = cancel
        self._running: dict[Conversation, int] = {}  # roots and their lanes
        self._free: list[int] = []
        self._sent = [0] * len(lanes.plays)
        self._in_flight = 0
        self._in_flight_of: Counter[RequestTree] = Counter()
        self._idle: dict[RequestTree | None, Timer] = {}  # None: the system
        self._records = self._errors = 0
        self._first_failure = ""

    # --- the phases -----------------------------------------------------------------------------------------------------

    @property
    def unpaced(self) -> bool:
        """True if agents do not pause between requests."""
        return self.stage == "pressure"

    def steps(self) -> Steps:
        lanes = self._lanes
        if self.stage == "primers":
            yield from self._warm_up()
            return
        for play in list(lanes.plays):
            if not play.under_way():
                lanes.recycled(play.lane)
        starts = [self._starts_s(play) for play in lanes.plays]
        zero_s = min((starts_s for starts_s, _ in starts), default=0.0)
        now_s = self._clock.now()
        for play, (first_s, offsets_s) in zip(list(lanes.plays), starts, strict=True):
            base_s = first_s if self._options.burst else zero_s
            due_s = {name: now_s + max(offset_s - base_s, 0.0) / self._speed for name, offset_s in offsets_s.items()}
            self._resume(play, due_s)
        while not self.stop.closed:
            while self._free and not self.stop.closed:
                self._resume(lanes.recycled(self._free.pop(0)), {})
            yield math.inf

    def _starts_s(self, play: Play) -> tuple[float, dict[str, float]]:
        """Return when the first agent that waits for no other goes on, after the instant, and when each does."""
        live = play.under_way()
        offsets_s = {stream.session.id: play.offset_s(stream, index) for stream, index in live}
        free = [offsets_s[stream.session.id] for stream, index in live if not play.gated(stream, index)]
        return min(free, default=0.0), offsets_s

    def _warm_up(self) -> Steps:
        options = self._options
        leads_s: dict[int, dict[str, float]] = {}
        cap_s = math.inf if options.system_idle_cap_s is None else options.system_idle_cap_s
        for play in self._lanes.plays:
            leads_s[play.lane] = {
                stream.session.id: min(play.origin_s - (stream.session.turns[index - 1].recorded_s or 0.0), cap_s)
                for stream, index in play.under_way()
                if index
            }
        longest_s = max((lead_s for each in leads_s.values() for lead_s in each.values()), default=0.0)
        now_s, last_s = self._clock.now(), self._clock.now()
        for play in self._lanes.plays:
            due_s = {
                name: now_s + (0.0 if options.burst else longest_s - lead_s) / self._speed
                for name, lead_s in leads_s[play.lane].items()
            }
            if due_s:
                last_s = max(last_s, *due_s.values())
                self._resume(play, due_s)
        yield from self._until_over(last_s)
        if self.stop.ended or not options.has_pressure:
            return
        self.stage = "pressure"
        end_s = math.inf if options.pressure_s is None else self._clock.now() + options.pressure_s / self._speed
        for play in self._lanes.plays:
            self._resume(play, {stream.session.id: self._clock.now() for stream, _ in play.under_way()})
        while self._running or self._free:
            if self._clock.now() >= end_s:
                self.stop.end()
                break
            while self._free:
                lane = self._free.pop(0)
                if self._may_send(lane):
                    self._resume(self._lanes.recycled(lane), {})
            if not self._running:
                break
            yield end_s
        yield from self._until_over(self._clock.now())
        for play in self._lanes.plays:
            if not play.under_way():
                self._lanes.recycled(play.lane)

    def _until_over(self, sent_s: float) -> Steps:
        """Wait for the trees under way. sent_s: when their last requests go out; the grace period counts from there."""
        latest_s = sent_s + self._options.warm_up_grace_s / self._speed
        while self._running:
            if self._clock.now() >= latest_s:
                self._give_up("the warm-up's requests were not over within its grace period")
            yield latest_s if self._clock.now() < latest_s else math.inf

    def _resume(self, play: Play, due_s: Mapping[str, float]) -> None:
        """Start a tree where it stands. due_s: when its agents that are under way go on; empty: from its beginning."""
        root = self._family.root(play.root, "lane", play.lane, play.place)
        tree = root.tree = root.tree or RequestTree(frozenset())
        tree.play = play
        root.marker = play.marker
        play.held = False
        root.reply_tokens = None if self.stage == "profile" else 1
        if due_s:
            tree.resumed = Resumption(play.resumed(), due_s)
            for name, turns in play.turns.items():
                tree.take_as_done(name, turns)
        self._running[root] = play.lane
        self._begin(root, min(due_s.values(), default=self._clock.now()))
        if self.stage == "profile":
            self._watch(tree)

    def tree_done(self, root: Conversation) -> None:
        lane = self._running.pop(root)
        if self.stage != "primers" and root.tree is not None:
            self._forget(root.tree)
            if not self._lanes.plays[lane].held:
                self._free.append(lane)
        self.changed()

    @property
    def idle(self) -> bool:
        return not self._running

    # --- single requests ------------------------------------------------------------------------------------------------

    def permit(self, conversation: Conversation, index: int) -> bool:
        """Take the permission for a request; return False if it is left to a later phase, or to none."""
        tree = conversation.tree
        assert tree is not None
        assert tree.play is not None
        play: Play = tree.play
        if (self.stage == "pressure" and not self._may_send(play.lane)) or not self.stop.permit():
            play.held = True
            return False
        if self.stage == "pressure":
            self._sent[play.lane] += 1
        if self.stage != "primers":
            play.turns[conversation.session.id] = index + 1
        self._in_flight += 1
        self._in_flight_of[tree] += 1
        for whose in (tree, None):
            if (timer := self._idle.pop(whose, None)) is not None:
                timer.cancel()
        return True

    def _may_send(self, lane: int) -> bool:
        most = self._options.pressure_requests
        return most is None or self._sent[lane] < most

    def replied(self, conversation: Conversation) -> bool:
        """Note that a request is over; return True if its conversation ends with it."""
        tree = conversation.tree
        assert tree is not None
        assert tree.play is not None
        self._in_flight -= 1
        self._in_flight_of[tree] -= 1
        if not self._in_flight_of[tree]:
            del self._in_flight_of[tree]
        failed, overflow = conversation.failed, conversation.overflowed
        if overflow and self.stage != "primers" and conversation.turn_index is not None:
            tree.play.turns[conversation.session.id] = conversation.turn_index
            tree.play.ended.add(conversation.session.id)
        if self.stage != "profile":
            if (failed or overflow) and not conversation.depth:
                self._fail_warm_up(conversation)
            return overflow
        if overflow:
            self._lanes.replay.context_overflows += 1
        elif not conversation.cancelled:
            self._records += 1
            self._errors += failed
            self._judge()
        self._watch(tree)
        return overflow

    def _fail_warm_up(self, conversation: Conversation) -> None:
        lanes, error = self._lanes, conversation.error
        if not lanes.failed_roots:
            assert error is not None
            code = "" if error.code is None else f"{error.code}: "
            self._first_failure = f"conversation {conversation.session.id!r}: {code}{error.message}"
            self._clock.call_soon(self._cancel)
        lanes.failed_roots += 1
        failed = plural(lanes.failed_roots, "root request")
        lanes.problem = f"{failed} failed in the warm-up, so there is no profile. The first: {self._first_failure}"

    def _judge(self) -> None:
        most = self._options.failed_request_threshold
        if most is None or self._records < max(len(self._lanes.plays), _FEWEST_RECORDS):
            return
        if self._errors / self._records > most:
            self._give_up(f"{self._errors:,} of {plural(self._records, 'request')} failed: more than {most:.0%}")

    def _give_up(self, problem: str) -> None:
        if self._lanes.problem is None:
            self._lanes.problem = problem
            self._clock.call_soon(self._cancel)

    # --- idle time ------------------------------------------------------------------------------------------------------

    def _watch(self, tree: RequestTree) -> None:
        """Limit the time without a request in flight, of the tree and of all together."""
        options = self._options
        if options.tree_idle_cap_s is not None and tree not in self._in_flight_of:
            self._arm(tree, options.tree_idle_cap_s)
        if options.system_idle_cap_s is not None and not self._in_flight:
            self._arm(None, options.system_idle_cap_s)

    def _arm(self, whose: RequestTree | None, cap_s: float) -> None:
        if whose not in self._idle:
            when_s = self._clock.now() + cap_s / self._speed
            self._idle[whose] = self._clock.call_at(when_s, lambda: self._skip(whose))

    def _skip(self, whose: RequestTree | None) -> None:
        """Move waits earlier by the time to the first of them; and again, if that sent nothing."""
        self._idle.pop(whose, None)
        idle = not self._in_flight if whose is None else whose not in self._in_flight_of
        if not idle or self.stop.ended:
            return
        waiting = [
            (conversation, conversation.waits.when_s)
            for root in self._running
            if whose is None or root.tree is whose
            for conversation in _with_descendants(root)
            if isinstance(conversation.waits, Until)
        ]
        now_s = self._clock.now()
        if not waiting:
            return
        by_s = max(min(when_s for _, when_s in waiting) - now_s, 0.0)
        trees = {id(conversation.tree): conversation.tree for conversation, _ in waiting}
        for tree in trees.values():
            assert tree is not None
            tree.skipped_s += by_s
        self._lanes.replay.skipped_s["system" if whose is None else "tree"] += by_s * self._speed
        for conversation, _ in waiting:
            conversation.wake_early()
        self._clock.call_soon(lambda: self._skip(whose))

    def _forget(self, tree: RequestTree) -> None:
        if (timer := self._idle.pop(tree, None)) is not None:
            timer.cancel()


def _with_descendants(conversation: Conversation) -> Iterator[Conversation]:
    yield conversation
    group: Group | None = conversation.children
    for child in () if group is None else group.running:
        yield from _with_descendants(child)


def _no_root(session: Session, due_s: float) -> None:
    raise AssertionError("lanes start their own roots")
