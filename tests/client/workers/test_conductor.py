"""How a run of several workers is led: one start, records as they come, and what happens when a worker is lost."""

import os
import pickle
import signal
import time
from collections.abc import Sequence

import pytest

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.metrics import compute
from llmirage_client.measure.record import BranchStats, Exchange, Record
from llmirage_client.operations.one_run import most_workers
from llmirage_client.report.console import client_warnings
from llmirage_client.report.records_file import RunClock, record_line
from llmirage_client.targets.endpoint import EndpointSettings
from llmirage_client.workers import conductor as module
from llmirage_client.workers.conductor import Conductor, WorkerFailure
from llmirage_client.workers.job import Begin, Clocks, Event, Failed, Finished, Job, Lost, Progressed, Ready
from llmirage_client.workers.merge import merged
from llmirage_client.workers.processes import ProcessCrew
from llmirage_client.workload.session import Session, Turn, Workload

ZERO_UNIX_S = 1_700_000_000.0
FLOW = Workload(
    "dag_jsonl", "f.jsonl", {n: Session(n, (Turn(({"role": "user", "content": n},)),)) for n in "ab"}, ("a", "b")
)


class Crew:
    """Says what it is told to, one step each time it is asked. None: the worker does not tell the time."""

    def __init__(self, steps: Sequence[Sequence[tuple[int, Event]]], ahead_s: Sequence[float | None] = (0.0, 100.0)) -> None:
        self.steps = list(steps)
        self.ahead_s = ahead_s
        self.begun: list[tuple[int, Begin]] = []
        self.cancelled: list[tuple[int, str]] = []
        self.jobs: Sequence[Job] = ()
        self.closed = False

    def hire(self, jobs: Sequence[Job]) -> Sequence[str]:
        self.jobs = jobs
        return [f"host{number}" for number in range(len(jobs))]

    def clocks(self, worker: int) -> Clocks | None:
        ahead_s = self.ahead_s[worker]
        return None if ahead_s is None else Clocks(ahead_s, ahead_s + 1, 0.0004)

    def begin(self, worker: int, begin: Begin) -> None:
        self.begun.append((worker, begin))

    def cancel(self, worker: int, reason: str) -> None:
        self.cancelled.append((worker, reason))

    def events(self, timeout_s: float) -> Sequence[tuple[int, Event]]:
        return self.steps.pop(0) if self.steps else ()

    def close(self) -> None:
        self.closed = True


class Written:
    def __init__(self) -> None:
        self.content = b""

    def write_lines(self, lines: bytes) -> None:
        self.content += lines


def finished(**changes: object) -> Finished:
    known: dict[str, object] = {
        "branch_stats": BranchStats(children_spawned=2),
        "inputs": pickle.dumps([{"session_id": "a", "payloads": [1]}, {"session_id": "b", "payloads": [2]}]),
        "notes": ("same",),
        "endpoint": "chat",
        "cpu_s": 1.0,
        "lag_s": (0.0, 0.001),
        "end_s": 12.0,
        "late_start_s": 0.0,
        "roots_taken": 4,
        "cancel_reason": None,
        "transports": (),
    }
    return Finished(**{**known, **changes})  # type: ignore[arg-type]


def line(number: int, start_s: float, late_s: float = 0.0) -> bytes:
    exchange = Exchange(start_s, None, start_s + 0.5, [start_s + 0.1, start_s + 0.5], status=200, streamed=True)
    name = f"c{number}"
    record = Record(number, name, 0, f"r{number}", name, name, None, 0, start_s - late_s, exchange)
    return record_line(record, RunClock(0.0, ZERO_UNIX_S), "llmirage-1")


def conduct(crew: Crew, options: RunOptions | None = None) -> tuple[Conductor, Written]:
    written = Written()
    job = Job(FLOW, options or RunOptions(concurrency=2, seed=1), EndpointSettings(urls=("http://x",)))
    return Conductor(crew, job, 2, written, time.monotonic(), ZERO_UNIX_S), written


