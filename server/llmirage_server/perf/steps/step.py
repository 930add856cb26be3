"""One forward pass of a real architecture, as the sum of its kernels.

Every token of a step, prompt or generated, goes through the same GEMMs; prompt chunks share one attention kernel and
decoding sequences another; one row for each decode and each chunk goes through lm_head and the sampler. perf/steps says
which operations a layer has, perf/kernels how long each takes.

Not modelled: communication that overlaps with compute, experts that run beside the shared expert, two batches overlapped;
decoding beyond the largest CUDA graph, whose launches the host cannot keep up with; GPUs that lower their clock under load;
replicas of hot experts (EPLB) within a node; what drafting costs the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from llmirage_server.perf.catalogue.constants import constants_for
from llmirage_server.perf.catalogue.dtypes import BF16, WeightDtype
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.models import ModelSpec, formats_of
from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.parallelism import ONE_GPU, Parallelism, split_layers
from llmirage_server.perf.speculation import Speculative, SpeculativeMethod
from llmirage_server.perf.steps.model_ops import eagle3_ops, embedding_ops, hand_over_ops, layer_ops, mtp_ops, output_ops
from llmirage_server.perf.steps.operations import DecodeOp, Op, Setting
from llmirage_server.perf.steps.stage import (
    DecodeLoad,
    EngineOverhead,
    OperationTime,
    RankCounts,
    Stage,
    decode_load_of,
    merged,
    rank_counts,
)
from llmirage_server.perf.steps.steady import SummedSteps
from llmirage_server.perf.steps.step_model import StepBatch

_Ranks = list[tuple[RankCounts, DecodeLoad]]  # one entry a rank
_Group = tuple[int, int]  # tokens of all ranks, and those of prompts among them


class RooflineStep:
    """StepModel and GroupStepModel of one instance of a model.

    `weights` must already be in the form the GPU runs it (WeightDtype.on). draft: the draft model or head; None where
    the model's own multi-token prediction layer drafts, or a look-up.
    max_num_seqs: of a rank, for which CUDA graphs were captured. Thread-safe.
    """

    def __init__(
        self,
        model: ModelSpec,
        gpu: GpuSpec,
        *,
        engine: Engine,
        weights: WeightDtype,
        kv_dtype: str = "bf16",
        parallel: Parallelism = ONE_GPU,
        draft: ModelSpec | None = None,
        speculative: Speculative | None = None,
        max_num_seqs: int = 1,
    ) -> None:
        self._engine, self.ranks, self.stages = engine, parallel.dp, parallel.pp
        self._constants = constants = constants_for(gpu, engine.base)
        self._queries = 1 + (speculative.num_speculative_tokens if speculative else 0)
        self._extrapolated = _extrapolated(gpu, parallel) if model.moe else []

        def setting(
            of: ModelSpec, queries: int, parallel: Parallelism = parallel, weights: WeightDtype = weights
        ) -> Setting:
            formats = formats_of(of, weights)
            return Setting(gpu, constants, engine, parallel, formats, formats.mlp, kv_dtype, of.hidden, queries)

        ops = _stage_ops(setting(model, self._queries), model)
        draft_ops: list[list[Op]] = []  # the first pass sees the whole step, the others one token a sequence
        if speculative and speculative.method != "ngram":
            of = draft or model
            split = Parallelism(parallel.tp) if draft else parallel  # every rank has a draft model of its own
            drafted = BF16 if speculative.method == "eagle3" else weights
            first, later = setting(of, self._queries, split, drafted), setting(of, 1, split, drafted)
            settings = (first, *[later] * (speculative.num_speculative_tokens - 1))
            draft_ops = [_draft_ops(s, model, draft, speculative.method, s is first) for s in settings]
        every = (op for of_stage in (*ops, *draft_ops) for op in of_stage)
        self._windows = tuple(sorted({op.window for op in every if isinstance(op, DecodeOp) and op.window}))
        in_place = engine.prefill_in_place_on(gpu)
        self._stages = [Stage(each, self._windows, self._queries, in_place) for each in ops]
        self._drafts = [Stage(each, self._windows, 1 if i else self._queries, in_place) for i, each in enumerate(draft_ops)]
        self._overhead = EngineOverhead(engine, ops[0], parallel, max_num_seqs, engine.launch_us_on(gpu))
        self._known_loads, self._known_drafts = rank_counts(self._queries), rank_counts(1)
        # Step times from sums, where these are enough: remembered, and for simulations that do not look at single sequences.
        summed = len(self._stages) == 1 and not speculative
        self.sums = SummedSteps(self._stages[0], self._windows, self._overhead) if summed else None

    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        """Seconds of one forward pass; see StepModel. Other attention data-parallel ranks have nothing to do."""
        if self.sums is None:
            return sum(self.stages_s([StepBatch(prefill, decode_contexts)]))
        return self.sums.step_s(prefill, decode_load_of(decode_contexts, self._windows))

    def stages_s(self, batches: Sequence[StepBatch]) -> Sequence[float]:
        """Seconds of each stage; see GroupStepModel. Ranks run in lockstep: the slowest sets the pace of each stage."""
        if not any(batch.prefill or batch.decode_contexts for batch in batches):
            return [0.0] * len(self._stages)
        if self.sums is not None:
            ranks = [(tuple(batch.prefill), decode_load_of(batch.decode_contexts, self._windows)) for batch in batches]
            return [self.sums.ranks_s(ranks)]
        return self._seconds(self._loads(batches))

    def explain(self, batches: Sequence[StepBatch]) -> list[OperationTime]:
        """Explain the step of these batches, operation by operation, longest first; seconds add up to the sum of `stages_s`.

        Amounts are those of one GPU, in each stage one of the slowest rank.
        """
        return merged(self.operations(batches))

    def operations(self, batches: Sequence[StepBatch]) -> list[OperationTime]:
        """Return the same line by line: operations of one name are not added up."""
        ranks = self._loads(batches)
        together = _tokens(ranks)
        if not together[0]:
            return []
        scale, times, first_s = self._scale(ranks), list[OperationTime](), 0.0
        for i, (stage, on, group) in enumerate(self._passes(ranks, together)):
            load, decoding = on[0] if len(on) == 1 else max(on, key=lambda rank: stage.rank_s(*rank))
            lines = list(stage.explain(load, decoding, group, scale))
            if i == 0 or (i >= len(self._stages) and len(self._stages) == 1):
                first_s += sum(line.seconds for line in lines)
            times += lines
        host_s = self._with_host(first_s, ranks, together) - first_s
        return [*times, OperationTime("host", 1, host_s)]

    def provenance(self) -> list[str]:
        """Return the origin of the constants of each kind of kernel, a line each: "fitted: ..." or "transferred: ..."."""
        lines = [self._constants.provenance(op, dtype) for op, dtype in sorted(self._constants.used)]
        return [*lines, *self._extrapolated]

    def _loads(self, batches: Sequence[StepBatch]) -> _Ranks:
        return [
            (
                self._known_loads[tuple(batch.prefill), len(batch.decode_contexts)],
                decode_load_of(batch.decode_contexts, self._windows),
            )
            for batch in batches
        ]

    def _seconds(self, ranks: _Ranks) -> list[float]:
        """Seconds of each stage for ranks that have some tokens."""
        together = _tokens(ranks)
        scale, times = self._scale(ranks), [0.0] * self.stages
        for i, (stage, on, group) in enumerate(self._passes(ranks, together)):
            slowest_s = max([stage.rank_s(*rank) for rank in on])
            times[min(i, self.stages - 1)] += slowest_s + stage.together_s(*group)
        times = [scale * time for time in times]
        times[0] = self._with_host(times[0], ranks, together)
        return times

    def _passes(self, ranks: _Ranks, together: _Group) -> Iterable[tuple[Stage, _Ranks, _Group]]:
        """Yield each stage, then each pass of the draft, with the loads it sees and the tokens of all ranks."""
        yield from ((stage, ranks, together) for stage in self._stages)
        decodes = sum([load.decodes for load, _ in ranks])
        for i, stage in enumerate(self._drafts):
            if i == 0:
                yield stage, ranks, together
            elif decodes:
                yield stage, [(self._known_drafts[(), load.decodes], decoding) for load, decoding in ranks], (decodes, 0)

    def _with_host(self, first_s: float, ranks: _Ranks, together: _Group) -> float:
        """Return the first stage's seconds with the host's: of the step, and of drafts on the rank that verifies most."""
        with_step_s = self._overhead.with_host(first_s, _most_sequences(ranks), together[1], together[0])
        if self._queries == 1:
            return with_step_s
        return with_step_s + 1e-6 * self._engine.speculative_sequence_us * max([load.decodes for load, _ in ranks])

    def _scale(self, ranks: _Ranks) -> float:
        new, decode_tokens = sum([load.new for load, _ in ranks]), sum([load.decode_tokens for load, _ in ranks])
        return self._overhead.gpu_scale(new, decode_tokens)


def _tokens(ranks: _Ranks) -> _Group:
    return sum([load.tokens for load, _ in ranks]), sum([load.new for load, _ in ranks])


def _most_sequences(ranks: _Ranks) -> int:
    """On one rank."""
    return max([load.sequences for load, _ in ranks])


def _extrapolated(gpu: GpuSpec, parallel: Parallelism) -> list[str]:
    """Return the parts of a mixture of experts that no measured table holds."""
    if not parallel.is_wide:
        return []
    found = [
        f"extrapolated: experts, dispatch and combine (DeepEP) over {parallel.ep} GPUs; no overlap of two batches; "
        "copies of popular experts keep ranks level (EPLB)"
    ]
    if parallel.ep > gpu.link_gpus:
        found.append("extrapolated: messages between nodes, from bandwidth")
    return found


def _stage_ops(s: Setting, model: ModelSpec) -> list[list[Op]]:
    """Return the operations of each pipeline stage."""
    stages = []
    pp = s.parallel.pp
    for i, groups in enumerate(split_layers(model, pp)):
        ops = [*(embedding_ops(s) if i == 0 else ()), *layer_ops(s, groups)]
        ops += hand_over_ops(s, i) if i < pp - 1 else output_ops(s, model)
        stages.append(ops)
    return stages


def _draft_ops(s: Setting, model: ModelSpec, draft: ModelSpec | None, method: SpeculativeMethod, first: bool) -> list[Op]:
    if draft is None:
        ops = mtp_ops(s, model)
    elif method == "eagle3":
        ops = eagle3_ops(s, draft, first)
    else:
        ops = [*embedding_ops(s), *layer_ops(s, draft.groups), *output_ops(s, draft, "sequences")]
    return [replace(op, name=op.name if op.name.startswith("draft") else f"draft {op.name}") for op in ops]
