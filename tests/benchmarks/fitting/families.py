"""The formula of each kind of kernel on whole columns, with what may be fitted in it, and the same through the product.

`formula` mirrors the kernels of llmirage_server.perf.kernels in numpy, so that a fit is quick; `kernel_seconds` asks the
kernels themselves, and fit_ops.py checks that the two agree.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from fitting.tables import Column, Columns, Rows, l2_mb, tabled_rank

from llmirage_server.perf.catalogue.constants import Constants, Fit
from llmirage_server.perf.catalogue.dtypes import KV_DTYPE_BYTES, WEIGHT_DTYPES, WeightDtype
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.layers import GatedDelta
from llmirage_server.perf.kernels import attention, collectives, moe
from llmirage_server.perf.kernels.kernel import Gemm


class Range(NamedTuple):
    """Where a constant starts, and what it may be."""

    start: float
    low: float
    high: float


Constant = Mapping[str, float]
Formula = Callable[[Columns, Constant], Column]


@dataclass(frozen=True)
class Family:
    """What can be fitted in one operation."""

    ranges: dict[str, Range]
    formula: Formula
    fixed: dict[str, float]


_MEMORY = Range(0.8, 0.05, 1.0)
_CACHE = Range(2.0, 1.0, 8.0)
_POWER = Range(3.0, 1.0, 12.0)


def _smooth_max(a: Column, b: Column, power: float) -> Column:
    larger = np.maximum(a, b)
    return np.asarray(larger * ((a / larger) ** power + (b / larger) ** power) ** (1.0 / power))


def _gemm(x: Columns, c: Constant) -> Column:
    flops, bandwidth, m, n, k = x["flops"], x["bandwidth"], x["m"], x["n"], x["k"]
    batches = x.get("batches", np.ones_like(m))
    compute = 2.0 * batches * m * n * (k + c["prologue"]) / (flops * c["compute"])
    compute = compute + c["wave"] * 2.0 * 128 * 128 * k * x["sm"] / flops
    weights = batches * n * k * x["weight_bytes"]
    read = weights / np.where(weights < c["cache_mb"] * 1e6, c["cache"], 1.0)
    memory = (read + batches * m * (k * x["activation_bytes"] + 2.0 * n)) / (bandwidth * c["memory"])
    memory = memory + c["stream"] * x["sm"] * 128 * k * x["weight_bytes"] / bandwidth
    quantise = np.where(x["activation_bytes"] < 2.0, c["quantise"], 0.0) * 3.0 * m * k / bandwidth
    return _smooth_max(compute, memory, c["power"]) + quantise + c["floor_us"] * 1e-6


def _prefill(x: Columns, c: Constant) -> Column:
    flops, bandwidth = x["flops"], x["bandwidth"]
    b, s, heads, window = x["sequences"], x["length"], x["heads"], x["window"]
    inside = (window > 0) & (window < s)
    pairs = b * np.where(inside, s * window - window * (window - 1) / 2, s * (s + 1) / 2)
    context = x.get("context", np.zeros_like(s))
    pairs = pairs + b * s * context
    longest = np.where(window > 0, np.minimum(s, window + 128), s + context)
    dims = 2.0 * np.hypot(x["dims"] / 2.0, c["softmax_dims"])
    diagonal = np.where(window > 0, c["window_diagonal"], c["diagonal"])
    compute = 2.0 * heads * dims * (pairs + diagonal * 128.0 * b * s) / (flops * c["compute"])
    compute = compute + c["wave"] * 2.0 * 128 * dims * longest * x["sm"] / flops
    memory = b * (s * x["bytes_new"] + context * x["bytes_context"]) / (bandwidth * c["memory"])
    return _smooth_max(compute, memory, c["power"]) + c["floor_us"] * 1e-6


def _decode(x: Columns, c: Constant) -> Column:
    bandwidth = x["bandwidth"]
    b, length = x["sequences"], x["context"]
    total = b * length * x["bytes_context"]
    read = total / np.where(total < x["l2_bytes"], c["cache"], 1.0)
    memory = (read + b * x["bytes_sequence"]) / (bandwidth * c["memory"])
    compute = b * length * x["packed_flops"] / (x["flops"] * c["compute"]) + c["serial_ns"] * 1e-9 * x["dims"] / 256 * length
    overhead = (
        c["floor_us"] + c["split_us"] * np.sqrt(length / 4096) + c["combine_us"] * length / (length + c["combine_tokens"])
    )
    overhead = overhead + c["ramp_us"] * total / (total + c["ramp_mb"] * 1e6)
    return _smooth_max(memory, compute, c["power"]) + overhead * 1e-6 + c["schedule_ns"] * 1e-9 * b * x["schedules"]


def _moe(x: Columns, c: Constant) -> Column:
    flops, bandwidth = x["flops"], x["bandwidth"]
    weights = 3.0 * x["hidden"] * x["width"] / x["tp"]
    even = x["tokens"] * x["per_token"] / x["ep"]
    pairs = even * (x["pairs"] / even) ** c["hot"]
    compute = 2.0 * weights * (pairs + c["padding"] * 64 * x["met"]) / (flops * c["compute"])
    read = x["met"] * weights * x["weight_bytes"]
    memory = read / np.where(read < x["l2_bytes"], c["cache"], 1.0) / (bandwidth * c["memory"])
    moved = (c["activation"] * pairs + c["spread"] * x["tokens"] * x["per_token"]) * (
        4 * x["hidden"] + 2 * weights / x["hidden"]
    )
    return _smooth_max(compute, memory, c["power"]) + moved / bandwidth + c["floor_us"] * 1e-6


def _two_paths(x: Columns, c: Constant, low_bytes: Column, bulk_bytes: Column) -> Column:
    ranks = x["ranks"]
    link = x["link"] * np.where(ranks == 2, c["pair_link"], 1.0)
    low = (c["low_floor_us"] + c["low_peer_us"] * (ranks - 1)) * 1e-6 + low_bytes / (link * c["low_link"])
    bulk = (c["bulk_floor_us"] + c["bulk_peer_us"] * (ranks - 1)) * 1e-6 + bulk_bytes / (link * c["bulk_link"])
    return np.minimum(low, bulk)


def _all_reduce(x: Columns, c: Constant) -> Column:
    return _two_paths(x, c, (x["ranks"] - 1) * x["bytes"], 2 * (x["ranks"] - 1) / x["ranks"] * x["bytes"])


def _bulk(x: Columns, c: Constant) -> Column:
    share = (x["ranks"] - 1) / x["ranks"] * x["bytes"]
    return _two_paths(x, c, share, share)


def _messages(x: Columns, c: Constant) -> Column:
    ranks = x["ranks"]
    others = 2.0 * x["tokens"] * x["hidden"] * (ranks - 1) / ranks
    reached = ranks * (1.0 - (1.0 - 1.0 / ranks) ** x["per_token"])  # different ranks among a token's experts
    return _two_paths(x, c, others * x["per_token"], others * reached)


def _gated_delta(x: Columns, c: Constant) -> Column:
    compute = x["flops_per_token"] / (x["flops"] * c["compute"])
    memory = x["bytes_per_token"] / (x["bandwidth"] * c["memory"])
    return np.maximum(np.maximum(compute, memory), c["serial_ns"] * 1e-9) * x["tokens"] + c["floor_us"] * 1e-6


_GEMM_RANGES = {
    "compute": Range(0.8, 0.05, 1.05),
    "memory": _MEMORY,
    "floor_us": Range(4.0, 0.3, 120.0),
    "wave": Range(0.2, 0.0, 1.5),
    "stream": Range(0.1, 0.0, 5.0),
    "power": _POWER,
    "quantise": Range(1.0, 0.0, 20.0),
    "prologue": Range(100.0, 0.0, 3000.0),
    "cache": _CACHE,
}
_PREFILL_RANGES = {
    "compute": Range(0.6, 0.03, 1.0),
    "memory": Range(0.6, 0.05, 1.0),
    "floor_us": Range(10.0, 0.3, 100.0),
    "wave": Range(0.5, 0.0, 5.0),
    "power": _POWER,
    "diagonal": Range(0.5, 0.0, 4.0),
}
_DECODE_RANGES = {
    "memory": _MEMORY,
    "compute": Range(0.5, 0.02, 1.0),
    "power": _POWER,
    "floor_us": Range(6.0, 0.3, 60.0),
    "split_us": Range(1.0, 0.0, 60.0),
    "combine_us": Range(4.0, 0.0, 60.0),
    "combine_tokens": Range(100.0, 30.0, 3000.0),
    "schedule_ns": Range(10.0, 0.0, 80.0),
    "serial_ns": Range(0.5, 0.0, 200.0),
    "ramp_us": Range(3.0, 0.0, 100.0),
    "ramp_mb": Range(30.0, 1.0, 300.0),
    "cache": _CACHE,
}
_LINK_RANGES = {
    "low_floor_us": Range(3.0, 0.3, 200.0),
    "low_peer_us": Range(0.3, 0.0, 30.0),
    "low_link": Range(0.4, 0.01, 1.0),
    "bulk_floor_us": Range(15.0, 0.3, 400.0),
    "bulk_peer_us": Range(0.3, 0.0, 60.0),
    "bulk_link": Range(0.7, 0.01, 1.0),
    "pair_link": Range(1.2, 0.3, 4.0),
}
FAMILIES: dict[str, Family] = {
    "gemm": Family(_GEMM_RANGES, _gemm, {}),
    "mla_bmm": Family(
        {name: _GEMM_RANGES[name] for name in ("compute", "memory", "floor_us", "power", "cache")},
        _gemm,
        {"wave": 0.0, "stream": 0.0, "quantise": 0.0, "prologue": 0.0},
    ),
    "attention_prefill": Family(
        {**_PREFILL_RANGES, "softmax_dims": Range(80.0, 0.0, 600.0), "window_diagonal": Range(1.0, 0.0, 8.0)}, _prefill, {}
    ),
    "mla_prefill": Family(_PREFILL_RANGES, _prefill, {"softmax_dims": 0.0, "window_diagonal": 0.0}),
    "attention_decode": Family(_DECODE_RANGES, _decode, {}),
    "attention_decode_window": Family(  # measured at one window, so nothing that depends on the context's length shows
        {
            name: _DECODE_RANGES[name]
            for name in ("memory", "compute", "power", "floor_us", "schedule_ns", "ramp_us", "ramp_mb", "cache")
        },
        _decode,
        {"split_us": 0.0, "combine_us": 0.0, "combine_tokens": 100.0, "serial_ns": 0.0},
    ),
    "mla_decode": Family(_DECODE_RANGES, _decode, {"unpacked": 0.0}),
    "moe": Family(
        {
            "compute": Range(0.5, 0.05, 1.0),
            "memory": Range(0.8, 0.1, 1.0),
            "power": _POWER,
            "floor_us": Range(25.0, 1.0, 150.0),
            "padding": Range(0.5, 0.0, 1.0),  # more than a whole block would be no compute, and not scale with its rate
            "activation": Range(1.0, 0.0, 12.0),
            "spread": Range(0.3, 0.0, 12.0),
            "hot": Range(0.8, 0.0, 1.0),
            "cache": _CACHE,
        },
        _moe,
        {},
    ),
    "gated_delta_prefill": Family(
        {"compute": Range(0.2, 0.005, 1.0), "floor_us": Range(15.0, 1.0, 100.0), "serial_ns": Range(30.0, 0.0, 500.0)},
        _gated_delta,
        {"memory": 1.0},
    ),
    "gated_delta_decode": Family(
        {"memory": Range(0.8, 0.05, 2.0), "floor_us": Range(4.0, 0.5, 60.0)},
        _gated_delta,
        {"compute": 1.0, "serial_ns": 0.0},
    ),
    "all_reduce": Family(_LINK_RANGES, _all_reduce, {}),
    **{op: Family(_LINK_RANGES, _bulk, {}) for op in ("all_gather", "reduce_scatter", "all_to_all")},
    # A GPU's tables have one number of ranks, which tells nothing of the cost of one more.
    **{
        op: Family(
            {name: bounds for name, bounds in _LINK_RANGES.items() if "peer" not in name}
            | {"low_floor_us": Range(60.0, 0.3, 100.0), "bulk_floor_us": Range(200.0, 50.0, 400.0)},
            _messages,
            {"low_peer_us": 0.0, "bulk_peer_us": 0.0},
        )
        for op in ("dispatch", "combine")
    },
}


_DELTA = ("key_heads", "value_heads", "key_dim", "value_dim")
_ONES: Fit = {"constants": {"compute": 1.0, "memory": 1.0, "floor_us": 0.0, "serial_ns": 0.0}, "origin": "none"}
_UNIT = Constants("vllm", [("", {"vllm": {f"gated_delta_{phase} bf16": _ONES for phase in ("prefill", "decode")}})], [])


def weight_dtype(name: str) -> WeightDtype:
    """The format under which constants `name` are kept; int8_weight_only is int8 widened in the kernel, mxfp4_fp8 W4A8.

    nvfp4_cutlass: experts in nvfp4 by CUTLASS's kernels, TensorRT-LLM's default; nvfp4: by its own.
    """
    if name == "nvfp4_cutlass":
        return replace(WEIGHT_DTYPES["nvfp4"], expert_kernels="cutlass")
    if name == "mxfp4_fp8":
        return WEIGHT_DTYPES["mxfp4"].with_fp8_activations
    return WEIGHT_DTYPES["int8"].on({"bf16"}) if name == "int8_weight_only" else WEIGHT_DTYPES[name]


def with_gpu(rows: Rows, gpu: GpuSpec) -> Columns:
    """Return the columns of the rows and what the formulas derive from them, from the GPU and from the format."""
    x = dict(rows.columns)
    size = len(rows)
    kv_bytes = KV_DTYPE_BYTES.get(rows.dtype, 2)
    x["bandwidth"], x["sm"] = np.full(size, gpu.bandwidth_bytes_per_s), np.full(size, float(gpu.sm_count))
    x["link"], x["flops"] = np.full(size, gpu.link_bytes_per_s), np.full(size, gpu.flops["bf16"])
    x["l2_bytes"] = np.full(size, l2_mb(gpu.key) * 1e6)
    if rows.op in ("gemm", "mla_bmm", "moe"):
        dtype = weight_dtype(rows.dtype)
        x["flops"] = np.full(size, gpu.flops[dtype.compute])
        x["weight_bytes"], x["activation_bytes"] = np.full(size, dtype.weight_bytes), np.full(size, dtype.activation_bytes)
    elif rows.op == "attention_prefill":
        x["dims"] = 2 * x["head_dim"]
        x["bytes_new"] = 2.0 * (x["heads"] + x["kv_heads"]) * x["dims"]
        x["bytes_context"] = x["kv_heads"] * x["dims"] * kv_bytes
    elif rows.op == "mla_prefill":
        x["dims"], x["window"] = np.full(size, 320.0), np.zeros(size)
        x["bytes_new"] = 4.0 * x["heads"] * 320
        x["bytes_context"] = 2.0 * x["heads"] * 320
    elif rows.op == "mla_decode":
        x["context"], x["dims"], x["schedules"] = x["length"], np.full(size, 1088.0), x["heads"]
        x["bytes_context"] = np.full(size, 576.0 * kv_bytes)
        x["bytes_sequence"] = 2.0 * x["heads"] * 1088
        x["packed_flops"] = 2.0 * np.ceil(x["heads"] / 16) * 16 * 1088
    elif rows.op.startswith("gated_delta"):
        make = attention.recurrent_prefill if rows.op == "gated_delta_prefill" else attention.recurrent_decode
        blocks = [GatedDelta(*map(int, sizes)) for sizes in zip(*(x[name] for name in _DELTA), strict=True)]
        works = [make(gpu, _UNIT, block).work(1.0) for block in blocks]
        x["flops_per_token"] = np.array([work.flops for work in works])
        x["bytes_per_token"] = np.array([work.bytes for work in works])
    elif rows.op.startswith("attention_decode"):
        x["context"] = np.where(x["window"] > 0, np.minimum(x["window"], x["length"]), x["length"])
        x["dims"] = 2 * x["head_dim"]
        x["schedules"] = np.where(x["unpacked"] > 0, x["heads"], x["kv_heads"])
        x["bytes_context"] = x["kv_heads"] * x["dims"] * kv_bytes
        x["bytes_sequence"] = 2.0 * x["heads"] * x["dims"]
        x["packed_flops"] = 2.0 * x["schedules"] * np.ceil(x["heads"] / x["schedules"] / 16) * 16 * x["dims"]
    return x


def kernel_seconds(rows: Rows, gpu: GpuSpec, constants: Constants) -> Column:
    """The same calls through the product's kernels, one by one, as a benchmark that repeats each call would find them."""
    ask = _ASK[rows.op]
    names = list(rows.columns)
    table = np.stack([rows.columns[name] for name in names], axis=1).tolist()
    return np.array([ask(gpu, constants, rows.dtype, dict(zip(names, row, strict=True))) for row in table])


