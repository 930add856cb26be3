"""Op tables: reads the CSV files, leaves out what is an artefact, and says which rows an engine would really run.

Columns are those of the reduced tables of aiconfigurator-core: one row per measured call, `latency_us`, `system` (GPU),
`backend` (engine), `version`, `kernel_source`, and the sizes of the call. Files may be gzipped; a missing one is skipped.

Left out, and why:
- fp8_block GEMMs of vLLM: timed without CUDA graphs (a floor of about 64 us on Hopper, 120 us and more on Blackwell);
- nvfp4 GEMMs of TensorRT-LLM: 1.6 to 1.8 times what the other engines take on the same GPU, launch for launch, where its
  servers are as fast as theirs;
- experts in nvfp4 by CUTLASS on B200: up to 1.7 times what the same kernel takes on GB200, whose chip is the same and whose
  rows stand for both (other kernels: 1.03 to 1.06);
- MLA decode of SGLang with an fp8 cache on Hopper: 8 % of the memory bandwidth, slower than with a bf16 cache;
- attention with more than 32 query heads per KV head: kernels fall back to one pass per head, and no model has it;
- `eager` all-reduce: engines capture theirs in CUDA graphs;
- older versions of a collective where there are several;
- balanced routing of experts: real routers are skewed;
- linear attention of more than one prompt at a time: an engine's chunks are mostly of one.
Where a table has several kernels for one shape, the fastest counts (engines tune themselves); where SGLang has several
attention or expert kernels for different shapes, the one of most rows, which is its default.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmirage_server.perf.kernels.moe import BusiestRank, busiest_rank, power_law

Column = NDArray[np.float64]
Columns = dict[str, Column]
Raw = dict[str, NDArray[np.str_]]

ENGINES = ("vllm", "sglang", "trtllm")

# L2 caches, MiB, from NVIDIA's data sheets and architecture papers: what a repeated call finds there. The RTX 4090 was
# measured within whole layers, whose kernels evict each other's data.
_L2_MIB = {"a100_sxm": 40, "h100_sxm": 50, "h200_sxm": 50, "b200_sxm": 126, "gb200": 126, "b300_sxm": 126, "gb300": 126}
_L2_MIB |= {"l40s": 96, "rtx_pro_6000_server": 128}


def l2_mb(gpu: str) -> float:
    """The L2 cache in megabytes, a hair above so that what fills it exactly counts as held; 0 where unknown."""
    mib = _L2_MIB.get(gpu, 0)
    return round(mib * 1024**2 / 1e6 + 0.1, 1) if mib else 0.0


_GEMM_DTYPES = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "sq": "int8",
    "int8_wo": "int8_weight_only",
    "int4_wo": "int4",
    "nvfp4": "nvfp4",
}
_FEWEST = 8  # rows that make a table
_MOE_DTYPES = {**_GEMM_DTYPES, "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4_fp8"}


@dataclass
class Rows:
    """Measured calls of one operation in one number format, on one GPU under one engine."""

    gpu: str
    engine: str
    op: str
    dtype: str
    columns: Columns  # sizes of the call
    seconds: Column
    shapes: NDArray[np.int64]  # which shape a row belongs to, for holding shapes back
    versions: str

    def __len__(self) -> int:
        return len(self.seconds)

    def subset(self, mask: NDArray[np.bool_] | NDArray[np.int64]) -> Rows:
        """Return some of the rows."""
        columns = {name: values[mask] for name, values in self.columns.items()}
        return Rows(
            self.gpu, self.engine, self.op, self.dtype, columns, self.seconds[mask], self.shapes[mask], self.versions
        )


def read_rows(folder: Path) -> list[Rows]:
    """Read every table of the folder into rows per GPU, engine, operation and format."""
    found: list[Rows] = []
    for reader in (_gemm, _prefill, _chunks, _decode, _mla, _mla_bmm, _moe, _all_reduce, _nccl, _all_to_all, _gated_delta):
        found += reader(folder)
    return [rows for rows in found if len(rows) >= _FEWEST]


def _read(folder: Path, name: str) -> Raw | None:
    for path in (folder / f"{name}.csv.gz", folder / f"{name}.csv"):
        if path.exists():
            with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
                table = list(csv.reader(file))
            header, body = table[0], np.array(table[1:])
            return {column: body[:, i] for i, column in enumerate(header)}
    return None


def _groups(raw: Raw, *names: str) -> Iterator[tuple[tuple[str, ...], Raw]]:
    """Split a table by the values of some columns."""
    keys = np.array(["\0".join(values) for values in zip(*(raw[name] for name in names), strict=True)])
    for key in sorted(set(keys.tolist())):
        mask = keys == key
        yield tuple(key.split("\0")), {name: values[mask] for name, values in raw.items()}


def _where(raw: Raw, mask: NDArray[np.bool_]) -> Raw:
    return {name: values[mask] for name, values in raw.items()}


def _number(raw: Raw, name: str) -> Column:
    return raw[name].astype(np.float64)


def _rows(raw: Raw, gpu: str, engine: str, op: str, dtype: str, columns: Columns, shape: list[str]) -> Rows:
    keys = ["|".join(f"{columns[name][i]:g}" for name in shape) for i in range(len(raw["latency_us"]))]
    index = {key: i for i, key in enumerate(sorted(set(keys)))}
    versions = "/".join(sorted(set(raw["version"].tolist()), key=_version)) if "version" in raw else ""
    shapes = np.array([index[key] for key in keys], dtype=np.int64)
    return Rows(gpu, engine, op, dtype, columns, _number(raw, "latency_us") * 1e-6, shapes, versions)


def _version(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)]


def _main_source(raw: Raw) -> Raw:
    """The rows of the kernel with most of them."""
    name, _ = Counter(raw["kernel_source"].tolist()).most_common(1)[0]
    return _where(raw, raw["kernel_source"] == name)


def _fastest(raw: Raw, names: list[str]) -> Raw:
    """One row for each set of sizes: the fastest."""
    order = np.argsort(_number(raw, "latency_us"))
    best: dict[tuple[str, ...], int] = {}
    for i in order.tolist():
        best.setdefault(tuple(raw[name][i] for name in names), i)
    return _where(raw, np.array(sorted(best.values())))


_UNTUNED = (("vllm", "fp8_block"), ("trtllm", "nvfp4"))


def _gemm(folder: Path) -> Iterator[Rows]:
    if (raw := _read(folder, "gemm")) is None:
        return
    for (gpu, engine, measured), part in _groups(raw, "system", "backend", "gemm_dtype"):
        if (dtype := _GEMM_DTYPES.get(measured)) is None or (engine, dtype) in _UNTUNED:
            continue
        part = _fastest(part, ["m", "n", "k"])
        columns = {name: _number(part, name) for name in ("m", "n", "k")}
        yield _rows(part, gpu, engine, "gemm", dtype, columns, ["n", "k"])


def _attention_columns(part: Raw, length: str) -> Columns:
    names = {"batch_size": "sequences", length: "length", "num_heads": "heads", "num_key_value_heads": "kv_heads"}
    names |= {"head_dim": "head_dim", "window_size": "window"}
    return {new: _number(part, old) for old, new in names.items()}


_ATTENTION_SHAPE = ["heads", "kv_heads", "head_dim", "window"]


def _prefill(folder: Path) -> Iterator[Rows]:
    if (raw := _read(folder, "context_attention")) is None:
        return
    for (gpu, engine), part in _groups(raw, "system", "backend"):
        formats = {(a, k): rows for (a, k), rows in _groups(part, "attn_dtype", "kv_cache_dtype")}
        # with an fp8 cache TensorRT-LLM and SGLang run attention itself in fp8, vLLM widens keys and values
        eight_bit = ("bfloat16", "fp8") if engine == "vllm" else ("fp8", "fp8")
        if engine == "sglang" and gpu in ("l40s", "rtx_pro_6000_server"):
            eight_bit = ("bfloat16", "fp8")  # FlashInfer
        for dtype, measured in (("bf16", ("bfloat16", "bfloat16")), ("fp8", eight_bit)):
            if (rows := formats.get(measured)) is None:
                continue
            rows = _main_source(rows) if engine == "sglang" else rows
            columns = _attention_columns(rows, "isl")
            yield _rows(rows, gpu, engine, "attention_prefill", dtype, columns, _ATTENTION_SHAPE)


def _chunks(folder: Path) -> Iterator[Rows]:
    """Chunks with context before them, of the grid of mixed launches: the times of the chunk alone."""
    if (raw := _read(folder, "mixed_attention")) is None:
        return
    raw = _where(raw, raw["prefill_alone_us"] != "")
    raw["latency_us"] = raw["prefill_alone_us"]
    raw = _fastest(raw, ["system", "backend", "prefill_chunk", "prefill_context"])
    for (gpu, engine), part in _groups(raw, "system", "backend"):
        names = {"prefill_chunk": "length", "prefill_context": "context", "num_heads": "heads"}
        names |= {"num_key_value_heads": "kv_heads", "head_dim": "head_dim"}
        columns = {new: _number(part, old) for old, new in names.items()}
        columns |= {"sequences": np.ones(len(part["latency_us"])), "window": np.zeros(len(part["latency_us"]))}
        yield _rows(part, gpu, engine, "attention_prefill", "bf16", columns, _ATTENTION_SHAPE)


def _decode(folder: Path) -> Iterator[Rows]:
    if (raw := _read(folder, "generation_attention")) is None:
        return
    raw = _where(raw, _number(raw, "num_heads") <= 32 * _number(raw, "num_key_value_heads"))
    for (gpu, engine, cache), part in _groups(raw, "system", "backend", "kv_cache_dtype"):
        part = _main_source(part) if engine == "sglang" else part
        dtype = {"bfloat16": "bf16", "fp8": "fp8"}[cache]
        windowed = _number(part, "window_size") > 0
        for op, mask in (("attention_decode", ~windowed), ("attention_decode_window", windowed)):
            rows = _where(part, mask)
            columns = _attention_columns(rows, "kv_len")
            flash_2 = np.char.startswith(rows["kernel_source"], "vllm_flash_attn")
            flash_2 &= ~np.char.endswith(rows["kernel_source"], "fa3")
            columns["unpacked"] = (flash_2 & mask[mask] & (op == "attention_decode_window")).astype(np.float64)
            if len(rows["latency_us"]):
                yield _rows(rows, gpu, engine, op, dtype, columns, _ATTENTION_SHAPE)


def _mla(folder: Path) -> Iterator[Rows]:
    if (raw := _read(folder, "mla")) is None:
        return
    raw = _where(raw, raw["mla_dtype"] == "bfloat16")
    for (gpu, engine, phase, cache), part in _groups(raw, "system", "backend", "phase", "kv_cache_dtype"):
        if (engine, phase, cache) == ("sglang", "generation", "fp8") and gpu in ("h100_sxm", "h200_sxm"):
            continue
        names = {"num_heads": "heads", "batch_size": "sequences", "seq_len": "length"}
        columns = {new: _number(part, old) for old, new in names.items()}
        op = "mla_prefill" if phase == "context" else "mla_decode"
        yield _rows(part, gpu, engine, op, {"bfloat16": "bf16", "fp8": "fp8"}[cache], columns, ["heads", "length"])


def _mla_bmm(folder: Path) -> Iterator[Rows]:
    """DeepSeek's sizes: queries enter the latent space (128 -> 512 per head), outputs leave it (512 -> 128)."""
    if (raw := _read(folder, "mla_bmm")) is None:
        return
    raw = _where(raw, raw["bmm_dtype"] == "bfloat16")
    for (gpu, engine), part in _groups(raw, "system", "backend"):
        enters = part["op_name"] == "mla_gen_pre"
        columns = {
            "m": _number(part, "num_tokens"),
            "n": np.where(enters, 512.0, 128.0),
            "k": np.where(enters, 128.0, 512.0),
            "batches": _number(part, "num_heads"),
        }
        yield _rows(part, gpu, engine, "mla_bmm", "bf16", columns, ["batches", "n"])


