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
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.columns import Columns, columns_of
from llmirage_client.measure.metrics import Metrics, compute
from llmirage_client.measure.record import RunResult
from llmirage_client.study.simulated_run import SimulatedRunner, TokenRunner
from llmirage_client.study.summary import summary_of
from llmirage_client.study.token_columns import columns_of_rows, token_metrics
from llmirage_client.study.token_run import TokenRecorder
from llmirage_client.targets.direct import LOCAL_URL, DirectTarget
from llmirage_client.workload.session import Workload
from llmirage_server.assembly import build, kv_link
from llmirage_server.config import ClusterConfig
from llmirage_server.planning import ServedPool, plan
from llmirage_server.virtual_driver import VirtualDriver
from llmirage_shared.virtual_time import run

if TYPE_CHECKING:
    from llmirage_server.app import LlmirageApp

Door = Literal["direct", "memory"]
DOORS: tuple[Door, ...] = ("direct", "memory")


class SimulationError(ValueError):
    """A simulation that makes no sense; the message is for the user."""


class Simulation:
    """What came of it. summary: plain figures by name, see study.summary. stopped: why it ended before the workload did.

    columns: one row a request. result: with the records of single requests, which are made when they are asked for.
    """

    def __init__(self, result: RunResult, columns: Columns, metrics: Metrics, recorder: TokenRecorder | None) -> None:
        self.columns = columns
        self.metrics = metrics
        self.stopped = result.cancel_reason
        self.summary = summary_of(metrics)
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
) -> Simulation:
    """Run the workload to its end, or to `max_time_s` of the cluster's time.

    door: "direct" asks the cluster alone; "memory" goes through the server's whole protocol. shown: the settings as the user
    knows them, for reports. Raises ConfigError for a cluster that cannot be, SimulationError for what makes no sense.
    """
    config = dataclasses.replace(config, speed=1.0, rate_limit=None, token_limit=None, api_key=())
    pools = plan_of(config)
    options = dataclasses.replace(
        options, speed=1.0, endpoint_kind="llmirage", model=options.model or pools[0].names[0], seed=options.seed or 0
    )
    check(workload)
    begun_s = time.process_time()

    async def main() -> tuple[RunResult, TokenRecorder | None]:
        runner = _runner(config, pools, workload, options, door)
        if max_time_s is not None:
            reason = f"--max-time: {max_time_s:g} s of the cluster's time are over"
            asyncio.get_running_loop().call_at(max_time_s, runner.cancel, reason)
        try:
            return await runner.run(), getattr(runner, "recorder", None)
        finally:
            await runner.close()

    with _few_collections():
        result, recorder = run(main())
    result = dataclasses.replace(
        result,
        url=f"simulation ({door} door)",
        model=options.model,
        options=shown or {},
        client_cpu_s=time.process_time() - begun_s,
    )
    if recorder is None:
        return Simulation(result, columns_of(result.records), compute(result), None)
    columns = columns_of_rows(recorder.rows)
    return Simulation(result, columns, token_metrics(recorder.rows, columns, shown or {}), recorder)


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """Most of what a run makes stays until its end: the cycle collector would walk it again and again in vain."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@lru_cache(maxsize=64)
def plan_of(config: ClusterConfig) -> tuple[ServedPool, ...]:
    """The pools of a configuration. Raises ConfigError."""
    return tuple(plan(config))


def check(workload: Workload) -> None:
    """Raises SimulationError for a workload without requests."""
    if not any(session.turns for session in workload.sessions.values()):
        raise SimulationError(f"{workload.path} has no request: there is nothing to simulate")


def _lengths_only(workload: Workload) -> bool:
    return all(
        session.mode == "tokens" and all(turn.tokens and turn.tokens.input_ids is None for turn in session.turns)
        for session in workload.sessions.values()
    )


def _runner(
    config: ClusterConfig, pools: tuple[ServedPool, ...], workload: Workload, options: RunOptions, door: Door
) -> SimulatedRunner:
    if door == "memory":
        from llmirage_client.targets.http import HttpTarget
        from llmirage_client.targets.memory import MemoryTransport

        target = HttpTarget(LOCAL_URL, transport=MemoryTransport(_app(config)))
        return SimulatedRunner(workload, options, target, as_text=True)
    driver = VirtualDriver(build(config, pools, kv_link(config, pools), compressed=True))
    if _lengths_only(workload):
        return TokenRunner(workload, options, DirectTarget(driver), driver)
    from llmirage_server.virtual_driver import DirectDriver

    app = _app(config)
    app.driver = app.service.driver = DirectDriver(driver)
    return SimulatedRunner(workload, options, DirectTarget(driver, app), as_text=False)


def _app(config: ClusterConfig) -> LlmirageApp:
    from llmirage_server.api.text import TextLoader, TextTools
    from llmirage_server.app import create_app, load_text_tools
    from llmirage_server.virtual_driver import NotedReplies

    key = config.tokenizer, config.replies, config.seed, config.natural_stop, config.reply_tokens
    if key not in _TEXT:
        tools = load_text_tools(config)
        _TEXT[key] = TextTools(tools.encoder, NotedReplies(tools.replies))
    app = create_app(config)
    app.service.text = TextLoader(lambda: _TEXT[key])
    return app


_TEXT: dict[tuple[Any, ...], Any] = {}