def _ask_gemm(gpu: GpuSpec, c: Constants, dtype: str, r: dict[str, float]) -> float:
    kernel = Gemm(gpu, c, weight_dtype(dtype), int(r["n"]), int(r["k"]))
    return _repeated(kernel, c.of("gemm", dtype)).seconds(r["m"])


def _ask_bmm(gpu: GpuSpec, c: Constants, dtype: str, r: dict[str, float]) -> float:
    kernel = attention.mla_bmm(gpu, c, int(r["batches"]), int(r["n"]), int(r["k"]))
    return _repeated(kernel, c.of("mla_bmm", "bf16")).seconds(r["m"])


def _repeated(kernel: Gemm, c: Constant) -> Gemm:
    """Return the kernel as a benchmark that repeats one call finds it: weights that fit are served from the L2 cache.

    Layers of a model evict each other's weights, so a model never sees that.
    """
    if kernel.weight_bytes < c["cache_mb"] * 1e6:
        kernel.memory_base -= kernel.weight_bytes / (kernel.bandwidth * c["memory"]) * (1.0 - 1.0 / c["cache"])
    return kernel


def _decode_s(kernel: attention.DecodeAttention, c: Constant, sequences: int, context: float) -> float:
    """Return the seconds of a repeated call, whose keys and values are served from the L2 cache if they fit."""
    if sequences * context * kernel.bytes_context < c["cache_mb"] * 1e6:
        kernel.memory_context /= c["cache"]
    return kernel.seconds(sequences, sequences * context, context)