_MOE_SIZES = {
    "num_tokens": "tokens",
    "hidden_size": "hidden",
    "inter_size": "width",
    "topk": "per_token",
    "num_experts": "experts",
    "moe_tp_size": "tp",
    "moe_ep_size": "ep",
}


def _moe(folder: Path) -> Iterator[Rows]:
    if (raw := _read(folder, "moe")) is None:
        return
    raw = _where(raw, np.char.startswith(raw["distribution"], "power_law"))
    for (gpu, engine, measured), part in _groups(raw, "system", "backend", "moe_dtype"):
        if (dtype := _MOE_DTYPES.get(measured)) is None:
            continue
        if (engine, dtype) == ("trtllm", "nvfp4"):  # its default, beside what it reaches with its own kernels
            cutlass = _where(part, np.char.endswith(part["kernel_source"], "cutlass"))
            for of in {"b200_sxm": (), "gb200": ("b200_sxm", "gb200")}.get(gpu, (gpu,)):
                yield _moe_rows(cutlass, of, engine, "nvfp4_cutlass")
        part = _main_source(part) if engine == "sglang" else _fastest(part, [*_MOE_SIZES, "distribution"])
        yield _moe_rows(part, gpu, engine, dtype)


def _moe_rows(part: Raw, gpu: str, engine: str, dtype: str) -> Rows:
    columns = {new: _number(part, old) for old, new in _MOE_SIZES.items()}
    columns["skew"] = np.array([float(text.removeprefix("power_law_")) for text in part["distribution"].tolist()])
    columns["pairs"], columns["met"] = _routed(columns)
    shape = ["hidden", "width", "per_token", "experts", "tp", "ep"]
    return _rows(part, gpu, engine, "moe", dtype, columns, shape)


