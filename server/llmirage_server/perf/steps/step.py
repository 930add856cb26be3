"""One forward pass of a real architecture, as the sum of its kernels.

Every token of a step, prompt or generated, goes through the same GEMMs; prompt chunks share one attention kernel and
decoding sequences another; one row for each decode and each chunk goes through lm_head and the sampler. perf/steps says
which operations a layer has, perf/kernels how long each takes.

Not modelled: communication that overlaps with compute, experts that run beside the shared expert, two batches overlapped;
CUDA graphs that pad a batch to the next captured size, and launches without graphs that the host cannot keep up with; GPUs
that lower their clock under load; replicas of hot experts (EPLB); what drafting costs the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from llmirage_server.perf.catalogue.constants import Constants, constants_for
from llmirage_server.perf.catalogue.dtypes import WeightDtype
from llmirage_server.perf.catalogue.engines import EngineProfile
from llmirage_server.perf.catalogue.formats import formats_of
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.kernels.routing import DEFAULT_SKEW
from llmirage_server.perf.parallelism import ONE_GPU, Parallelism, split_layers
from llmirage_server.perf.steps.load import Load
from llmirage_server.perf.steps.model_ops import embedding_ops, hand_over_ops, layer_ops, mtp_ops, output_ops
from llmirage_server.perf.steps.operations import Op, Setting
from llmirage_server.perf.steps.stage import OperationTime, Stage, merged
from llmirage_server.perf.steps.steady import steady_steps
from llmirage_server.perf.steps.step_model import StepBatch

# Routing of models that are trained for balance (DeepSeek and its kin); aiconfigurator-core 0.12.0 assumes the same.
_BALANCED_SKEW = 1.01


class _UsedConstants(Constants):
    """Constants that remember what was asked for."""

    def __init__(self, constants: Constants) -> None:
        self._inner = constants
        self.used: dict[tuple[str, str], None] = {}

    def of(self, op: str, dtype: str) -> Mapping[str, float]:
        self.used[op, dtype] = None
        return self._inner.of(op, dtype)

    def provenance(self, op: str, dtype: str) -> str:
        return self._inner.provenance(op, dtype)


class RooflineStep:
    """StepModel and GroupStepModel of one instance of a model.

    `weights` must already be in the form the GPU runs it (WeightDtype.on). draft: the draft model and how many tokens it
    (or, where it is the model itself, its multi-token prediction layer) drafts for each sequence. Thread-safe.
    """

    def __init__(
        self,
        model: ModelSpec,
        gpu: GpuSpec,
        *,
        engine: EngineProfile,
        weights: WeightDtype,
        kv_dtype: str = "bf16",
        parallel: Parallelism = ONE_GPU,
        draft: ModelSpec | None = None,
        draft_tokens: int = 0,
    ) -> None:
        self._engine, self._parallel = engine, parallel
        self._constants = used = _UsedConstants(constants_for(gpu, engine.base))
        self._queries = 1 + draft_tokens

        def setting(of: ModelSpec, queries: int, parallel: Parallelism = parallel) -> Setting:
            skew = _BALANCED_SKEW if of.has_mla else DEFAULT_SKEW
            formats = formats_of(of, weights)
            return Setting(gpu, used, engine, parallel, formats, formats.mlp, kv_dtype, of.hidden, skew, queries)

        main = setting(model, self._queries)
        self._stages = _stages(main, model)
        self._drafts: list[Stage] = []  # the first of them sees the whole step, the others one token a sequence
        if draft_tokens:
            of = draft or model
            split = Parallelism(parallel.tp) if draft else parallel  # every rank has a draft model of its own
            first, later = setting(of, self._queries, split), setting(of, 1, split)
            ops = (_draft_ops(s, model, draft) for s in (first, *[later] * (draft_tokens - 1)))
            self._drafts = [Stage(_renamed(o)) for o in ops]
        self._scaled = engine.decode_scale != 1.0 or engine.prefill_scale != 1.0
        # Step times from sums, where these are enough: remembered, and for simulations that do not look at single sequences.
        self.steady = steady_steps(self._stages, parallel.dp, draft_tokens, engine)

    @property
    def ranks(self) -> int:
        """Attention data-parallel ranks."""
        return self._parallel.dp

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self._parallel.pp

    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        """Seconds of one forward pass; see StepModel. Other attention data-parallel ranks have nothing to do."""
        if self.steady is None:
            return sum(self.stages_s([StepBatch(prefill, decode_contexts)]))
        decodes = len(decode_contexts)
        if not decodes:
            return self.steady.step_s(prefill, 0, 0, 0)
        shown = self.steady.shown(decode_contexts) if self.steady.windows else ()
        return self.steady.step_s(prefill, decodes, sum(decode_contexts), max(decode_contexts), shown)

    def stages_s(self, batches: Sequence[StepBatch]) -> Sequence[float]:
        """Seconds of each stage; see GroupStepModel. Ranks run in lockstep: the slowest sets the pace of each stage."""
        loads = [Load(batch.prefill, batch.decode_contexts, self._queries) for batch in batches]
        tokens = sum([load.tokens for load in loads])
        return self._seconds(loads, tokens) if tokens else [0.0] * len(self._stages)

    def breakdown(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> list[OperationTime]:
        """The step of `step_s`, operation by operation, longest first; the seconds add up to it."""
        return self.explain([StepBatch(prefill, decode_contexts)])

    def explain(self, batches: Sequence[StepBatch]) -> list[OperationTime]:
        """The step of these batches, operation by operation, longest first; seconds add up to the sum of `stages_s`.

        Amounts are those of one GPU, in each stage one of the slowest rank.
        """
        loads = [Load(batch.prefill, batch.decode_contexts, self._queries) for batch in batches]
        tokens = sum(load.tokens for load in loads)
        if not tokens:
            return []
        scale, times, first_s = self._scale(loads), list[OperationTime](), 0.0
        for i, (stage, on, group) in enumerate(self._passes(loads, tokens)):
            slowest = max(on, key=stage.local_s)
            lines = stage.explain(slowest, group, scale)
            if i == 0 or (i >= len(self._stages) and len(self._stages) == 1):
                first_s += sum(line.seconds for line in lines)
            times += lines
        return merged([*times, OperationTime("host", 1, self._host_s(loads, first_s))])

    def provenance(self) -> list[str]:
        """Where the constants of each kind of kernel come from, a line each: "fitted: ..." or "transferred: ..."."""
        return [self._constants.provenance(op, dtype) for op, dtype in sorted(self._constants.used)]

    def _seconds(self, loads: list[Load], tokens: int) -> list[float]:
        """Seconds of each stage for loads that have some tokens."""
        times = []
        for stage in self._stages:
            local = stage.local_s(loads[0]) if len(loads) == 1 else max([stage.local_s(load) for load in loads])
            times.append(local + stage.shared_s(tokens))
        if self._drafts:
            for stage, on, group in self._draft_passes(loads, tokens):
                times[-1] += max([stage.local_s(load) for load in on]) + stage.shared_s(group)
        if self._scaled:
            scale = self._scale(loads)
            times = [scale * time for time in times]
        times[0] += self._host_s(loads, times[0])
        return times

    def _passes(self, loads: list[Load], tokens: int) -> Iterable[tuple[Stage, list[Load], int]]:
        yield from ((stage, loads, tokens) for stage in self._stages)
        yield from self._draft_passes(loads, tokens)

    def _draft_passes(self, loads: list[Load], tokens: int) -> Iterable[tuple[Stage, list[Load], int]]:
        """Each pass of the draft with the loads it sees and the tokens of all ranks."""
        again = [Load((), load.contexts) for load in loads]
        decodes = sum([load.decodes for load in loads])
        for i, stage in enumerate(self._drafts):
            if i == 0:
                yield stage, loads, tokens
            elif decodes:
                yield stage, again, decodes

    def _host_s(self, loads: list[Load], gpu_s: float) -> float:
        """What the host adds to the first stage, on the rank with the most sequences."""
        host_s = self._engine.host_s(gpu_s, max([load.sequences for load in loads]))
        return host_s + self._engine.dp_sync_ms * 1e-3 if self._parallel.dp > 1 else host_s

    def _scale(self, loads: list[Load]) -> float:
        """Correction of GPU times that the engine's profile asks for, by the tokens of either kind."""
        if not self._scaled:
            return 1.0
        new, decodes = sum([load.new for load in loads]), sum([load.decode_tokens for load in loads])
        return (self._engine.prefill_scale * new + self._engine.decode_scale * decodes) / (new + decodes)


def _stages(s: Setting, model: ModelSpec) -> list[Stage]:
    stages = []
    pp = s.parallel.pp
    for i, groups in enumerate(split_layers(model, pp)):
        ops = [*(embedding_ops(s) if i == 0 else ()), *layer_ops(s, groups)]
        ops += hand_over_ops(s, i) if i < pp - 1 else output_ops(s, model)
        stages.append(Stage(ops))
    return stages


def _draft_ops(s: Setting, model: ModelSpec, draft: ModelSpec | None) -> list[Op]:
    if draft is None:
        return mtp_ops(s, model)
    return [*embedding_ops(s), *layer_ops(s, draft.groups), *output_ops(s, draft, "sequences")]


def _renamed(ops: list[Op]) -> list[Op]:
    return [replace(op, name=op.name if op.name.startswith("draft") else f"draft {op.name}") for op in ops]
