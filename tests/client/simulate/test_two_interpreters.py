"""The same rules by both interpreters: on asyncio and on the event queue every request goes out, ends and counts alike."""

import asyncio
import heapq
import zlib
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmirage_client.load.any_runner import WarmUpError
from llmirage_client.load.calls import Planned
from llmirage_client.load.conversation import Conversation
from llmirage_client.load.options import LaneOptions, RunOptions
from llmirage_client.load.runner import Runner
from llmirage_client.measure.record import Exchange, Record, RunResult
from llmirage_client.simulate import simulation
from llmirage_client.simulate.simulation import EngineRun
from llmirage_client.simulate.token_rows import LOST, TokenRow
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.targets.target import Call
from llmirage_client.workload.request_graph import Need, RecordedRequest, sessions_of_play
from llmirage_client.workload.session import Branch, Round, Session, TokenSpec, Turn, Workload
from llmirage_shared import virtual_time
from llmirage_shared.standstill import VirtualDeadlockError

pytestmark = pytest.mark.interpreted

FAILS_ONE_IN = 8


def takes_s(name: str) -> float:
    """How long a request takes, by its conversation and turn: no two of them end together by chance."""
    return 0.05 + zlib.crc32(name.encode()) / 2**32


def fails(name: str) -> bool:
    return zlib.crc32(f"fails {name}".encode()) % FAILS_ONE_IN == 0


class Endpoint:
    """A target and a planner for the runner on asyncio."""

    def plan(self, conversation: Conversation, turn_index: int) -> Planned:
        return Planned(Call(f"{conversation}/{turn_index}", {}, api="completions"))

    def replied(self, conversation: Conversation, planned: Planned, exchange: Exchange) -> None: ...

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def send(self, call: Call) -> Exchange:
        exchange = Exchange(start_s=self.now())
        if call.on_sent is not None:
            call.on_sent()
        await asyncio.sleep(takes_s(call.path))
        exchange.end_s = self.now()
        if fails(call.path):
            exchange.error = LOST
        return exchange

    async def close(self) -> None: ...


class Replies:
    """In the place of ClusterRun."""

    def __init__(self, cluster: object, observer: object) -> None:
        self.waits: list[Any] = []
        self._serial = count()
        self._due: list[tuple[float, int, TokenRow]] = []

    @property
    def under_way(self) -> int:
        return len(self._due)

    def submit(self, row: TokenRow, now: float) -> None:
        name = f"{row.conversation}/{row.turn_index}"
        heapq.heappush(self._due, (now + takes_s(name), next(self._serial), row))

    def cancel(self, request: Any, now: float) -> None:
        self._due = [due for due in self._due if due[2].request is not request]
        heapq.heapify(self._due)

    def run(self, to: float) -> float:
        if not self._due or self._due[0][0] > to:
            return to
        end_s, _, row = heapq.heappop(self._due)
        row.request.failed = fails(f"{row.conversation}/{row.turn_index}")
        row.over()
        return end_s


class Nobody:
    def finish(self, now: float) -> None: ...


def by_tasks(workload: Workload, options: RunOptions) -> RunResult:
    async def main() -> RunResult:
        endpoint = Endpoint()
        return await Runner(workload, options, endpoint, planner=endpoint).run()

    return virtual_time.run(main())


def by_queue(workload: Workload, options: RunOptions) -> RunResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "ClusterRun", Replies)
        run = EngineRun(ClusterConfig(ttft_ms=1.0, itl_ms=1.0), workload, options)
        observer: Any = Nobody()
        result = run.run(observer, None, "")
    result.records = run.rows.made_records()
    return result


def told(result: RunResult) -> dict[str, Any]:
    """All that does not depend on what a request carries."""

    def of(record: Record) -> tuple[Any, ...]:
        exchange, error = record.exchange, record.exchange.error
        who = record.session_num, record.conversation_id, record.correlation_id, record.parent_correlation_id
        place = record.branch_mode, record.agent_depth, record.parent_turn_index, record.joined, record.phase
        when = record.issued_s, exchange.start_s, exchange.end_s
        return record.request_id, who, place, when, error and error.type, record.cancelled

    return {
        "requests": sorted(map(of, result.records)),
        "stats": result.branch_stats,
        "ended": (result.end_s, result.cancelled, result.cancel_reason),
        "notes": result.notes,
    }


def outcome(run: Any, workload: Workload, options: RunOptions) -> Any:
    try:
        return told(run(workload, options))
    except VirtualDeadlockError:
        return "stands still"
    except WarmUpError as error:
        return str(error)