def _routed(columns: Columns) -> tuple[Column, Column]:
    pairs, met = np.empty(len(columns["tokens"])), np.empty(len(columns["tokens"]))
    sizes = zip(*(columns[name] for name in ("tokens", "experts", "per_token", "ep", "skew")), strict=True)
    for i, (tokens, experts, per_token, ep, skew) in enumerate(sizes):
        routed = tabled_rank(int(experts), int(per_token), int(ep), float(skew))
        pairs[i] = np.interp(tokens, routed.tokens, routed.pairs)
        met[i] = np.interp(tokens, routed.tokens, routed.experts)
    return pairs, met


_DRAWS, _SEED = 16, 20_261_121  # as the product's


@lru_cache(maxsize=128)
def tabled_rank(experts: int, per_token: int, ep: int, skew: float) -> BusiestRank:
    """Return the busiest rank as the collector of the op tables deals out its tokens."""
    known = busiest_rank(1, 1, 1).tokens
    if skew <= 0 or experts == 1:
        local = experts / ep
        share = per_token / ep
        even = tuple(share * t for t in known)
        return BusiestRank(known, even, tuple(min(local, n) for n in even))
    rng = np.random.default_rng(_SEED)
    uniform = rng.random((_DRAWS, experts))
    ties = rng.random((_DRAWS, experts)) * 0.5  # experts with equal pairs: any of them may get one more
    pairs: list[float] = []
    met: list[float] = []
    for tokens in map(int, known):
        low, high = (1.0, 0.8 * tokens) if tokens * per_token > experts else (0.01, 2.0)
        popularity = power_law(uniform, skew, low, high)
        counts = np.round(popularity / popularity.sum(axis=1, keepdims=True) * (tokens * per_token))
        missing = tokens * per_token - counts.sum(axis=1).astype(int)
        rank_of = np.argsort(np.argsort(-counts - ties, axis=1), axis=1)
        extra = np.maximum(missing, 0)[:, None]
        counts += extra // experts + (rank_of < extra % experts)
        counts += np.where(rank_of == 0, np.minimum(missing, 0)[:, None], 0)
        groups = np.maximum(counts, 0.0).reshape(_DRAWS, ep, -1)
        loads = groups.sum(axis=2)
        busiest = loads.argmax(axis=1)
        draws = np.arange(_DRAWS)
        pairs.append(float(loads[draws, busiest].mean()))
        met.append(float(np.minimum(groups[draws, busiest], 1.0).sum(axis=1).mean()))
    rising = np.maximum.accumulate
    return BusiestRank(known, tuple(rising(pairs).tolist()), tuple(rising(met).tolist()))