def _chunks(r: dict[str, float], window: int) -> tuple[float, float, float, float]:
    length, context, b = int(r["length"]), int(r.get("context", 0)), r["sequences"]
    longest = min(length, window + 128) if window else length + context
    return b * attention.causal_pairs(length, context, window), b * length, b * context, longest


def _ask_prefill(gpu: GpuSpec, c: Constants, dtype: str, r: dict[str, float]) -> float:
    window, d = int(r["window"]), int(r["head_dim"])
    kernel = attention.prefill(gpu, c, int(r["heads"]), int(r["kv_heads"]), d, d, dtype, window)
    return kernel.seconds(*_chunks(r, window))


def _ask_mla_prefill(gpu: GpuSpec, c: Constants, dtype: str, r: dict[str, float]) -> float:
    return attention.mla_prefill(gpu, c, int(r["heads"]), 192, 128, 576, dtype).seconds(*_chunks(r, 0))


def _ask_decode(gpu: GpuSpec, c: Constants, dtype: str, r: dict[str, float]) -> float:
    window, d = int(r["window"]), int(r["head_dim"])
    kernel = attention.decode(gpu, c, int(r["heads"]), int(r["kv_heads"]), d, d, dtype, window=window)
    constants = c.of("attention_decode_window" if 0 < window <= 256 else "attention_decode", dtype)
    return _decode_s(kernel, constants, int(r["sequences"]), min(window, r["length"]) if window else r["length"])


