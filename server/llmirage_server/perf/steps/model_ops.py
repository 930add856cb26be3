"""The operations of a model's layers and of its two ends: attention, MLPs, experts, the messages that join the ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmirage_server.perf.catalogue.dtypes import BF16
from llmirage_server.perf.catalogue.layers import (
    Attention,
    Dense,
    GatedDelta,
    Gqa,
    LayerGroup,
    Mamba2,
    Mla,
    Mlp,
    Moe,
    SparseIndex,
    heads_per_rank,
)
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.kernels import attention, collectives, moe
from llmirage_server.perf.kernels.kernel import Elementwise, TokenKernel, Work, round_up
from llmirage_server.perf.steps.operations import Count, DecodeOp, Op, PrefillOp, Setting, TokenOp


def layer_ops(s: Setting, groups: tuple[LayerGroup, ...]) -> list[Op]:
    """All layers of these groups: attention, MLP, a norm before each, and what joins the ranks after each."""
    attentions: dict[Attention, int] = {}
    mlps: dict[Mlp, int] = {}
    for group in groups:
        if group.attention is not None:
            attentions[group.attention] = attentions.get(group.attention, 0) + group.count
        if group.mlp is not None:
            mlps[group.mlp] = mlps.get(group.mlp, 0) + group.count
    blocks = sum(attentions.values()) + sum(mlps.values())
    ops: list[Op] = []
    # the output of a block and the residual are read, both sums written, bf16
    ops.append(s.elementwise("norms", blocks, 8.0 * s.hidden, fused_tokens=_fused_norm_tokens(s)))
    for block, calls in attentions.items():
        ops += [*attention_ops(replace(s, matrices=s.formats.attention), block, calls), *all_reduce(s, calls)]
    for mlp, calls in mlps.items():
        ops += mlp_ops(s, mlp, calls)
    return ops


def _fused_norm_tokens(s: Setting) -> float:
    """Up to how many tokens the norm is part of the all-reduce before it: kernels for NVLink from Hopper on.

    Larger messages go through other kernels (NCCL's, for the largest), and the norm is a kernel of its own.
    """
    if s.parallel.tp == 1 or s.parallel.dp > 1 or s.gpu.link != "nvlink":
        return 0.0
    return s.engine.fused_norm_tokens(s.gpu, s.parallel.tp, s.hidden)


def embedding_ops(s: Setting) -> list[Op]:
    """Return the table's rows of all tokens, summed, as its vocabulary is sharded over the tensor-parallel ranks."""
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


# Attention, or what stands in its place, on one rank. Projections are shared by all tokens of a step. Prompt chunks and
# decoding sequences then part ways: chunks go through one causal attention kernel, decodes through another that reads the
# cache.
# chunked scan: decay summed within chunks, Gram matrix, its inverse, keys and values, states, outputs; norms of queries and
# keys, gates (flash-linear-attention); queries, keys, values copied, states looked up, cast and put back (gdn_backend.py)
_CHUNKED_LAUNCHES = 15
# query heads that FlashMLA's sparse kernel for prompts works on, whatever a rank has of them (required_padding of
# sglang/srt/layers/attention/nsa_backend.py, vllm/v1/attention/backends/mla/flashmla_sparse.py); 64 elsewhere
_SPARSE_HEADS = {"blackwell": 128}


def attention_ops(setting: Setting, block: Attention, calls: int) -> list[Op]:
    """Everything between the norm before the attention and the sum of its output over the ranks."""
    if isinstance(block, Gqa):
        return _gqa(setting, block, calls)
    if isinstance(block, Mla):
        return _mla(setting, block, calls)
    return _linear(setting, block, calls)


def _gqa(s: Setting, block: Gqa, calls: int) -> list[Op]:
    tp = s.parallel.tp
    heads, kv_heads = block.heads // tp, heads_per_rank(block.kv_heads, tp)
    shape = (s.gpu, s.constants, heads, kv_heads, block.head_dim, block.v_dim, s.kv_dtype)
    seen = block.index.top_k if block.index else block.window  # keys that a query may look at; 0: all
    suffix = ", sparse" if block.index else ", sliding window" if block.window else ""
    share = s.constants.of("mixed_attention", "bf16")["per_group_head"] if s.engine.mixed_attention else 0.0
    mixed = 1.0 + share * (heads / kv_heads - 1.0)
    cached = kv_heads * (block.head_dim + block.v_dim)
    prefill = attention.prefill(*shape, window=block.window)
    decode = attention.decode(*shape, queries=s.queries, window=block.window)
    ops: list[Op] = [
        s.gemm("qkv projection", calls, block.qkv_width(tp), s.hidden, follows=True),
        *_qk_norms(s, block, calls),
        # queries and keys are read and written, keys and values go to the cache
        s.elementwise("rotary embedding, cache write", calls, 4.0 * (heads * block.head_dim + cached), launches=2),
        *_index(s, block.index, s.hidden, calls),
        PrefillOp(f"prefill attention{suffix}", calls, prefill, seen),
        DecodeOp(f"decode attention{suffix}", calls, decode, seen, mixed),
    ]
    if block.output_gate:
        ops.append(s.elementwise("attention gate", calls, 6.0 * heads * block.v_dim, launches=2))
    ops.append(s.gemm("output projection", calls, s.hidden, heads * block.v_dim, follows=not block.output_gate))
    return ops


def _qk_norms(s: Setting, block: Gqa, calls: int) -> list[Op]:
    """Norms of queries and keys. One over all heads (MiniMax-M2) needs the sums of squares of every rank.

    Four launches then, as vLLM compiles MiniMaxText01RMSNormTP: squares of queries and of keys, and the scaling of both.
    """
    tp = s.parallel.tp
    width = (block.heads // tp + heads_per_rank(block.kv_heads, tp)) * block.head_dim
    if not block.qk_norm:
        return []
    if block.qk_norm < (block.heads + block.kv_heads) * block.head_dim:
        return [s.elementwise("query and key norms", calls, 4.0 * width, launches=2)]
    kernel = Elementwise(s.gpu, 6.0 * width, launches=4)
    ops: list[Op] = [TokenOp("query and key norms", calls, kernel, launches=4)]
    if tp > 1:
        two_floats = collectives.all_reduce(s.gpu, s.constants, tp, 8.0)
        ops.append(TokenOp("all-reduce of query and key norms", calls, two_floats))
    return ops


def _index(s: Setting, index: SparseIndex | None, q_width: int, calls: int) -> list[Op]:
    """Return the choice of keys by a sparse index, which every rank repeats; nothing where a layer uses another's choice."""
    if index is None or not index.heads:
        return []
    scores = attention.indexer_prefill(s.gpu, s.constants, index.heads, index.head_dim)
    steps = attention.indexer_decode(s.gpu, s.constants, index.heads, index.head_dim, queries=s.queries)
    width = (index.heads + 1) * index.head_dim
    return [
        s.gemm("index projections", calls, index.heads * index.head_dim, q_width),
        # the key and the weights of the heads are a product each
        s.gemm("index projections", calls, index.head_dim, s.hidden, dtype=BF16),
        s.gemm("index projections", calls, index.heads, s.hidden, dtype=BF16),
        # norm of the key; rotary embedding, Hadamard rotation and cast of queries and keys; weights scaled; key cached
        s.elementwise("index norms, rotary embedding, cache write", calls, 4.0 * width, parts=8),
        PrefillOp("sparse index, prefill", calls, scores),
        DecodeOp("sparse index, decode", calls, steps),
        # the best keys of each query: scores are read twice (a histogram, then the choice)
        s.elementwise("index choice", calls, 4.0 * index.top_k),
    ]


def _mla(s: Setting, block: Mla, calls: int) -> list[Op]:
    """DeepSeek's chain: down projections that every rank repeats, up projections of its heads.

    Decodes attend in the latent space, with the key and value up-projections absorbed into two batched products; prompts
    expand the latent cache, all of the context included, into full heads. With a sparse index prompts stay latent too, since
    each query has its own keys.
    """
    heads = block.heads // s.parallel.tp
    down = block.q_rank + block.latent if block.q_rank else block.latent
    ops: list[Op] = [
        s.gemm("q and kv down projection", calls, down, s.hidden),
        # two norms, rotary embedding, cache write; keys put together from their two parts
        s.elementwise(
            "latent norms, rotary embedding, cache write", calls, 4.0 * (block.q_rank + 2 * block.latent), launches=6
        ),
        s.gemm("q up projection", calls, heads * block.qk_dim, block.q_rank or s.hidden),
        *_index(s, block.index, block.q_rank or s.hidden, calls),
    ]
    absorb = attention.mla_bmm(s.gpu, s.constants, heads, block.kv_rank, block.nope_dim)
    release = attention.mla_bmm(s.gpu, s.constants, heads, block.v_dim, block.kv_rank)
    decode = attention.mla_decode(s.gpu, s.constants, heads, block.kv_rank, block.rope_dim, s.kv_dtype, queries=s.queries)
    if block.index is None:
        prefill = attention.mla_prefill(s.gpu, s.constants, heads, block.qk_dim, block.v_dim, block.latent, s.kv_dtype)
        ops += [
            s.gemm("kv up projection", calls, heads * (block.nope_dim + block.v_dim), block.kv_rank, "expanded"),
            PrefillOp("prefill attention", calls, prefill),
            TokenOp("absorbed projections", calls, absorb, "decode_tokens"),
            DecodeOp("decode attention", calls, decode),
            TokenOp("absorbed projections", calls, release, "decode_tokens"),
        ]
    else:
        seen = block.index.top_k
        padded = round_up(heads, _SPARSE_HEADS.get(s.gpu.arch, 64))
        prefill = attention.mla_prefill(s.gpu, s.constants, padded, block.latent, block.kv_rank, block.latent, s.kv_dtype)
        ops += [
            TokenOp("absorbed projections", calls, absorb),
            PrefillOp("prefill attention, sparse", calls, prefill, seen),
            DecodeOp("decode attention, sparse", calls, decode, seen),
            TokenOp("absorbed projections", calls, release),
        ]
    ops.append(s.gemm("output projection", calls, s.hidden, heads * block.v_dim))
    return ops


def _linear(s: Setting, block: GatedDelta | Mamba2, calls: int) -> list[Op]:
    tp = s.parallel.tp
    name, width, (_, out, gates, _) = "state space", block.in_width(tp), block.widths(tp)
    ops: list[Op] = []
    if isinstance(block, GatedDelta):
        # beta and decay are a product of their own; queries, keys, values and gate are taken apart, gates made of both
        name = "gated delta"
        width -= gates
        ops.append(s.gemm(f"{name} input projection", calls, gates, s.hidden, dtype=BF16))
        ops.append(s.elementwise(f"{name} gates", calls, 4.0 * width, parts=2))
    prefill = attention.recurrent_prefill(s.gpu, s.constants, block, tp)
    decode = attention.recurrent_decode(s.gpu, s.constants, block, tp)
    return [
        s.gemm(f"{name} input projection", calls, width, s.hidden),
        *ops,
        s.elementwise("convolution", calls, 4.0 * block.conv_width(tp)),
        TokenOp(f"{name}, prefill", calls, prefill, "new", launches=_CHUNKED_LAUNCHES),
        TokenOp(f"{name}, decode", calls, decode, "decode_tokens"),
        s.elementwise("gated norm", calls, 6.0 * out),
        s.gemm(f"{name} output projection", calls, s.hidden, out),
    ]


# MLPs, mixtures of experts, and what joins their ranks.
def mlp_ops(setting: Setting, block: Mlp, calls: int) -> list[Op]:
    """Everything from the norm before the MLP to its output, summed over the ranks."""
    if isinstance(block, Dense):
        return [*dense_ops(setting, "mlp", block, calls), *all_reduce(setting, calls)]
    ops: list[Op] = [setting.gemm("router", calls, block.experts, setting.hidden, dtype=BF16)]
    if not setting.engine.routes_in_experts and setting.formats.experts.weight_bytes >= 1.0:
        ops.append(setting.elementwise("activation of the router and choice of experts", calls, 4.0 * block.experts))
    if block.shared_width:
        shared = dense_ops(setting, "shared expert", Dense(block.shared_width, block.gated), calls)
        ops += [replace(op, kernel=_Beside(op.kernel, beside)) for op in shared] if (beside := _beside(setting)) else shared
        if block.shared_gate:  # a product of one column and its sigmoid
            ops.append(setting.gemm("shared expert gate", calls, 1, setting.hidden, dtype=BF16))
        # gate, product and sum with the routed experts
        parts = 3 if block.shared_gate else 1
        ops.append(setting.elementwise("shared expert activation and sum", calls, 6.0 * setting.hidden, parts=parts))
    into, out = _exchange(setting, block, calls)
    if block.latent:  # the projections come before tokens leave for the experts' ranks, and after they are back
        into.insert(0, setting.gemm("latent projection", calls, block.latent, setting.hidden))
        out.append(setting.gemm("latent projection", calls, setting.hidden, block.latent))
    return [*ops, *into, _experts(setting, block, calls), *out]


def _beside(s: Setting) -> int:
    """Return up to how many tokens the shared expert runs beside the routed ones."""
    return s.engine.beside_tokens if s.parallel.dp == 1 and s.gpu.vendor == "nvidia" else 0


@dataclass(frozen=True, slots=True)
class _Beside:
    """A kernel on a second stream beside the routed experts: its reads and writes take time, its launch does not.

    From `most` tokens on it runs before them; in full from twice so many on, so that no user more makes all slower.
    """

    kernel: TokenKernel
    most: int

    def seconds(self, tokens: float) -> float:
        return self.work(tokens).seconds

    def work(self, tokens: float) -> Work:
        work = self.kernel.work(tokens)
        alone = min(1.0, max(0.0, tokens / self.most - 1.0))
        return work._replace(seconds=work.ideal_s + alone * (work.seconds - work.ideal_s))


def dense_ops(s: Setting, name: str, block: Dense, calls: int) -> list[TokenOp]:
    """Projections and activation of an MLP whose width is sharded over the tensor-parallel ranks."""
    width = block.width // s.parallel.tp
    columns = 2 * width if block.gated else width
    return [
        s.gemm(f"{name} gate and up" if block.gated else f"{name} up", calls, columns, s.hidden, follows=name == "mlp"),
        s.elementwise(f"{name} activation", calls, 2.0 * (columns + width)),
        s.gemm(f"{name} down", calls, s.hidden, width),
    ]


def all_reduce(s: Setting, calls: int, width: int = 0) -> list[Op]:
    """Return the sum of the partial outputs of tensor-parallel ranks, in bf16; width 0: that of the model."""
    tp = s.parallel.tp
    if tp == 1:
        return []
    return [TokenOp("all-reduce", calls, collectives.all_reduce(s.gpu, s.constants, tp, 2.0 * (width or s.hidden)))]


_ROUTE_BYTES = 8.0  # an expert of a token: its number and its weight
_DECODE_TOKENS = 64  # where the kernels of two formats are compared
# triton_kernels, which all engines have for mxfp4 on Hopper: choice of experts and their tokens (7: topk.py,
# routing.py), padding, products (2), sum (matmul_ogs.py)
_TRITON_LAUNCHES = 11


def _experts(s: Setting, block: Moe, calls: int) -> Op:
    """Return the routed experts, in 8 bits with scales per tensor or per block of weights, whichever kernel is faster.

    Most fp8 checkpoints of mixtures (Qwen3, MiniMax-M2, GLM, DeepSeek) come with block scales. Kernels of vLLM 0.24 for
    scales per tensor were measured at a tenth of the bandwidth on Hopper, 2 to 2.5 times slower than bf16: nobody serves so.
    """
    ep, width = s.parallel.ep, block.width // s.parallel.moe_tp
    dtype = s.formats.experts
    if (
        (dtype.name, dtype.compute) == ("mxfp4", "bf16")
        and dtype.expert_kernels != "marlin"
        and s.engine.mxfp4_activations == "fp8"
        and s.gpu.has_fp4
    ):
        dtype = dtype.with_fp8_activations
    dtypes = [dtype, replace(dtype, name="fp8_block")] if dtype.kernel_dtype in ("fp8", "int8") else [dtype]
    slots = -(-block.experts // ep) * ep  # ranks that do not divide the experts have copies of some (redundant experts)
    shape = *dtype.expert_shape(block.latent or s.hidden, width), slots, block.per_token, ep, block.gated
    # popular experts of many ranks have copies (EPLB), as in what LMSYS published of wide expert parallelism
    skew = 0.0 if s.parallel.is_wide else moe.DEFAULT_SKEW
    kernels = [moe.Experts(s.gpu, s.constants, d, *shape, skew=skew, sent=s.parallel.is_wide) for d in dtypes]
    fastest = min(kernels, key=lambda kernel: kernel.seconds(_DECODE_TOKENS))
    # kernels of 4-bit formats are one call; others one for each part: order of tokens (2), products (2), activation, sum
    launches = 1 if dtype.weight_bytes < 1.0 else 6 + dtype.quantises
    launches += dtype.quantises
    if dtype.kernel_dtype == "mxfp4" and s.gpu.arch == "hopper":
        launches = _TRITON_LAUNCHES
    return TokenOp("experts", calls, fastest, "group", launches=launches)


def _exchange(s: Setting, block: Moe, calls: int) -> tuple[list[Op], list[Op]]:
    """Return the messages that bring tokens to the experts' ranks, and the sums back.

    Under tensor parallelism every rank has every token already, and one all-reduce joins what the ranks' experts (or slices)
    made. Attention data-parallel ranks have their own tokens: either all of them are gathered and the results reduced and
    scattered, or each token is sent to the ranks of its experts and back, which needs whole experts (ep = all GPUs of the
    stage); ranks that share tokens through tensor parallelism each send their part, and gather the sums.

    Whatever the engine does within a node, nobody gathers the tokens of several (`is_wide`).
    """
    parallel, hidden = s.parallel, block.latent or s.hidden
    if parallel.dp == 1:
        return [], all_reduce(s, calls, hidden)
    ranks, link = parallel.stage_gpus, (s.gpu, s.constants)
    after: list[Op] = []
    if parallel.tp > 1:
        after.append(TokenOp("all-gather", calls, collectives.all_gather(*link, parallel.tp, 2.0 * hidden)))
    if parallel.is_wide or (parallel.ep == ranks and s.engine.sends_to_experts(s.gpu, parallel, block.per_token)):
        to = ranks, hidden // parallel.tp, block.per_token
        sent_bytes = 1.0 + 4 / 128 if s.formats.experts.name in ("fp8", "fp8_block") else 2.0  # with scales of 128 values
        dispatch, combine = collectives.dispatch(*link, *to, sent_bytes), collectives.combine(*link, *to)
        return [TokenOp("dispatch", calls, dispatch)], [TokenOp("combine", calls, combine), *after]
    gathered = 2.0 * (hidden + block.experts)  # with the router's logits, bf16
    if s.engine.gathers_quantized:
        gathered = _sent_bytes(s) * hidden + _ROUTE_BYTES * block.per_token
    gather = collectives.all_gather(*link, ranks, gathered)
    scatter = collectives.reduce_scatter(*link, ranks, 2.0 * hidden)
    return [TokenOp("all-gather", calls, gather, "group")], [TokenOp("reduce-scatter", calls, scatter, "group"), *after]


def _sent_bytes(s: Setting) -> float:
    """Return the bytes of an activation sent to experts: quantized, but for block scales, which the kernel makes."""
    dtype = s.formats.experts
    return dtype.activation_bytes if dtype.name in ("fp8", "nvfp4") else 2.0
