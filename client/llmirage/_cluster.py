"""`llmirage.Cluster`: a deployment, what fits on it and what it costs; and studies of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from llmirage._results import Result, columns_of_rows
from llmirage._server import Server
from llmirage._settings import PathName, named_values, takes_settings
from llmirage._simulate import SimulationResult, simulate
from llmirage._step import StepResult
from llmirage_client.report.html.page import PageHead, Section, page, table
from llmirage_client.report.numbers import plural
from llmirage_client.report.screen import Block, bold, plain_table
from llmirage_client.simulator.cluster_settings import NOT_HERE
from llmirage_client.simulator.pools import ClusterConfig, cluster_facts, planned, step_of
from llmirage_shared.settings import settings_of

if TYPE_CHECKING:
    from llmirage._workload import LoadedWorkload

_Counts = Sequence[tuple[int, int]]


class Deployed(Result):
    """A simulated cluster: what it is, how much KV cache it has, what it costs an hour. Settings go to studies of it.

    `cluster.pools[0]["kv_tokens"]`, `cluster.gpus`, `cluster.usd_per_h`, `cluster.assumed`.
    """

    @takes_settings(ClusterConfig)
    def __init__(
        self,
        cluster: PathName | None = None,
        *,
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
        set: Mapping[str, object] | None = None,
    ) -> None:
        """Plan a cluster.

        cluster: a cluster file, or bundled:NAME. set: other settings of a cluster by name, such as {"kv_store_gib": 64}.

        The settings are those of `llmirage serve`, with the same units and limits. Raises ConfigError with all problems,
        also when the model does not fit.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "cluster")}
        known = {name: about for name, about in settings_of(ClusterConfig).items() if name not in NOT_HERE}
        place = None if cluster is None else os.fspath(cluster)
        self._config = planned(place, named_values(given, known))
        self._settings: dict[str, Any] = {"cluster": place, **given}

    def simulate(self, workload: str | os.PathLike[str] | LoadedWorkload | None = None, **settings: Any) -> SimulationResult:
        """`llmirage.simulate` on this cluster. settings: of the load, or others than the cluster's."""
        return simulate(workload, **self._settings | settings)

    def step(self, *, decode: _Counts = (), prefill: _Counts = ()) -> StepResult:
        """`llmirage.step` of an instance of the first pool."""
        return StepResult(*step_of(self._config, decode, prefill))

    def server(self, **settings: Any) -> Server:
        """`llmirage.Server` of this cluster. settings: such as port, speed, virtual_time, script, faults."""
        return Server(**self._settings | settings)

    def _data(self) -> Mapping[str, Any]:
        return cluster_facts(self._config)

    def _columns(self) -> Mapping[str, Any]:
        """One row a pool."""
        return columns_of_rows(self.summary["pools"])

    def _rows(self) -> list[list[str]]:
        return [
            [
                f"{pool['name']}: {pool['instances']} x {pool['model']}",
                f"{pool['gpus'] // pool['instances']} x {pool['gpu']}",
                f"{pool['engine']}, {pool['weights']} weights",
                f"{pool['kv_tokens']:,}",
                f"{pool['max_model_len']:,}",
            ]
            for pool in self.summary["pools"]
        ]

    def _page(self, *, brief: bool = False) -> str:
        facts = {"Cluster": self._line(), "Assumed": "; ".join(self.summary["assumed"])}
        columns = ["Pool", "GPUs each", "Engine", "KV tokens each", "Longest request"]
        return page(PageHead("Cluster", facts), [Section("Pools", [table(columns, self._rows(), left=3)])])

    def _blocks(self, width: int) -> Iterable[Block]:
        yield bold(self._line())
        shown = plain_table("pool", "GPUs each", "engine", "KV tokens", "longest request", keys=3)
        for row in self._rows():
            shown.add_row(*row)
        yield shown
        yield f"Assumed, as not given: {'; '.join(self.summary['assumed'])}."

    def __repr__(self) -> str:
        return f"<Cluster: {self._line()}>"

    def _line(self) -> str:
        summary = self.summary
        usd = summary["usd_per_h"]
        price = "" if usd is None else f", {usd[0]:,.2f} to {usd[1]:,.2f} USD/h"
        return f"{plural(summary['gpus'], 'GPU')} in {plural(summary['instances'], 'instance')}{price}"


Cluster = Deployed
