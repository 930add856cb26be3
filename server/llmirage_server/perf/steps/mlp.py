"""The operations of one layer's MLP or mixture of experts, and the messages that join the ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmirage_server.perf.catalogue.layers import Dense, Mlp, Moe
from llmirage_server.perf.kernels import collectives, moe
from llmirage_server.perf.kernels.kernel import TokenKernel, Work
from llmirage_server.perf.steps.operations import BF16, Op, Setting, TokenOp


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
        parts = setting.kernels(3 if block.shared_gate else 1)
        ops.append(setting.elementwise("shared expert activation and sum", calls * parts, 6.0 * setting.hidden / parts))
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
        s.gemm(f"{name} gate and up" if block.gated else f"{name} up", calls, columns, s.hidden),
        s.elementwise(f"{name} activation", calls, 2.0 * (columns + width)),
        s.gemm(f"{name} down", calls, s.hidden, width),
    ]


def all_reduce(s: Setting, calls: int, width: int = 0) -> list[Op]:
    """The sum of the partial outputs of tensor-parallel ranks, in bf16; width 0: that of the model."""
    tp = s.parallel.tp
    if tp == 1:
        return []
    return [TokenOp("all-reduce", calls, collectives.all_reduce(s.gpu, s.constants, tp, 2.0 * (width or s.hidden)))]


_ROUTE_BYTES = 8.0  # an expert of a token: its number and its weight
_DECODE_TOKENS = 64  # where the kernels of two formats are compared


def _experts(s: Setting, block: Moe, calls: int) -> Op:
    """The routed experts. In 8 bits they run with scales per tensor or per block of weights, whichever is the faster kernel.

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
    kernels = [moe.experts(s.gpu, s.constants, d, *shape, skew=s.skew, sent=s.wide) for d in dtypes]
    # kernels that widen 4-bit weights (Marlin) spend their time on that, which does not cost clocks as the matrix units do
    fastest = min(kernels, key=lambda kernel: kernel.seconds(_DECODE_TOKENS))
    # kernels of 4-bit formats are one call; others one for each part: order of tokens (2), products (2), activation, sum
    launches = 1 if dtype.weight_bytes < 1.0 else 6 + dtype.quantises
    launches += dtype.quantises
    return TokenOp("experts", calls, fastest, "group", slowed=dtype.kernel_dtype != "int4", launches=launches)


def _exchange(s: Setting, block: Moe, calls: int) -> tuple[list[Op], list[Op]]:
    """How tokens get to the experts' ranks, and the sums back.

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
    if s.wide and ranks > s.gpu.link_gpus:
        to = ranks, hidden // parallel.tp, block.per_token
        sent_bytes = 1.0 + 4 / 128 if s.formats.experts.name in ("fp8", "fp8_block") else 2.0  # with scales of 128 values
        dispatch = collectives.between_domains(*link, "dispatch", *to, sent_bytes)
        combine = collectives.between_domains(*link, "combine", *to, 2.0)
        return [TokenOp("dispatch", calls, dispatch)], [TokenOp("combine", calls, combine), *after]
    if s.wide or (parallel.ep == ranks and s.engine.sends_to_experts(s.gpu, parallel, block.per_token)):
        to = ranks, hidden // parallel.tp, block.per_token
        dispatch, combine = collectives.dispatch(*link, *to), collectives.combine(*link, *to)
        return [TokenOp("dispatch", calls, dispatch)], [TokenOp("combine", calls, combine), *after]
    gathered = 2.0 * (hidden + block.experts)  # with the router's logits, bf16
    if s.engine.gathers_quantized:
        gathered = _sent_bytes(s) * hidden + _ROUTE_BYTES * block.per_token
    gather = collectives.all_gather(*link, ranks, gathered)
    scatter = collectives.reduce_scatter(*link, ranks, 2.0 * hidden)
    return [TokenOp("all-gather", calls, gather, "group")], [TokenOp("reduce-scatter", calls, scatter, "group"), *after]


def _sent_bytes(s: Setting) -> float:
    """An activation on its way to the experts: quantized before it is sent, but for block scales, which the kernel makes."""
    dtype = s.formats.experts
    return dtype.activation_bytes if dtype.name in ("fp8", "nvfp4") else 2.0