def _ask_mla_decode(gpu: GpuSpec, c: Constants, dtype: str, r: dict[str, float]) -> float:
    kernel = attention.mla_decode(gpu, c, int(r["heads"]), 512, 64, dtype)
    return _decode_s(kernel, c.of("mla_decode", dtype), int(r["sequences"]), r["length"])


def _ask_gated_delta(op: str) -> Callable[[GpuSpec, Constants, str, dict[str, float]], float]:
    make = attention.recurrent_prefill if op == "prefill" else attention.recurrent_decode

    def ask(gpu: GpuSpec, c: Constants, dtype: str, r: dict[str, float]) -> float:
        return make(gpu, c, GatedDelta(*(int(r[name]) for name in _DELTA))).seconds(r["tokens"])

    return ask


def _ask_moe(gpu: GpuSpec, c: Constants, dtype: str, r: dict[str, float]) -> float:
    sizes = int(r["hidden"]), int(r["width"] / r["tp"]), int(r["experts"]), int(r["per_token"]), int(r["ep"])
    routed = tabled_rank(*sizes[2:], r["skew"])
    kernel, constants = moe.Experts(gpu, c, weight_dtype(dtype), *sizes, routed=routed), c.of("moe", dtype)
    if kernel.routed(r["tokens"])[1] * kernel.bytes_expert < constants["cache_mb"] * 1e6:
        kernel.memory_expert /= constants["cache"]
    return kernel.seconds(r["tokens"])


