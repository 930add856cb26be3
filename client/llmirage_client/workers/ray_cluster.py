"""Workers that are actors of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import socket
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from llmirage_client.workers.job import Begin, Clocks, CrewError, Event, Job, Lost
from llmirage_client.workers.worker import Worker


def connect(address: str | None = None, at_least_cpus: int = 1) -> Any:
    """Return the ray module, connected to a cluster. Raises CrewError.

    address: as ray.init has it; "local" starts one on this machine for as long as the process lives, None takes the one of
    RAY_ADDRESS or that runs on this machine, and else starts one.
    """
    try:
        import ray
    except ImportError:
        raise CrewError("--executor ray needs Ray, which is not installed: pip install 'llmirage[ray]'") from None
    if ray.is_initialized():
        return ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or every start warns of a change in GPU settings
    settings: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "include_dashboard": False}
    if address == "local":
        settings["num_cpus"] = max(at_least_cpus, os.cpu_count() or 1)
    try:
        ray.init(address=address, **settings)
    except Exception as error:  # Ray says in many ways that there is no cluster
        where = f"ray_address {address}" if address else "--executor ray"
        raise CrewError(f"{where}: cannot use a Ray cluster: {first_line(error)}") from None
    return ray


def nodes(ray: Any) -> int:
    """Return the number of machines of the cluster."""
    return sum(bool(node.get("Alive")) for node in ray.nodes())


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that is not blank."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


_ROUND_TRIPS = 15
_START_S = 120.0  # a node that has the room may still have to start a Python
_WAIT_S = 0.2  # how long an actor waits for something to tell before it says that there is nothing
_MAX_EVENTS = 256
_THREADS = 4  # of an actor: one waits for news, others take orders and tell the time


class RayCrew:
    """An actor of one CPU for each worker, spread over the machines. Orders, news and the time all travel as calls of it."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._actors: list[Any] = []
        self._news: dict[Any, int] = {}  # the call for news of each worker that is not lost or over

    def hire(self, jobs: Sequence[Job]) -> Sequence[str]:
        ray = self._ray
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if len(jobs) > cpus:
            raise CrewError(f"--workers {len(jobs)}: each takes a CPU, and the Ray cluster has {cpus}")
        actor = ray.remote(_Actor).options(max_concurrency=_THREADS, num_cpus=1, scheduling_strategy="SPREAD")
        self._actors = [actor.remote() for _ in jobs]
        try:
            hosts = ray.get([a.introduce.remote() for a in self._actors], timeout=_START_S)
            for host, theirs in hosts:
                if theirs != _versions():
                    raise CrewError(
                        f"{host} of the Ray cluster has {theirs}, and this machine has {_versions()}: they must be equal"
                    )
            workload = ray.put(jobs[0].workload)  # one copy a machine, however many workers
            ray.get(
                [a.work.remote(workload, job.options, job.endpoint) for a, job in zip(self._actors, jobs, strict=True)],
                timeout=_START_S,
            )
        except ray.exceptions.GetTimeoutError:
            raise CrewError(f"the Ray cluster did not start {len(jobs)} workers within {_START_S:g} s") from None
        except ray.exceptions.RayError as error:
            raise CrewError(
                f"a worker of the Ray cluster did not start; every machine needs {_versions()}: {first_line(error)}"
            ) from None
        for index in range(len(jobs)):
            self._ask_for_news(index)
        return [host for host, _ in hosts]

    def clocks(self, worker: int) -> Clocks | None:
        best: Clocks | None = None
        for _ in range(_ROUND_TRIPS):
            before_s, wall_before_s = time.monotonic(), time.time()
            try:
                theirs_s, theirs_wall_s = self._ray.get(self._actors[worker].time.remote(), timeout=_START_S)
            except self._ray.exceptions.RayError:
                return None
            half_s = (time.monotonic() - before_s) / 2  # the answer came from some moment in between
            if best is None or half_s < best.error_s:
                best = Clocks(theirs_s - before_s - half_s, theirs_wall_s - wall_before_s - half_s, half_s)
        return best

    def begin(self, worker: int, begin: Begin) -> None:
        self._actors[worker].begin.remote(begin)

    def cancel(self, worker: int, reason: str) -> None:
        self._actors[worker].cancel.remote(reason)

    def events(self, timeout_s: float) -> Sequence[tuple[int, Event]]:
        waiting = list(self._news)
        if not waiting:
            return []
        done, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        if not done:
            done, _ = self._ray.wait(waiting, num_returns=1, timeout=timeout_s)
        events: list[tuple[int, Event]] = []
        for call in done:
            worker = self._news.pop(call)
            try:
                events += [(worker, event) for event in self._ray.get(call)]
            except self._ray.exceptions.RayActorError:
                events.append((worker, Lost("its process or its machine has died")))
            except self._ray.exceptions.RayError as error:
                events.append((worker, Lost(first_line(error))))
            else:
                self._ask_for_news(worker)
        return events

    def _ask_for_news(self, worker: int) -> None:
        self._news[self._actors[worker].news.remote()] = worker

    def close(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._news.clear()


class _Actor:
    """Runs on a node of the cluster. The load has a thread of its own; calls of the actor have others."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._worker: Worker | None = None

    def introduce(self) -> tuple[str, str]:
        return socket.gethostname(), _versions()

    def time(self) -> tuple[float, float]:
        return time.monotonic(), time.time()

    def work(self, workload: Any, options: Any, endpoint: Any) -> None:
        self._worker = Worker(Job(workload, options, endpoint), self._events.put)
        threading.Thread(target=self._worker.run, daemon=True).start()

    def begin(self, begin: Begin) -> None:
        assert self._worker is not None
        self._worker.begin(begin)

    def cancel(self, reason: str) -> None:
        if self._worker is not None:
            self._worker.cancel(reason)

    def news(self) -> list[Event]:
        """Wait a little for the first event, and take all that are there then."""
        events: list[Event] = []
        with contextlib.suppress(queue.Empty):
            events.append(self._events.get(timeout=_WAIT_S))
            while len(events) < _MAX_EVENTS:
                events.append(self._events.get_nowait())
        return events


def _versions() -> str:
    """Return the versions that must agree on all machines, because pickled objects travel between them."""
    major, minor, _ = platform.python_version_tuple()
    return f"llmirage {version('llmirage')} on Python {major}.{minor}"