def _latest(raw: Raw, column: str) -> Raw:
    newest = max(set(raw[column].tolist()), key=_version)
    return _where(raw, raw[column] == newest)


def _all_reduce(folder: Path) -> Iterator[Rows]:
    if (raw := _read(folder, "custom_allreduce")) is None:
        return
    eager = np.char.endswith(raw["kernel_source"], "eager")
    raw = _where(raw, ~eager & (_number(raw, "message_size") >= 1024))
    for (gpu, engine), part in _groups(raw, "system", "backend"):
        part = _latest(part, "version")
        columns = {"ranks": _number(part, "num_gpus"), "bytes": _number(part, "message_size") * 2.0}
        yield _rows(part, gpu, engine, "all_reduce", "bf16", columns, ["bytes"])


def _nccl(folder: Path) -> Iterator[Rows]:
    if (raw := _read(folder, "nccl")) is None:
        return
    raw = _where(raw, raw["nccl_dtype"] == "half")
    names = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}
    for (gpu, measured), part in _groups(raw, "system", "op_name"):
        if (op := names.get(measured)) is None:
            continue
        part = _latest(part, "nccl_version")
        columns = {"ranks": _number(part, "num_gpus"), "bytes": _number(part, "message_size") * 2.0}
        rows = _rows(part, gpu, "pooled", op, "bf16", columns, ["bytes"])
        rows.versions = f"NCCL {part['nccl_version'][0]}"
        yield rows


