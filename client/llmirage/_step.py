"""`llmirage.step`: one forward pass of a model, operation by operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from llmirage._results import Result, columns_of_rows
from llmirage._settings import settings_from, takes_settings
from llmirage_client.report.html.charts import Axis, Bars, bars
from llmirage_client.report.html.page import Card, PageHead, Section, charts, figure, page, table
from llmirage_client.report.screen import Block
from llmirage_client.simulator.pools import Deployment, StepSettings, as_table, explained_step


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

    def _blocks(self, width: int) -> Iterable[Block]:
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
