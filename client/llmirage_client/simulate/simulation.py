"""Runs a workload on a simulated cluster in virtual time: the runner of `llmirage run`, and the cluster of `llmirage serve`.

    simulation = simulate(ClusterConfig(model="Qwen/Qwen3-8B", instances=4), workload, RunOptions(request_rate_per_s=8.0))
    simulation.summary["ttft_ms"]["p99"]

Calling it again in one process costs what the run costs: deployments, catalogues and tokenizers are made once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.columns import Columns, columns_of
from llmirage_client.measure.metrics import Metrics, compute
from llmirage_client.measure.record import RunResult
from llmirage_client.simulate.bill import bill_of
from llmirage_client.simulate.cluster_series import ClusterSeries, Sampler
from llmirage_client.simulate.garbage import few_collections
from llmirage_client.simulate.summary import summary_of
from llmirage_client.simulate.token_columns import columns_of_rows, token_metrics
from llmirage_client.simulate.token_rows import TokenRows
from llmirage_client.simulate.token_times import TokenTimes
from llmirage_client.simulate.walk_run import WalkRunner, can_walk
from llmirage_client.simulate.window import WINDOW_OVER, Window
from llmirage_client.simulator.engine import (
    Cluster,
    ClusterConfig,
    ClusterRun,
    ServedPool,
    StepSpan,
    VirtualDriver,
    new_app,
    new_cluster,
    plan_of,
)
from llmirage_client.workload.session import Workload
from llmirage_shared.virtual_time import StandstillError, VirtualDeadlockError, run

if TYPE_CHECKING:
    from llmirage_client.simulate.simulated_run import SimulatedRunner
    from llmirage_client.simulator.memory_door import MemoryDoor
    from llmirage_client.targets.target import Target

Door = Literal["direct", "memory"]
DOORS: tuple[Door, ...] = ("direct", "memory")


class SimulationError(ValueError):
    """A simulation that makes no sense; the message is for the user."""


class Simulation:
    """What came of it. summary: plain figures by name, see study.summary. stopped: why it ended before the workload did.

    columns: one row a request. result: with the records of single requests, which are made when they are asked for.
    series: the cluster over time; steps: of each instance, where they were to be traced.
    """

    def __init__(
        self,
        config: ClusterConfig,
        result: RunResult,
        columns: Columns,
        metrics: Metrics,
        watch: Watch,
        recorder: TokenRows | None,
    ) -> None:
        self.config = config
        self.columns = columns
        self.metrics = metrics
        self.stopped = result.cancel_reason if result.cancel_reason != WINDOW_OVER else None
        self.series = watch.series
        self.steps = watch.steps
        self.bill = bill_of(plan_of(config), metrics, self.series)
        self.summary = summary_of(metrics, self.series, self.bill, watch.waited_s)
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
    on_progress: Callable[[int, float], None] | None = None,
) -> Simulation:
    """Run the workload to its end, or to `max_time_s` of the cluster's time.

    door: "direct" asks the cluster alone; "memory" goes through the server's whole protocol. shown: the settings as the user
    knows them, for reports. trace: keep every step of every instance. window: which requests count, of workloads in token
    counts through the direct door. stoppable: is given what stops the run, with a reason, and may be called from a signal
    handler. on_progress: called now and then with the number of requests that are over and the cluster's time. Raises
    ConfigError for a cluster that cannot be, and SimulationError for what makes no sense, or comes to nothing: a load that
    never lets time pass.
    """
    config = dataclasses.replace(config, speed=1.0, rate_limit=None, token_limit=None, api_key=())
    pools = plan_of(config)
    options = dataclasses.replace(
        options, speed=1.0, endpoint_kind="llmirage", model=options.model or pools[0].names[0], seed=options.seed or 0
    )
    if max_time_s is not None:
        max_time_s = float(max_time_s)  # an int would be the time at which requests end
    check(workload)
    begun_s = time.process_time()
    memory = _memory_door(config) if door == "memory" else None
    watch = Watch(new_cluster(config) if memory is None else memory.cluster, pools, trace)
    reason = f"--max-time: {max_time_s or 0:g} s of the cluster's time are over"
    recorder: TokenRows | None = None

    def tell_of(over: Callable[[], int]) -> None:
        if on_progress is not None:
            watch.sampler.on_look = lambda now: on_progress(over(), now)

    def walked() -> RunResult:
        nonlocal recorder
        cluster = ClusterRun(watch.cluster, watch.sampler)
        runner = WalkRunner(workload, options, cluster, named=config.router not in _NAMELESS)
        recorder = runner.recorder
        if max_time_s is not None:
            runner.loop.at(max_time_s, partial(runner.cancel, reason))
        stoppable(runner.interrupt)
        if window is not None:
            window.watch(recorder, runner.cancel)
        tell_of(runner.over)
        try:
            return runner.run()
        finally:
            watch.finish(runner.loop.now, cluster.waited_s)

    async def main() -> RunResult:
        nonlocal recorder
        loop = asyncio.get_running_loop()
        waits: VirtualDriver | MemoryDoor
        if memory is None:
            waits = driver = VirtualDriver(watch.cluster, watch.sampler)
            runner = _direct_runner(config, workload, options, driver)
        else:
            waits = memory
            runner = _memory_runner(memory.open(watch.sampler), workload, options)
        recorder = getattr(runner, "recorder", None)
        if max_time_s is not None:
            loop.call_at(max_time_s, runner.cancel, reason)
        stoppable(runner.cancel)
        if window is not None:
            window.watch(recorder, runner.cancel)
        tell_of(runner.over)
        try:
            return await runner.run()
        finally:
            end_s = loop.time()
            watch.sampler.next_s = math.inf  # closing may take time, which is not the run's
            await runner.close()
            watch.finish(end_s, waits.waited_s)

    try:
        with few_collections():
            walks = memory is None and lengths_only(workload) and can_walk(workload, options)
            result = walked() if walks else run(main())
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
    rows = recorder.rows
    times = TokenTimes(rows)
    columns = columns_of_rows(rows, times, workload.branching)
    return Simulation(config, result, columns, token_metrics(rows, columns, times, shown or {}), watch, recorder)


class Watch:
    """A cluster, and those who look on."""

    def __init__(self, cluster: Cluster, pools: tuple[ServedPool, ...], trace: bool) -> None:
        self.cluster = cluster
        self.sampler = Sampler(self.cluster, pools)
        self.waited_s: list[float] = []
        self.series: ClusterSeries | None = None
        self.steps: list[list[StepSpan]] = self.cluster.trace_steps() if trace else []

    def finish(self, now: float, waited_s: list[float]) -> None:
        self.series = self.sampler.series(now)
        self.waited_s = waited_s


def check(workload: Workload) -> None:
    """Raises SimulationError for a workload without requests."""
    if not any(session.turns for session in workload.sessions.values()):
        raise SimulationError(f"{workload.path} has no request: there is nothing to simulate")


def lengths_only(workload: Workload) -> bool:
    """Whether all requests are given in token counts alone."""
    for session in workload.sessions.values():
        if session.mode != "tokens":
            return False
        for turn in session.turns:
            if turn.tokens is None or turn.tokens.input_ids is not None:
                return False
    return True


# Routers that do not ask which conversation a request is of.
_NAMELESS = ("round_robin", "random", "least_loaded", "power_of_two", "prefix", "kv_aware")


def _direct_runner(config: ClusterConfig, workload: Workload, options: RunOptions, driver: VirtualDriver) -> SimulatedRunner:
    from llmirage_client.simulate.simulated_run import SimulatedRunner, TokenRunner
    from llmirage_client.simulator.direct import DirectTarget

    if lengths_only(workload) and not options.cancellation_share:
        return TokenRunner(workload, options, DirectTarget(driver), driver)
    return SimulatedRunner(workload, options, DirectTarget(driver, new_app(config, driver)), as_text=False)


def _memory_runner(target: Target, workload: Workload, options: RunOptions) -> SimulatedRunner:
    from llmirage_client.simulate.simulated_run import SimulatedRunner

    return SimulatedRunner(workload, options, target, as_text=True)


def _memory_door(config: ClusterConfig) -> MemoryDoor:
    from llmirage_client.simulator.memory_door import MemoryDoor  # with httpx, which the direct door seldom needs

    return MemoryDoor(config)