def _all_to_all(folder: Path) -> Iterator[Rows]:
    """DeepEP: the low-latency kernels while they take the tokens (256), the others beyond."""
    if (raw := _read(folder, "moe_a2a")) is None:
        return
    low = (raw["comm_backend"] == "deepep_ll") & (_number(raw, "num_tokens") <= 256)
    high = (raw["comm_backend"] == "deepep_ht") & (_number(raw, "num_tokens") > 256)
    raw = _where(raw, low | high)
    for (gpu, engine, phase), part in _groups(raw, "system", "backend", "phase"):
        names = {"ep_size": "ranks", "topk": "per_token", "num_tokens": "tokens", "hidden_size": "hidden"}
        columns = {new: _number(part, old) for old, new in names.items()}
        yield _rows(part, gpu, engine, phase, "bf16", columns, ["tokens", "hidden", "per_token"])


def _gated_delta(folder: Path) -> Iterator[Rows]:
    if (raw := _read(folder, "gdn")) is None:
        return
    raw = _where(raw, np.char.find(raw["kernel_source"], "delta_rule") >= 0)
    for (gpu, engine, phase), part in _groups(raw, "system", "backend", "phase"):
        if phase == "context":
            part = _where(part, _number(part, "batch_size") == 1)
        else:  # states that a repeated call finds in the L2 cache say nothing but the floor
            sizes = ("num_v_heads", "head_k_dim", "head_v_dim", "batch_size")
            state_mb = np.prod([_number(part, name) for name in sizes], axis=0) * 4 / 1e6
            part = _where(part, (state_mb > l2_mb(gpu)) | (state_mb < 4))
        names = {"num_k_heads": "key_heads", "head_k_dim": "key_dim"}
        names |= {"num_v_heads": "value_heads", "head_v_dim": "value_dim"}
        columns = {new: _number(part, old) for old, new in names.items()}
        columns["tokens"] = _number(part, "num_tokens" if phase == "context" else "batch_size")
        op = "gated_delta_prefill" if phase == "context" else "gated_delta_decode"
        yield _rows(part, gpu, engine, op, "bf16", columns, ["key_heads", "value_heads"])
