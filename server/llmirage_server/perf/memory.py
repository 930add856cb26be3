"""The budget of one GPU's memory, and the tokens of KV cache that are left."""

from __future__ import annotations

from dataclasses import dataclass

from llmirage_server.perf.catalogue.dtypes import BF16, WeightDtype
from llmirage_server.perf.catalogue.gpus import GIB
from llmirage_server.perf.catalogue.layers import Dense, GatedDelta, Gqa, LayerGroup, Mla, Moe
from llmirage_server.perf.catalogue.models import Formats, ModelSpec, formats_of
from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.parallelism import Parallelism
from llmirage_server.perf.speculation import SpeculativeMethod

# Sequences bring a part of fixed size (windows, recurrent states). It is set apart for as many sequences as fill the pool
# when each has so many tokens, or for max_num_seqs if those are fewer.
_TOKENS_PER_SEQUENCE = 4096
_GATED_DELTA_CHUNK = 64  # tokens of a chunk of flash-linear-attention
_MOE_CHUNK = 16384  # tokens gathered from data-parallel ranks that experts take at once (vLLM's VLLM_FUSED_MOE_CHUNK_SIZE)
_TRTLLM_GRAPH = 128  # sequences of TensorRT-LLM's largest CUDA graph, unless told (llmapi/llm_args.py, CudaGraphConfig)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes are those of one GPU, in the pipeline stage that can hold the fewest tokens.

    gpu_bytes = unused + weights + activations + reserve + KV pool; `unused_bytes` is what the engine leaves alone.
    """

    gpu_bytes: int
    unused_bytes: int
    weights_bytes: int
    activation_bytes: int
    reserve_bytes: int
    kv_bytes_per_token: int  # of the layers that keep the whole context
    bytes_per_sequence: int  # windows and recurrent states
    max_num_seqs: int
    tokens_override: int | None = None

    @property
    def usable_bytes(self) -> int:
        return self.gpu_bytes - self.unused_bytes

    @property
    def pool_bytes(self) -> int:
        """Memory for everything that belongs to sequences; negative when the weights do not fit."""
        return self.usable_bytes - self.weights_bytes - self.activation_bytes - self.reserve_bytes

    @property
    def sequences(self) -> int:
        """Sequences that may run at once: max_num_seqs, or fewer where their fixed parts would fill the pool."""
        if not self.bytes_per_sequence:
            return self.max_num_seqs
        each = self.bytes_per_sequence + self.kv_bytes_per_token * _TOKENS_PER_SEQUENCE
        return max(1, min(self.max_num_seqs, self.pool_bytes // each))

    @property
    def fixed_bytes(self) -> int:
        return self.bytes_per_sequence * self.sequences

    @property
    def kv_bytes(self) -> int:
        """Bytes left for keys and values of whole contexts; negative when there is no room."""
        if self.tokens_override is not None:
            return self.tokens_override * self.kv_bytes_per_token
        return self.pool_bytes - self.fixed_bytes

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache of one scheduler.

        A tensor-parallel rank holds its share of each token, so one rank's room is that of all; attention data-parallel
        ranks have as much each.
        """
        if self.tokens_override is not None:
            return self.tokens_override
        # where no layer keeps anything per token, memory never runs out of tokens: sequences do
        return max(0, self.kv_bytes // max(1, self.kv_bytes_per_token))

    def describe(self) -> str:
        pool = "KV cache" if self.tokens_override is None else "KV cache as given"
        lines = [
            (self.gpu_bytes, "memory of the GPU"),
            (-self.unused_bytes, "not used by the engine"),
            (-self.weights_bytes, "weights"),
            (-self.activation_bytes, "peak activations"),
            (-self.reserve_bytes, "CUDA context, graphs, communicators"),
            (-self.fixed_bytes, f"sliding windows and recurrent states of {self.sequences:,} sequences"),
            (self.kv_bytes, f"{pool}: {self.kv_tokens:,} tokens of {self.kv_bytes_per_token / 1024:g} KiB"),
        ]
        return "\n".join(f"{size / GIB:8.1f} GiB  {what}" for size, what in lines if size)


def weights_bytes_per_rank(
    model: ModelSpec, weights: WeightDtype, parallel: Parallelism, *, first: bool = True, last: bool = True
) -> int:
    """Bytes of weights on one GPU of a pipeline stage with the layers of `model`, the first or last stage or both.

    Matrices are sharded over tp ranks, a KV head is copied when there are more ranks than heads, experts are sharded over
    all GPUs of the stage (whole or in slices: the same bytes). Embedding and lm_head are sharded by vocabulary and stay
    bf16, the router and the norms are copied in bf16. A tied table is held by both ends.
    """
    formats = formats_of(model, weights)
    tables = int(first) + int(last)
    if model.tied_embeddings and first and last:
        tables = 1
    total = 2.0 * (model.embedding_weights * tables / parallel.tp + (model.hidden if last else 0))
    for group in model.groups:
        total += group.count * _layer_bytes(group, model.hidden, formats, parallel)
    return int(total)


def vision_bytes_per_rank(model: ModelSpec, engine: Engine, tp: int) -> int:
    """Bytes of a vision encoder on one GPU: bf16, sharded; under TensorRT-LLM float32 and whole (modeling_llama.py)."""
    return model.vision_weights * 4 if engine.base == "trtllm" else model.vision_weights * 2 // tp


def draft_bytes_per_rank(
    model: ModelSpec, draft: ModelSpec | None, weights: WeightDtype, parallel: Parallelism, method: SpeculativeMethod
) -> int:
    """Bytes of a draft model on one GPU, or (None) of the model's own prediction layer: the tables are the model's.

    An EAGLE-3 head is in bf16 and shares the embedding table. It joins three hidden states, and attends to embeddings too.
    """
    if method == "ngram":
        return 0
    if method == "eagle3" and draft is not None:
        inner = [group.attention for group in draft.groups]
        embedded = sum(of.qkv_width(parallel.tp) for of in inner if isinstance(of, Gqa))
        beside = 2 * draft.hidden * (3 * draft.hidden + embedded)
        return beside + weights_bytes_per_rank(draft, BF16, Parallelism(parallel.tp), first=False)
    if draft is not None:
        return weights_bytes_per_rank(draft, weights, Parallelism(parallel.tp))
    joining = 2 * model.hidden * model.hidden * weights.weight_bytes
    return int(joining) + weights_bytes_per_rank(model.draft, weights, parallel, first=False, last=False)


def _layer_bytes(group: LayerGroup, hidden: int, formats: Formats, parallel: Parallelism) -> float:
    """Bytes of one layer's weights on one GPU."""
    tp, total = parallel.tp, 0.0
    attention, mlp, expert = (dtype.weight_bytes for dtype in formats)
    if group.attention is not None:
        total += group.attention.weights(hidden, tp) * attention + 2 * (group.attention.small_weights(hidden) + hidden)
    if isinstance(group.mlp, Dense):
        total += group.mlp.weights(hidden) / tp * mlp + 2 * hidden
    elif isinstance(group.mlp, Moe):
        total += group.mlp.shared_weights(hidden) / tp * mlp + 2 * (group.mlp.router_weights(hidden) + hidden)
        # ranks that do not divide the experts have copies of some
        slots = -(-group.mlp.experts // parallel.ep) * parallel.ep
        width = group.mlp.width // parallel.moe_tp
        rows, columns = formats.experts.expert_shape(hidden, width)
        padded = rows * columns / (hidden * width)
        total += slots * group.mlp.expert_weights(hidden) / parallel.stage_gpus * padded * expert
    return total


def activation_bytes_per_rank(
    model: ModelSpec, parallel: Parallelism, engine: Engine, max_num_batched_tokens: int, max_num_seqs: int
) -> int:
    """Largest set of activations alive at once in a full step, in bf16: what the engine's profiling run finds.

    Either those of the layers or the logits of every sequence (bf16 and the sampler's float32 copy). TensorRT-LLM profiles a
    step of prompts alone, after it has captured its CUDA graphs: their pool, in which the same is alive for the sequences of
    the largest, stays beside it (_torch/pyexecutor/_util.py, "outside torch (e.g., NCCL and CUDA graphs)").
    """
    alive = _layers_bytes(model, parallel, engine, max_num_batched_tokens)
    logits = model.vocab * (2 + 4)
    if engine.base != "trtllm":
        return max(alive, min(max_num_seqs, max_num_batched_tokens) * logits)
    sequences = min(max_num_seqs, _TRTLLM_GRAPH)
    return alive + max(_layers_bytes(model, parallel, engine, sequences), sequences * logits)


def _layers_bytes(model: ModelSpec, parallel: Parallelism, engine: Engine, t: int) -> int:
    """Return the bytes of `t` tokens of each rank, without the logits.

    Residual and hidden states live through the step; beside them, one at a time, the attention block's (q, k, v, output), an
    MLP's (gate, up, product) or the experts': per token and chosen expert gate and up or output, and the product.

    TensorRT-LLM's experts take all tokens of the data-parallel ranks at once: their workspace has room for every chosen
    expert of each, an input or output in bf16 and the larger of gate and up and of output (getWorkspaceDeviceBufferSizes in
    moe_kernels.cu; kept for each stream, getWorkspaceInfo in moeOp.cpp), beside what was gathered and the sums.
    """
    tp, hidden, phases = parallel.tp, model.hidden, [0]
    for group in model.groups:
        attention, mlp = group.attention, group.mlp
        if isinstance(attention, Gqa):
            phases.append(t * (attention.qkv_width(tp) + attention.heads // tp * attention.v_dim))
        elif isinstance(attention, Mla):
            phases.append(t * (attention.heads // tp * 2 * (attention.qk_dim + attention.v_dim) + attention.latent))
        elif attention is not None:
            kept = _chunk_values(attention, tp) if isinstance(attention, GatedDelta) else 0
            phases.append(t * (2 * attention.in_width(tp) + kept))
        if isinstance(mlp, Dense):
            phases.append(t * 3 * mlp.width // tp)
        elif isinstance(mlp, Moe):
            width, inner = mlp.width // parallel.moe_tp, mlp.latent or hidden
            if engine.base == "trtllm":
                gathered = t if parallel.is_wide else t * parallel.dp  # or sent to their experts, who get as many
                experts = gathered * (mlp.per_token * (inner + max(2 * width, inner)) + 2 * inner)
            else:
                pairs = min(t * parallel.dp, max(t, _MOE_CHUNK)) * mlp.per_token
                experts = pairs * (max(2 * width, hidden) + width)
            phases.append(experts + t * 3 * mlp.shared_width // tp)
    return 2 * t * 2 * hidden + 2 * max(phases)


def _chunk_values(attention: GatedDelta, tp: int) -> int:
    """Values for each token that the chunked gated delta rule keeps between its kernels.

    Of every value head w (a key), u, new values and the output (values each), the chunk's matrix in float32, and a state for
    each chunk (vllm/model_executor/layers/fla/ops/chunk.py; 32 MiB for 2,048 tokens of 32 heads: ROCm/vllm#1075).
    """
    key, value = attention.key_dim, attention.value_dim
    return attention.value_heads // tp * (key + 3 * value + 2 * _GATED_DELTA_CHUNK + key * value // _GATED_DELTA_CHUNK)
