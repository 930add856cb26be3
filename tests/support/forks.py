"""`--forks N`: the tests in N forks of the process that has collected them, where xdist's workers would each collect.

A fork that is free asks for the next test: of its file, then of a file that nobody has begun, then of the file with the most
tests left. It runs a test when it knows the one after it, as pytest wants it, and reports to the process that it comes from.
"""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Iterator
from itertools import groupby
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=1, help="processes that run tests; 1: this one")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    options = session.config.option
    if options.forks < 2 or options.collectonly or session.testsfailed or not hasattr(os, "fork"):
        return None
    sys.stdout.flush()
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # made once, forks have folders in it
    Forks(session, min(options.forks, len(session.items))).run()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


class Forks:
    """The forks, the tests that none of them has asked for, and what comes from them."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        self.session, self.hook = session, session.config.hook
        numbered = enumerate(session.items)
        files = [(path, deque(n for n, _ in group)) for path, group in groupby(numbered, key=lambda each: each[1].path)]
        # Those of the whole first, which wait and take longest. Deep folders have short ones: no fork ends late.
        self.files = deque(numbers for _, numbers in sorted(files, key=lambda each: len(each[0].parts)))
        self.begun: dict[Connection, deque[int]] = {}  # the file of each fork
        self.asked: dict[Connection, list[int]] = {}  # the tests of each fork without a report: one runs, the next is known
        self.processes: dict[Connection, int] = {}
        self.count = count

    def run(self) -> None:
        try:
            for _ in range(self.count):
                self.fork()
            while self.processes:
                for fork in wait(self.processes):
                    assert isinstance(fork, Connection)
                    try:
                        kind, data = fork.recv()
                    except (EOFError, ConnectionResetError):
                        self.ended(fork)
                    else:
                        getattr(self, kind)(fork, data)
        finally:
            for process in self.processes.values():
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)

    def fork(self) -> None:
        here, there = multiprocessing.Pipe()
        if (process := os.fork()) == 0:
            here.close()
            for other in self.processes:
                other.close()
            _work(self.session, there)
        there.close()
        self.processes[here], self.asked[here], self.begun[here] = process, [], deque()

    def next(self, fork: Connection, _: None) -> None:
        stopped = self.session.shouldfail or self.session.shouldstop
        while self.files and not self.begun[fork]:
            self.begun[fork] = self.files.popleft()
        tests = self.begun[fork] or max(self.begun.values(), key=len)
        number = tests.popleft() if tests and not stopped else None
        if number is not None:
            self.asked[fork].append(number)
        fork.send(number)

    def report(self, fork: Connection, data: dict[str, Any]) -> None:
        report = self.hook.pytest_report_from_serializable(config=self.session.config, data=data)
        self.hook.pytest_runtest_logreport(report=report)

    def done(self, fork: Connection, number: int) -> None:
        self.asked[fork].remove(number)

    def warning(self, fork: Connection, data: dict[str, Any]) -> None:
        told = warnings.WarningMessage(message=data.pop("message"), category=UserWarning, filename="", lineno=0)
        self.hook.pytest_warning_recorded.call_historic(kwargs={"warning_message": told, **data})

    def ended(self, fork: Connection) -> None:
        """Take note that a fork has ended. A test during which it did has failed, and another fork runs the rest."""
        fork.close()
        _, status = os.waitpid(self.processes.pop(fork), 0)
        left = self.asked.pop(fork)
        self.files.appendleft(self.begun.pop(fork))
        if left:
            item = self.session.items[left[0]]
            told = f"the process that ran it ended with status {os.waitstatus_to_exitcode(status)}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", told, "call")
            self.hook.pytest_runtest_logreport(report=report)
            self.files.appendleft(deque(left[1:]))
            self.fork()
        elif status:
            raise RuntimeError(f"a fork ended with status {os.waitstatus_to_exitcode(status)} after its tests")


class Reporter:
    """What a fork's tests report, sent on; not what was warned of before, of which pytest tells each new plugin."""

    def __init__(self, config: pytest.Config, parent: Connection) -> None:
        self.config, self.parent, self.begun = config, parent, False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.parent.send(("report", self.config.hook.pytest_report_to_serializable(config=self.config, report=report)))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        told = UserWarning(f"{warning_message.category.__name__}: {warning_message.message}")
        if self.begun:
            self.parent.send(("warning", {"message": told, "when": when, "nodeid": nodeid, "location": None}))


def _work(session: pytest.Session, parent: Connection) -> None:
    """Run tests for as long as there are any, and end the process."""
    status = 1
    try:
        manager = session.config.pluginmanager
        manager.unregister(manager.getplugin("terminalreporter"))
        capture = manager.getplugin("capturemanager")  # the files it captures in are the parent's
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        folders = session.config._tmp_path_factory  # type: ignore[attr-defined]
        folders._basetemp = folders.getbasetemp() / f"fork-{os.getpid()}"
        folders._basetemp.mkdir(mode=0o700)
        manager.register(reporter := Reporter(session.config, parent))
        reporter.begun = True
        numbers = iter(_numbers(parent))
        number = next(numbers)
        while number is not None:
            following = next(numbers)
            session.config.hook.pytest_runtest_protocol(
                item=session.items[number], nextitem=None if following is None else session.items[following]
            )
            parent.send(("done", number))
            number = following
        session.config._ensure_unconfigure()  # it raises what the garbage raised as it was collected
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads as the end of an interpreter does
        atexit._run_exitfuncs()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _numbers(parent: Connection) -> Iterator[int | None]:
    while True:
        parent.send(("next", None))
        yield parent.recv()
