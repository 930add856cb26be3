"""`llmirage.Cluster` and `llmirage.step`: a cluster before anything runs on it, and one forward pass of a model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from llmirage._results import Result, columns_of_rows
from llmirage._server import Server
from llmirage._settings import PathName, named_values, settings_from, takes_settings
from llmirage._simulate import SimulationResult, simulate
from llmirage_client.report.html.charts import Axis, Bars, bars
from llmirage_client.report.html.page import Card, PageHead, Section, charts, figure, page, table
from llmirage_client.report.screen import Block, bold, plain_table
from llmirage_client.simulator.cluster_settings import NOT_HERE
from llmirage_client.simulator.pools import (
    ClusterConfig,
    Deployment,
    StepSettings,
    as_table,
    cluster_facts,
    explained_step,
    planned,
    step_of,
)
from llmirage_shared.plural import plural
from llmirage_shared.settings import settings_of


class StepResult(Result):
    """One forward pass. The figures of --json are attributes: `result.step_ms`, `result.memory.kv_tokens`."""

    def __init__(self, deployment: Deployment, explained: Mapping[str, Any]) -> None:
        self._deployment = deployment
        self._explained = dict(explained)

    def _data(self) -> Mapping[str, Any]:
        return self._explained

    def _columns(self) -> Mapping[str, Any]:
        """One row an operation."""
        return columns_of_rows(self._explained["ops"])

    def _page(self, *, brief: bool = False) -> str:
        step = self._explained
        cards = [
            Card("Step", f"{step['step_ms']:.3f}", "ms"),
            Card("Ideal", f"{step['ideal_ms']:.3f}", "ms", "roofline limit"),
        ]
        cards.append(Card("KV cache of a GPU", f"{step['memory']['kv_tokens']:,}", "tokens"))
        ops = step["ops"]
        drawn = bars(
            [op["name"] for op in ops],
            [Bars("time", [op["ms"] for op in ops]), Bars("ideal", [op["ideal_ms"] for op in ops])],
            title="Time of each operation",
            y=Axis("", "ms", low=0.0),
        )
        rows = [[op["name"], op["calls"], f"{op['ms']:.3f}", f"{op['share']:.1%}", op["bound"]] for op in ops]
        sections = [
            Section(
                "Operations",
                [charts(figure(drawn), size="wide"), table(["Operation", "Calls", "ms", "Share", "Bound"], rows)],
            ),
            Section(
                "Memory of one GPU",
                [table(["", "GB"], [[n, f"{v:,.2f}"] for n, v in step["memory"].items() if n.endswith("_gb")])],
            ),
        ]
        return page(PageHead(step["deployment"], {"Assumed": "; ".join(step["assumed"])}, cards=cards), sections)

    def _blocks(self) -> Iterable[Block]:
        yield as_table(self._deployment, self._explained)

    def _line(self) -> str:
        return f"{self._explained['step_ms']:.3f} ms, {self._explained['deployment']}"


@takes_settings(StepSettings)
def step(
    *,
    model: str,
    gpu: str | None = None,
    engine: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    weights: str | None = None,
    moe_backend: Literal["auto", "marlin", "cutlass", "trtllm"] | None = None,
    kv_cache_dtype: str | None = None,
    decode: str | Sequence[str | tuple[int, int]] | None = None,
    prefill: str | Sequence[str | tuple[int, int]] | None = None,
    peer_to_peer: bool | None = None,
    num_speculative_tokens: int | None = None,
    draft_model: str | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    gpu_memory_utilization: float | None = None,
    perf_model: Literal["roofline", "silicon"] | None = None,
) -> StepResult:
    """Explain one forward pass of a model on a GPU.

    decode: `[(64, 4096)]` is 64 sequences decoding at 4,096 tokens of context.
    prefill: `[(2048, 0)]` is a chunk of 2,048 new tokens after none.

    The settings are those of `llmirage step`. Raises ConfigError with all problems.
    """
    return StepResult(*explained_step(settings_from(StepSettings, locals())))


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

    def _blocks(self) -> Iterable[Block]:
        yield bold(self._line())
        yield plain_table("pool", "GPUs each", "engine", "KV tokens", "longest request", keys=3, rows=self._rows())
        yield f"Assumed, as not given: {'; '.join(self.summary['assumed'])}."

    def __repr__(self) -> str:
        return f"<Cluster: {self._line()}>"

    def _line(self) -> str:
        summary = self.summary
        usd = summary["usd_per_h"]
        price = "" if usd is None else f", {usd[0]:,.2f} to {usd[1]:,.2f} USD/h"
        return f"{plural(summary['gpus'], 'GPU')} in {plural(summary['instances'], 'instance')}{price}"


Cluster = Deployed