def test_all_begin_at_one_moment_of_their_own_clocks_once_all_are_ready() -> None:
    crew = Crew([[(0, Ready("profiling"))], [], [(1, Ready("profiling"))], [(0, finished()), (1, finished())]])
    conductor, _ = conduct(crew)
    conductor.run()
    (first, at_first), (second, at_second) = crew.begun
    assert (first, second) == (0, 1)
    assert at_second.at_s - at_first.at_s == pytest.approx(100.0)
    assert at_second.zero_s - at_first.zero_s == pytest.approx(100.0)
    assert at_first.at_s - at_first.zero_s == pytest.approx(conductor.start_s)
    assert [(j.options.share.index, j.options.share.of) for j in crew.jobs] == [(0, 2), (1, 2)]
    assert crew.closed
    assert crew.cancelled == []


def test_nobody_begins_the_measured_phase_while_another_warms_up() -> None:
    steps: list[list[tuple[int, Event]]] = [
        [(0, Ready("warmup")), (1, Ready("warmup"))],
        [(0, Ready("profiling"))],
        [],
        [(1, Ready("profiling"))],
        [(0, finished()), (1, finished())],
    ]
    crew = Crew(steps)
    conduct(crew)[0].run()
    assert [worker for worker, _ in crew.begun] == [0, 1, 0, 1]
    assert crew.begun[1][1].at_s - 100 == pytest.approx(crew.begun[0][1].at_s)


def test_records_are_written_as_they_come_and_those_of_a_lost_worker_stay() -> None:
    steps: list[list[tuple[int, Event]]] = [
        [(0, Ready("profiling")), (1, Ready("profiling"))],
        [(0, Progressed(line(0, 10.0), 1, 0, 1)), (1, Progressed(line(1, 10.2) + line(2, 10.3), 2, 0, 1))],
        [(1, Lost("its machine is gone"))],
        [(0, finished(cancel_reason="as told"))],
    ]
    crew = Crew(steps)
    conductor, written = conduct(crew)
    parts = conductor.run()
    why = "worker 2 of 2 on host1 was lost: its machine is gone"
    assert written.content.count(b"\n") == 3
    assert crew.cancelled == [(0, why)]
    assert conductor.cancel_reason == why
    result = merged(parts, FLOW, RunOptions(), 9.0, round(ZERO_UNIX_S * 1e9), conductor.cancel_reason)
    assert (len(result.records), result.cancelled, result.cancel_reason) == (3, True, why)
    assert [(w.requests, w.lost) for w in result.workers] == [(1, None), (2, "its machine is gone")]


def test_a_worker_that_does_not_tell_the_time_is_lost() -> None:
    crew = Crew([[], [(0, finished(cancel_reason="as told"))]], ahead_s=(0.0, None))
    conductor, _ = conduct(crew)
    assert [part.lost for part in conductor.run()] == [None, "it did not answer the clock request"]
    assert crew.cancelled[0][0] == 0


def test_when_one_stops_at_a_failure_all_stop() -> None:
    crew = Crew([[(0, finished(cancel_reason="a request failed"))], [(1, finished(cancel_reason="a request failed"))]])
    conductor, _ = conduct(crew)
    conductor.run()
    assert crew.cancelled == [(1, "a request failed")]
    assert conductor.cancel_reason == "a request failed"


def test_a_worker_that_does_not_stop_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_END_S", 0.0)
    crew = Crew([[(0, finished())]])
    conductor, _ = conduct(crew)
    conductor.cancel("Ctrl-C")
    parts = conductor.run()
    assert [part.lost for part in parts] == [None, "it did not stop within 0 s"]
    assert conductor.cancel_reason == "Ctrl-C"


