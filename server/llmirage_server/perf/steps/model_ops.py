"""The operations of a model's layers, and of its two ends."""

from __future__ import annotations

from dataclasses import replace

from llmirage_server.perf.catalogue.layers import Attention, Gqa, LayerGroup, Mlp
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.kernels import collectives
from llmirage_server.perf.steps.attention import attention_ops
from llmirage_server.perf.steps.mlp import all_reduce, mlp_ops
from llmirage_server.perf.steps.operations import BF16, Count, Op, Setting, TokenOp


def layer_ops(s: Setting, groups: tuple[LayerGroup, ...]) -> list[Op]:
    """All layers of these groups: attention, MLP, a norm before each, and what joins the ranks after each."""
    attention: dict[Attention, int] = {}
    mlp: dict[Mlp, int] = {}
    for group in groups:
        if group.attention is not None:
            attention[group.attention] = attention.get(group.attention, 0) + group.count
        if group.mlp is not None:
            mlp[group.mlp] = mlp.get(group.mlp, 0) + group.count
    blocks = sum(attention.values()) + sum(mlp.values())
    ops: list[Op] = []
    # the output of a block and the residual are read, both sums written, bf16
    ops.append(s.elementwise("norms", blocks, 8.0 * s.hidden, fused_tokens=_fused_norm_tokens(s)))
    for block, calls in attention.items():
        ops += [*attention_ops(replace(s, matrices=s.formats.attention), block, calls), *all_reduce(s, calls)]
    for block_, calls in mlp.items():
        ops += mlp_ops(s, block_, calls)
    return ops


def _fused_norm_tokens(s: Setting) -> float:
    """Up to how many tokens the norm is part of the all-reduce before it: kernels for NVLink from Hopper on.

    Larger messages go through other kernels (NCCL's, for the largest), and the norm is a kernel of its own.
    """
    if s.parallel.tp == 1 or s.parallel.dp > 1 or s.gpu.link != "nvlink":
        return 0.0
    return s.engine.fused_norm_tokens(s.gpu, s.parallel.tp, s.hidden)


def embedding_ops(s: Setting) -> list[Op]:
    """The table's rows of all tokens; its vocabulary is sharded over the tensor-parallel ranks, so they are summed."""
    return [s.elementwise("embedding", 1, 4.0 * s.hidden), *all_reduce(s, 1)]


def output_ops(s: Setting, model: ModelSpec, rows: Count = "rows") -> list[Op]:
    """From hidden states to chosen tokens: final norm, lm_head (bf16, vocabulary sharded), logits to all, sampling."""
    ops: list[Op] = [
        s.elementwise("norms", 1, 8.0 * s.hidden),
        s.gemm("lm_head", 1, -(-model.vocab // s.parallel.tp), s.hidden, rows, BF16),
    ]
    if s.parallel.tp > 1:
        gather = collectives.all_gather(s.gpu, s.constants, s.parallel.tp, 2.0 * model.vocab)
        ops.append(TokenOp("logits all-gather", 1, gather, rows))
    # bf16 logits in, a float32 copy out and in again
    ops.append(s.elementwise("sampling", 1, 10.0 * model.vocab, rows))
    return ops


def hand_over_ops(s: Setting, stage: int) -> list[Op]:
    """Hidden states and residual of all tokens to the next pipeline stage; tensor-parallel ranks each send their part."""
    across = s.parallel.crosses_nodes(stage, s.gpu)
    kernel = collectives.point_to_point(s.gpu, s.constants, 4.0 * s.hidden / s.parallel.tp, across)
    ops: list[Op] = [TokenOp("pipeline hand-over", 1, kernel)]
    if s.parallel.tp > 1:
        gather = collectives.all_gather(s.gpu, s.constants, s.parallel.tp, 4.0 * s.hidden)
        ops.append(TokenOp("hand-over all-gather", 1, gather))
    return ops


def mtp_ops(s: Setting, model: ModelSpec) -> list[Op]:
    """One multi-token prediction pass (DeepSeek-V3): the embedding and the hidden state joined, one layer, lm_head.

    All tokens go through it, for its own cache; sequences are sampled.
    """
    return [
        *embedding_ops(s),
        s.elementwise("norms", 2, 4.0 * s.hidden),
        s.gemm("draft joining projection", 1, s.hidden, 2 * s.hidden),
        *layer_ops(s, model.draft.groups),
        *output_ops(s, model, "sequences"),
    ]


def eagle3_ops(s: Setting, head: ModelSpec, first: bool) -> list[Op]:
    """One pass of an EAGLE-3 head (Li et al. 2025): one layer that attends to embedding and hidden state side by side.

    first: what it starts from are three hidden states of the model, joined by a projection; later passes go on from its own.
    """
    joining = [s.gemm("draft joining projection", 1, s.hidden, 3 * s.hidden)] if first else []
    inner = head.groups[0].attention
    if not isinstance(inner, Gqa):
        raise TypeError("an EAGLE-3 head has grouped-query attention")
    return [
        *embedding_ops(s),
        s.elementwise("norms", 2, 4.0 * s.hidden),
        *joining,
        s.gemm("draft qkv projection of embeddings", 1, inner.qkv_width(s.parallel.tp), s.hidden),
        *layer_ops(s, head.groups),
        *output_ops(s, head, "sequences"),
    ]
