"""Workers that are processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import socket
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from llmirage_client.workers.job import Begin, Clocks, CrewError, Event, Job, Lost
from llmirage_client.workers.worker import Worker

_END_S = 2.0


class ProcessCrew:
    """One pipe to each worker and one back. Each is a fresh interpreter: nothing of this process is copied into it."""

    def __init__(self) -> None:
        self._processes: list[SpawnProcess] = []
        self._orders: list[Connection] = []
        self._news: list[Connection | None] = []  # None: nothing more will come

    def hire(self, jobs: Sequence[Job]) -> Sequence[str]:
        context = multiprocessing.get_context("spawn")
        try:
            for job in jobs:
                orders_in, orders_out = context.Pipe(duplex=False)
                news_in, news_out = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(job, orders_in, news_out), daemon=True)
                process.start()
                orders_in.close()
                news_out.close()
                self._processes.append(process)
                self._orders.append(orders_out)
                self._news.append(news_in)
        except OSError as error:
            raise CrewError(f"--workers {len(jobs)}: a process could not be started: {error.strerror or error}") from None
        return [socket.gethostname()] * len(jobs)

    def clocks(self, worker: int) -> Clocks | None:
        return Clocks(0.0, 0.0, 0.0)  # processes of one machine have the same clocks

    def begin(self, worker: int, begin: Begin) -> None:
        self._order(worker, begin)

    def cancel(self, worker: int, reason: str) -> None:
        self._order(worker, reason)

    def _order(self, worker: int, order: Begin | str) -> None:
        with contextlib.suppress(OSError):  # it is gone, and `events` says so
            self._orders[worker].send(order)

    def events(self, timeout_s: float) -> Sequence[tuple[int, Event]]:
        open_ = {news: worker for worker, news in enumerate(self._news) if news is not None}
        events: list[tuple[int, Event]] = []
        for ready in wait(list(open_), timeout_s):
            assert isinstance(ready, Connection)
            worker = open_[ready]
            try:
                events.append((worker, ready.recv()))
            except (EOFError, OSError):
                self._news[worker] = None
                events.append((worker, Lost(self._end_of(worker))))
        return events

    def _end_of(self, worker: int) -> str:
        process = self._processes[worker]
        process.join(_END_S)
        code = process.exitcode
        if code is not None and code < 0:
            return f"process {process.pid} was killed by {signal.Signals(-code).name}"
        return f"process {process.pid} ended with status {code}"

    def close(self) -> None:
        for process in self._processes:
            process.join(_END_S if process.exitcode is None and not process.is_alive() else 0.2)
            if process.is_alive():
                process.terminate()
                process.join(_END_S)
            if process.is_alive():  # stopped: it does not take a signal that can be handled
                process.kill()
        for connection in (*self._orders, *self._news):
            if connection is not None:
                connection.close()


def _work(job: Job, orders: Connection, news: Connection) -> None:
    """Run a worker in its process. The leading process handles Ctrl-C; the worker exits if that process is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    worker = Worker(job, events.put)

    def obey() -> None:
        while True:
            try:
                order = orders.recv()
            except (EOFError, OSError):
                os._exit(1)
            if isinstance(order, Begin):
                worker.begin(order)
            else:
                worker.cancel(order)

    def report() -> None:
        while (event := events.get()) is not None:
            try:
                news.send(event)
            except OSError:
                os._exit(1)

    threading.Thread(target=obey, daemon=True).start()
    reporting = threading.Thread(target=report)
    reporting.start()
    worker.run()
    events.put(None)
    reporting.join()
