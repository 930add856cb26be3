"""Runs a workload on a simulated cluster in virtual time: the runner of `llmirage run`, and the cluster of `llmirage serve`.

    simulation = simulate(ClusterConfig(model="Qwen/Qwen3-8B", instances=4), workload, RunOptions(request_rate_per_s=8.0))
    simulation.summary["ttft_ms"]["p99"]

Calling it again in one process costs what the run costs: deployments, catalogues and tokenizers are made once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.columns import Columns, columns_of
from llmirage_client.measure.metrics import Metrics, compute
from llmirage_client.measure.record import RunResult
from llmirage_client.study.bill import bill_of
from llmirage_client.study.cluster_series import ClusterSeries, Sampler
from llmirage_client.study.simulated_run import SimulatedRunner, TokenRunner
from llmirage_client.study.summary import summary_of
from llmirage_client.study.token_columns import columns_of_rows, token_metrics
from llmirage_client.study.token_run import TokenRecorder
from llmirage_client.study.window import WINDOW_OVER, Window
from llmirage_client.targets.direct import LOCAL_URL, DirectTarget
from llmirage_client.targets.simulator import (
    ClusterConfig,
    ServedPool,
    StepSpan,
    VirtualDriver,
    new_app,
    new_cluster,
    plan_of,
)
from llmirage_client.workload.session import Workload
from llmirage_shared.virtual_time import StandstillError, VirtualDeadlockError, run

Door = Literal["direct", "memory"]
DOORS: tuple[Door, ...] = ("direct", "memory")


class SimulationError(ValueError):
    """A simulation that makes no sense; the message is for the user."""


class Simulation:
    """What came of it. summary: plain figures by name, see study.summary. stopped: why it ended before the workload did.

    columns: one row a request. result: with the records of single requests, which are made when they are asked for.
    series: the cluster over time; steps: of each instance, where they were to be traced. Both of the direct door alone.
    """

    def __init__(
        self,
        config: ClusterConfig,
        result: RunResult,
        columns: Columns,
        metrics: Metrics,
        watch: Watch | None,
        recorder: TokenRecorder | None,
    ) -> None:
        self.config = config
        self.columns = columns
        self.metrics = metrics
        self.stopped = result.cancel_reason if result.cancel_reason != WINDOW_OVER else None
        self.series = watch.series if watch is not None else None
        self.steps = watch.steps if watch is not None else []
        waited_s = watch.driver.waited_s if watch is not None else []
        self.bill = bill_of(plan_of(config), metrics, self.series)
        self.summary = summary_of(metrics, self.series, self.bill, waited_s)
        self._result = result
        self._recorder = recorder

    @cached_property
    def result(self) -> RunResult:
        if self._recorder is not None:
            self._result.records = self._recorder.made_records()
        return self._result


def simulate(
    config: ClusterConfig,
    workload: Workload,
    options: RunOptions,
    *,
    door: Door = "direct",
    max_time_s: float | None = None,
    shown: Mapping[str, Any] | None = None,
    trace: bool = False,
    window: Window | None = None,
    stoppable: Callable[[Callable[[str], None]], None] = lambda stop: None,
) -> Simulation:
    """Run the workload to its end, or to `max_time_s` of the cluster's time.

    door: "direct" asks the cluster alone; "memory" goes through the server's whole protocol. shown: the settings as the user
    knows them, for reports. trace: keep every step of every instance. window: which requests count, of workloads in token
    counts through the direct door. stoppable: is given what stops the run, with a reason, and may be called from a signal
    handler. Raises ConfigError for a cluster that cannot be, and SimulationError for what makes no sense, or comes to
    nothing: a load that never lets time pass.
    """
    config = dataclasses.replace(config, speed=1.0, rate_limit=None, token_limit=None, api_key=())
    pools = plan_of(config)
    options = dataclasses.replace(
        options, speed=1.0, endpoint_kind="llmirage", model=options.model or pools[0].names[0], seed=options.seed or 0
    )
    check(workload)
    begun_s = time.process_time()
    watch: Watch | None = None

    async def main() -> tuple[RunResult, TokenRecorder | None]:
        nonlocal watch
        if door == "direct":
            watch = Watch(config, pools, trace)
        runner = _runner(config, workload, options, watch)
        if max_time_s is not None:
            reason = f"--max-time: {max_time_s:g} s of the cluster's time are over"
            asyncio.get_running_loop().call_at(max_time_s, runner.cancel, reason)
        stoppable(runner.cancel)
        if window is not None:
            window.watch(runner)
        try:
            return await runner.run(), getattr(runner, "recorder", None)
        finally:
            await runner.close()
            if watch is not None:
                watch.finish(asyncio.get_running_loop().time())

    try:
        with _few_collections():
            result, recorder = run(main())
    except (VirtualDeadlockError, StandstillError) as error:
        raise SimulationError(str(error)) from None
    result = dataclasses.replace(
        result,
        url=f"simulation ({door} door)",
        model=options.model,
        options=shown or {},
        client_cpu_s=time.process_time() - begun_s,
    )
    if recorder is None:
        return Simulation(config, result, columns_of(result.records), compute(result), watch, None)
    columns = columns_of_rows(recorder.rows)
    return Simulation(config, result, columns, token_metrics(recorder.rows, columns, shown or {}), watch, recorder)


class Watch:
    """The cluster of the direct door, and those who look on. Make it on the loop."""

    def __init__(self, config: ClusterConfig, pools: tuple[ServedPool, ...], trace: bool) -> None:
        cluster = new_cluster(config)
        self._sampler = Sampler(cluster, pools)
        self.driver = VirtualDriver(cluster, self._sampler)
        self.series: ClusterSeries | None = None
        self.steps: list[list[StepSpan]] = []
        if trace:
            self.steps = cluster.trace_steps()

    def finish(self, now: float) -> None:
        self.series = self._sampler.series(now)


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """Most of what a run makes stays until its end: the cycle collector would walk it again and again in vain."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def check(workload: Workload) -> None:
    """Raises SimulationError for a workload without requests."""
    if not any(session.turns for session in workload.sessions.values()):
        raise SimulationError(f"{workload.path} has no request: there is nothing to simulate")


def _lengths_only(workload: Workload) -> bool:
    return all(
        session.mode == "tokens" and all(turn.tokens and turn.tokens.input_ids is None for turn in session.turns)
        for session in workload.sessions.values()
    )


def _runner(config: ClusterConfig, workload: Workload, options: RunOptions, watch: Watch | None) -> SimulatedRunner:
    """Through the direct door, if there is somebody to watch it."""
    if watch is None:
        from llmirage_client.targets.http import HttpTarget
        from llmirage_client.targets.memory import MemoryTransport

        target = HttpTarget(LOCAL_URL, transport=MemoryTransport(new_app(config)))
        return SimulatedRunner(workload, options, target, as_text=True)
    driver = watch.driver
    if _lengths_only(workload) and not options.cancellation_share:
        return TokenRunner(workload, options, DirectTarget(driver), driver)
    return SimulatedRunner(workload, options, DirectTarget(driver, new_app(config, driver)), as_text=False)
