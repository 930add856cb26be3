"""The operations of one layer's attention, or of what stands in its place, on one rank.

Projections are shared by all tokens of a step. Prompt chunks and decoding sequences then part ways: chunks go through one
causal attention kernel, decodes through another that reads the cache.
"""

from __future__ import annotations

from llmirage_server.perf.catalogue.layers import Attention, GatedDelta, Gqa, Mamba2, Mla, SparseIndex, heads_per_rank
from llmirage_server.perf.kernels import attention, collectives
from llmirage_server.perf.kernels.kernel import Elementwise, round_up
from llmirage_server.perf.steps.operations import BF16, DecodeOp, Op, PrefillOp, Setting, TokenOp

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
        s.elementwise("index norms, rotary embedding, cache write", calls * s.kernels(8), 4.0 * width / s.kernels(8)),
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
    if isinstance(block, GatedDelta):
        heads = block.value_heads // tp
        delta = (s.gpu, s.constants, heads_per_rank(block.key_heads, tp), heads, block.key_dim, block.value_dim)
        out = heads * block.value_dim
        name, prefill, decode = "gated delta", attention.gated_delta_prefill(*delta), attention.gated_delta_decode(*delta)
    else:
        heads = block.heads // tp
        scan = (s.gpu, s.constants, heads, block.head_dim, heads_per_rank(block.groups, tp), block.state)
        out = heads * block.head_dim
        name, prefill, decode = "state space", attention.mamba2_prefill(*scan), attention.mamba2_decode(*scan)
    width = block.in_width(tp)
    ops: list[Op] = []
    if isinstance(block, GatedDelta):
        # beta and decay are a product of their own; queries, keys, values and gate are taken apart, gates made of both
        width -= 2 * heads
        ops.append(s.gemm(f"{name} input projection", calls, 2 * heads, s.hidden, dtype=BF16))
        ops.append(s.elementwise(f"{name} gates", calls * s.kernels(2), 4.0 * width / s.kernels(2)))
    return [
        s.gemm(f"{name} input projection", calls, width, s.hidden),
        *ops,
        s.elementwise("convolution", calls, 4.0 * block.conv_width(tp)),
        TokenOp(f"{name}, prefill", calls, prefill, "new", launches=_CHUNKED_LAUNCHES),
        TokenOp(f"{name}, decode", calls, decode, "decode_tokens"),
        s.elementwise("gated norm", calls, 6.0 * out),
        s.gemm(f"{name} output projection", calls, s.hidden, out),
    ]