def _ask_collective(make: Callable[..., object]) -> Callable[[GpuSpec, Constants, str, dict[str, float]], float]:
    def ask(gpu: GpuSpec, c: Constants, dtype: str, r: dict[str, float]) -> float:
        return make(gpu, c, int(r["ranks"]), 1.0).seconds(r["bytes"])  # type: ignore[attr-defined,no-any-return]

    return ask


def _ask_messages(make: Callable[..., object]) -> Callable[[GpuSpec, Constants, str, dict[str, float]], float]:
    def ask(gpu: GpuSpec, c: Constants, dtype: str, r: dict[str, float]) -> float:
        kernel = make(gpu, c, int(r["ranks"]), r["hidden"], int(r["per_token"]))
        return kernel.seconds(r["tokens"])  # type: ignore[attr-defined,no-any-return]

    return ask


_ASK: dict[str, Callable[[GpuSpec, Constants, str, dict[str, float]], float]] = {
    "gemm": _ask_gemm,
    "mla_bmm": _ask_bmm,
    "attention_prefill": _ask_prefill,
    "mla_prefill": _ask_mla_prefill,
    "attention_decode": _ask_decode,
    "attention_decode_window": _ask_decode,
    "mla_decode": _ask_mla_decode,
    "moe": _ask_moe,
    "gated_delta_prefill": _ask_gated_delta("prefill"),
    "gated_delta_decode": _ask_gated_delta("decode"),
    "all_reduce": _ask_collective(collectives.all_reduce),
    "all_gather": _ask_collective(collectives.all_gather),
    "reduce_scatter": _ask_collective(collectives.reduce_scatter),
    "all_to_all": _ask_collective(collectives.all_to_all),
    "dispatch": _ask_messages(collectives.dispatch),
    "combine": _ask_messages(collectives.combine),
}