def test_a_worker_that_falls_silent_is_lost_and_its_records_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SILENCE_S", 0.3)
    monkeypatch.setattr(module, "_END_S", 0.0)
    word = Progressed(b"", 0, 0, 0)

    class Half(Crew):
        def events(self, timeout_s: float) -> Sequence[tuple[int, Event]]:
            time.sleep(0.02)
            return self.steps.pop(0) if self.steps else ((0, word),)

    crew = Half([[(0, Ready("profiling")), (1, Ready("profiling"))], [(1, Progressed(b"line\n", 1, 0, 1))]], (0.0, 0.0))
    conductor, written = conduct(crew)
    parts = conductor.run()
    assert parts[1].lost == "it has said nothing for 0.3 s"
    assert written.content == b"line\n"
    assert crew.closed


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs a system that stops processes")
def test_a_stopped_process_is_ended_with_the_crew() -> None:
    crew = ProcessCrew()
    crew.hire([Job(FLOW, RunOptions(concurrency=1), EndpointSettings(urls=("http://127.0.0.1:9",)))])
    [process] = crew._processes
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    crew.close()
    process.join(10)
    assert not process.is_alive()


@pytest.mark.parametrize("refused", [True, False])
def test_a_worker_that_cannot_ends_the_run(refused: bool) -> None:
    crew = Crew([[(1, Failed("no such tokenizer", refused))]])
    conductor, _ = conduct(crew)
    with pytest.raises(WorkerFailure, match="no such tokenizer") as raised:
        conductor.run()
    assert raised.value.refused is refused
    assert crew.closed


def test_one_result_of_several_parts() -> None:
    steps: list[list[tuple[int, Event]]] = [
        [(0, Ready("profiling")), (1, Ready("profiling"))],
        [(0, Progressed(line(0, 10.0), 1, 0, 0)), (1, Progressed(line(1, 9.5, late_s=0.2), 1, 0, 0))],
        [(0, finished()), (1, finished(cpu_s=2.9, notes=("same", "own"), endpoint="responses"))],
    ]
    conductor, _ = conduct(Crew(steps))
    options = RunOptions(concurrency=2)
    result = merged(conductor.run(), FLOW, options, 9.0, round(ZERO_UNIX_S * 1e9), None)
    assert [r.request_id for r in result.records] == ["r1", "r0"]  # in order of completion
    assert result.records[0].exchange.token_s == pytest.approx([9.6, 10.0])
    assert (result.start_s, result.end_s, result.start_unix_s) == (9.0, 12.0, ZERO_UNIX_S + 9)
    assert result.branch_stats == BranchStats(children_spawned=4)
    assert result.endpoint == "chat and responses"
    assert [session["session_id"] for session in result.inputs] == ["a", "b", "a#2", "b#2"]
    assert result.notes[:2] == ["same", "own"]
    assert result.notes[2].startswith("2 workers sent this load (1 on host0, 1 on host1). Their clocks agree within 0.4 ms")
    first, second = result.workers
    assert (first.host, first.clock_offset_s, second.clock_offset_s) == ("host0", 1.0, 101.0)
    assert first.cost is not None
    assert second.cost is not None
    assert (first.cost.was_bottleneck, second.cost.late, second.cost.busy) == (False, True, True)
    assert result.client_cost is not None
    assert (result.client_cost.cpu_s, result.client_cost.late) == (3.9, True)
    warnings = client_warnings(result, compute(result))
    assert [warning.split(" was ")[0].split(" used ")[0] for warning in warnings] == ["Worker 2 on host1"] * 2


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"concurrency": 5}, (2, "the number of conversations")),
        ({}, (1, "a concurrency of 1")),
        ({"concurrency": 9, "num_conversations": 7}, (7, "the number of conversations")),
        ({"concurrency": 9, "soft_duration_s": 5.0}, (9, "a concurrency of 9")),
        ({"request_rate_per_s": 9.0, "request_count": 4}, (4, "--request-count")),
        ({"user_rate_per_s": 9.0, "num_users": 3, "benchmark_duration_s": 5.0}, (3, "--num-users")),
        ({"fixed_schedule": True}, (2, "the number of conversations")),
        ({"request_rate_per_s": 9.0, "soft_duration_s": 5.0}, (2**31, "")),
    ],
)
def test_no_more_workers_than_have_something_to_do(options: dict[str, object], most: tuple[int, str]) -> None:
    assert most_workers(FLOW, RunOptions(**options)) == most  # type: ignore[arg-type]
