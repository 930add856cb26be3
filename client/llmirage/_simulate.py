"""`llmirage.simulate`: a workload on a simulated cluster, in virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from llmirage._results import Progress, Result, progress_stream, workload_of
from llmirage._settings import PathName, settings_from, takes_settings
from llmirage_client.measure.catalogue import frame_name
from llmirage_client.measure.request_metrics import all_request_columns, request_facts
from llmirage_client.operations import simulate as operation
from llmirage_client.operations.simulate import SimulateSettings, simulation_json
from llmirage_client.report.console import run_blocks
from llmirage_client.report.screen import Block
from llmirage_client.settings import ArrivalPattern
from llmirage_client.simulate.progress import SimulationProgress
from llmirage_client.simulate.report import cluster_blocks, report_series
from llmirage_client.simulate.simulation import Simulation
from llmirage_shared.plural import plural, rounded
from llmirage_shared.settings import at_call

if TYPE_CHECKING:
    from llmirage._workload import LoadedWorkload

single_page = at_call("llmirage_client.report.html.run_page:single_page")  # charts take 20 ms to import
view_run = at_call("llmirage_client.report.html.run_view:view_run")


class SimulationResult(Result):
    """What came of a simulation. The figures of --json are attributes: `result.ttft_ms.p99`, `result.output_tok_per_s`."""

    def __init__(self, simulation: Simulation, steady_state: bool) -> None:
        self._simulation = simulation
        self._steady_state = steady_state

    @property
    def passed(self) -> bool:
        """Whether it came to its end, no request failed (unless objectives say how many may), and objectives are met."""
        return self._simulation.passed

    @property
    def stopped(self) -> str | None:
        """Why it ended before the workload did."""
        return self._simulation.stopped

    @property
    def notes(self) -> list[str]:
        """What one must know to read the figures, and what was assumed."""
        return list(self._simulation.notes)

    @cached_property
    def cluster(self) -> Mapping[str, Any]:
        """The cluster over time: "edges_s", then for each level of each instance the mean between two of these."""
        levels = report_series(self._simulation.series)
        return {"edges_s": levels.edges_s, "instances": levels.instances, **levels.levels}

    def _data(self) -> Mapping[str, Any]:
        return simulation_json(self._simulation, steady_state=self._steady_state)

    def _columns(self) -> Mapping[str, Any]:
        columns = self._simulation.columns
        facts = request_facts(columns) | {"measured": columns.measured}
        values = all_request_columns(columns, 1.0, self._simulation.result.options)
        return facts | {frame_name(tag): one for tag, one in values.items() if not np.isnan(one).all()}

    def _page(self, *, brief: bool = False) -> str:
        page: str = single_page(view_run(self._simulation.result), report_series(self._simulation.series), brief=brief)
        return page

    def _blocks(self) -> Iterable[Block]:
        yield from run_blocks(self._simulation.result, self._simulation.metrics, ())
        yield from cluster_blocks(self._simulation)

    def _line(self) -> str:
        found = self._simulation.summary
        ttft, tpot = found["ttft_ms"], found["tpot_ms"]
        parts = [plural(found["requests"], "request"), f"{found['output_tok_per_s']:,.0f} output tokens/s"]
        parts += [f"TTFT p50 {rounded(ttft['p50'])} ms"] if ttft else []
        parts += [f"TPOT p50 {rounded(tpot['p50'])} ms"] if tpot else []
        return ", ".join(parts)


@takes_settings(SimulateSettings)
def simulate(
    workload: PathName | LoadedWorkload | None = None,
    *,
    progress: Progress = None,
    cluster: PathName | None = None,
    model: str | None = None,
    gpu: str | None = None,
    instances: int | None = None,
    weights: str | None = None,
    perf_model: Literal["roofline", "silicon"] | None = None,
    engine: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    router: str | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None,
    enable_chunked_prefill: bool | None = None,
    kv_cache_dtype: str | None = None,
    gpu_memory_utilization: float | None = None,
    enable_prefix_caching: bool | None = None,
    num_speculative_tokens: int | None = None,
    acceptance_rate: float | None = None,
    via: Literal["engine", "api"] | None = None,
    max_time: float | None = None,
    steady_state: bool | None = None,
    isl: float | str | None = None,
    osl: float | str | None = None,
    isl_stddev: float | None = None,
    osl_stddev: float | None = None,
    requests: int | None = None,
    turns: float | str | None = None,
    think_time: float | str | None = None,
    shared_prefix: int | None = None,
    format: str | None = None,
    tokenizer: str | None = None,
    concurrency: int | None = None,
    agents: int | None = None,
    request_rate: float | None = None,
    arrival_pattern: ArrivalPattern | None = None,
    arrival_smoothness: float | None = None,
    user_centric_rate: float | None = None,
    num_users: int | None = None,
    fixed_schedule: bool | None = None,
    fixed_schedule_speedup: float | None = None,
    random_seed: int | None = None,
    vary: bool | None = None,
    request_count: int | None = None,
    num_conversations: int | None = None,
    duration: float | None = None,
    benchmark_duration: float | None = None,
    warmup_request_count: int | None = None,
    slo: str | None = None,
    goodput: str | None = None,
    set: Mapping[str, object] | None = None,
) -> SimulationResult:
    """Run a workload on a simulated cluster, in virtual time.

    workload: a file, bundled:NAME, a preset, or a result of `load_workload` or `generate`; isl and osl replace it.
    progress: None shows it in notebooks only; a function gets a line now and then.
    set: other settings of `llmirage simulate` by name, such as {"kv_store_gib": 64}.

    The settings are those of `llmirage simulate`, with the same units and limits. Raises ConfigError with all problems.
    """
    settings = settings_from(SimulateSettings, locals(), but=("workload", "progress"))
    made = partial(SimulationProgress, stream=progress_stream(progress))
    return SimulationResult(operation.simulate(workload_of(workload), settings, progress=made), settings.steady_state)