DELAYS = st.sampled_from([0.0, 0.0, 0.125, 0.5, 2.0])


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Sessions that start only those after them, so that none waits for itself."""
    names = [f"s{i}" for i in range(draw(st.integers(1, 7)))]
    sessions = {}
    delays = DELAYS
    for place, name in enumerate(names):
        later = st.sampled_from(names[place + 1 :] or [""])
        children = st.lists(later, min_size=1, max_size=3).map(tuple)
        with_children = place + 1 < len(names)
        arrival_s = draw(st.sampled_from([None, 0.25 * place]))
        if with_children and draw(st.integers(0, 5)) == 0:
            rounds = tuple(Round(draw(children), draw(delays), draw(st.booleans())) for _ in range(draw(st.integers(1, 2))))
            sessions[name] = Session(name, (), mode="tokens", rounds=rounds, arrival_s=arrival_s)
            continue
        turns, length = [], draw(st.integers(1, 4))
        for index in range(length):
            branches = []
            for number in range(draw(st.integers(0, 2)) if with_children else 0):
                joins = [None, *range(index + 1, length)]
                kind, join_at = draw(st.sampled_from(["spawn", "fork"])), draw(st.sampled_from(joins))
                branches.append(Branch(f"{name}:{index}:{number}", kind, draw(children), join_at))
            turns.append(Turn(tokens=TokenSpec(20 + 10 * index, 5), delay_s=draw(delays), branches=tuple(branches)))
        before = draw(children) if with_children and draw(st.integers(0, 4)) == 0 else ()
        sessions[name] = Session(
            name,
            tuple(turns),
            mode="tokens",
            arrival_s=arrival_s,
            pre_session_spawns=before,
            ends_on_failure=draw(st.booleans()),
        )
    roots = tuple(draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)))
    return Workload("made", "dag_jsonl", sessions, roots)


LOADS: list[dict[str, Any]] = [
    {"concurrency": 1},
    {"concurrency": 3, "concurrency_ramp_s": 1.5},
    {"request_rate_per_s": 3.0},
    {"request_rate_per_s": 20.0, "concurrency": 2},
    {"fixed_schedule": True},
    {"user_rate_per_s": 2.0, "num_users": 2},
]
ENDS: list[dict[str, Any]] = [
    {},
    {"request_count": 5},
    {"benchmark_duration_s": 1.0, "benchmark_grace_period_s": 0.5},
    {"num_conversations": 4, "soft_duration_s": 2.0},
]
REST: list[dict[str, Any]] = [
    {},
    {"fail_fast": True},
    {"fail_fast_children": True},
    {"cancellation_share": 0.4, "cancellation_delay_s": 0.3},
    {"warmup_request_count": 2},
    {"inter_turn_delay_mean_s": 0.4, "inter_turn_delay_std_s": 0.2},
]


@settings(suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(workloads(), st.sampled_from(LOADS), st.sampled_from(ENDS), st.sampled_from(REST), st.integers(0, 3))
def test_both_do_the_same(workload: Workload, load: Any, end: Any, rest: Any, seed: int) -> None:
    if "fixed_schedule" in load and not workload.timed:
        load = {"concurrency": 2}
    if not any(workload.sessions[root].turns or workload.sessions[root].rounds for root in workload.roots):
        return
    options = RunOptions(model="m", seed=seed, **load, **end, **rest)
    assert outcome(by_queue, workload, options) == outcome(by_tasks, workload, options)


@st.composite
def plays(draw: st.DrawFn) -> Workload:
    """Requests that wait for earlier ones, in streams at random."""
    sessions: dict[str, Session] = {}
    roots, names = [], set[str]()
    for play in range(draw(st.integers(1, 3))):
        requests: list[RecordedRequest] = []
        for number in range(draw(st.integers(1, 8))):
            before = draw(st.lists(st.sampled_from(requests), max_size=3, unique_by=lambda one: one.id)) if requests else []
            waits = [Need(one.id, draw(DELAYS), draw(st.sampled_from(["reply", "dispatch"]))) for one in before]
            turn = Turn(tokens=TokenSpec(20 + 10 * number, 5))
            stream = f"p{play}/{draw(st.integers(0, 2))}"
            requests.append(RecordedRequest(f"{number}", stream, turn, number + draw(DELAYS), tuple(waits)))
        made = sessions_of_play(requests, names, float(play), floors=draw(st.booleans()), mode="tokens")
        made = [replace(one, ends_on_failure=draw(st.booleans())) for one in made]
        sessions |= {one.id: one for one in made}
        roots.append(made[0].id)
    return Workload("made", "agentic_mooncake", sessions, tuple(roots))


@settings(suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(plays(), st.sampled_from(LOADS), st.sampled_from(ENDS), st.sampled_from(REST), st.integers(0, 3))
def test_both_agree_where_requests_wait_for_each_other(
    workload: Workload, load: Any, end: Any, rest: Any, seed: int
) -> None:
    options = RunOptions(model="m", seed=seed, **load, **end, **rest)
    by_events = outcome(by_queue, workload, options)
    assert by_events == outcome(by_tasks, workload, options)
    assert by_events != "stands still"


@st.composite
def lanes(draw: st.DrawFn) -> LaneOptions:
    start_min = draw(st.sampled_from([0.0, 0.3, 0.5]))
    pressure: dict[str, Any] = draw(
        st.sampled_from([{}, {"pressure_requests": 1}, {"pressure_requests": 5}, {"pressure_s": 1.5}])
    )
    return LaneOptions(
        run_id="r",
        start_min=start_min,
        start_max=draw(st.sampled_from([start_min, 1.0])),
        burst=draw(st.booleans()),
        warm_up_grace_s=draw(st.sampled_from([0.4, 1e9])),
        system_idle_cap_s=draw(st.sampled_from([None, 0.5])),
        tree_idle_cap_s=draw(st.sampled_from([None, 0.25])),
        failed_request_threshold=draw(st.sampled_from([None, 0.1])),
        overflow=draw(st.sampled_from([(), ("lost",)])),
        **pressure,
    )


@settings(suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(plays(), lanes(), st.integers(1, 4), st.integers(0, 3))
def test_both_do_the_same_on_lanes(workload: Workload, on: LaneOptions, count: int, seed: int) -> None:
    options = RunOptions(
        model="m", seed=seed, lanes=on, concurrency=count, benchmark_duration_s=6.0, benchmark_grace_period_s=0.5
    )
    by_events = outcome(by_queue, workload, options)
    assert by_events == outcome(by_tasks, workload, options)
    assert by_events != "stands still"
    if isinstance(by_events, str):
        return  # a failed warm-up
    places = [(who[2], place[4], when) for _, who, place, when, _, _ in by_events["requests"]]
    ordered = sorted(places, key=lambda each: (each[0], each[2][1]))
    for (name, _, (_, _, end_s)), (other, _, (_, start_s, _)) in pairwise(ordered):
        assert name != other or start_s >= end_s  # one request of an agent after the other, across the phases, too
    warm_up = [when for _, phase, when in places if phase == "warmup"]
    profile = [when for _, phase, when in places if phase == "profiling"]
    assert not warm_up or not profile or max(end for _, _, end in warm_up) <= min(start for _, start, _ in profile)


def test_what_is_compared_has_forks_joins_failures_and_cancellations() -> None:
    """One tree by hand: what both say is not only equal, it is what the rules say."""

    def turn(tokens: int, *branches: Branch, delay_s: float = 0.0) -> Turn:
        return Turn(tokens=TokenSpec(tokens, 5), branches=branches, delay_s=delay_s)

    sessions = {
        "root": Session(
            "root",
            (turn(20, Branch("root:0", "spawn", ("one", "two"), join_at=2)), turn(30), turn(40, delay_s=0.5)),
            mode="tokens",
        ),
        "one": Session("one", (turn(20), turn(30, Branch("one:1", "fork", ("two",)))), mode="tokens"),
        "two": Session("two", (turn(20, delay_s=3.0),), mode="tokens"),
    }
    workload = Workload("made", "dag_jsonl", sessions, ("root",))
    results = [run(workload, RunOptions(model="m", seed=1)) for run in (by_queue, by_tasks)]
    for result in results:
        rows = {(r.conversation_id, r.turn_index, r.agent_depth): r for r in result.records}
        ends = {key: row.exchange.end_s or 0.0 for key, row in rows.items()}
        assert len(rows) == 7
        # Children start with the reply; the join waits for the last reply of both and its own previous turn, then its delay.
        assert rows["one", 0, 1].exchange.start_s == ends["root", 0, 0]
        assert rows["two", 0, 1].exchange.start_s == ends["root", 0, 0] + 3.0
        joined = max(ends["one", 1, 1], ends["two", 0, 1], ends["root", 1, 0])
        assert rows["root", 2, 0].exchange.start_s == joined + 0.5
        assert len(rows["root", 2, 0].joined) == 2
        assert rows["two", 0, 2].branch_mode == "fork"
        assert rows["two", 0, 2].exchange.start_s == ends["one", 1, 1] + 3.0
        assert (result.branch_stats.children_spawned, result.branch_stats.parents_resumed) == (3, 1)
    assert told(results[0]) == told(results[1])


def test_the_queue_has_no_loop() -> None:
    """A simulation in token counts runs where there is no event loop, and where one runs already."""

    async def within() -> RunResult:
        workload = Workload("made", "dag_jsonl", {"s": Session("s", (Turn(tokens=TokenSpec(9, 2)),), mode="tokens")}, ("s",))
        before = len(asyncio.all_tasks())
        result = by_queue(workload, RunOptions(model="m", seed=1))
        assert len(asyncio.all_tasks()) == before
        return result

    assert len(asyncio.run(within()).records) == 1
