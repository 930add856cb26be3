"""What the server knows: GPUs, models and engines of the performance model, bundled clusters, routers."""

from __future__ import annotations

from collections.abc import Mapping

from llmirage_client.report.screen import Row
from llmirage_server.cluster.routers import ROUTERS
from llmirage_server.config import PoolConfig
from llmirage_server.config.file import BUNDLED, BUNDLED_DIRECTORY, make_config
from llmirage_server.perf.catalogue.layers import GatedDelta, Gqa, Mla
from llmirage_server.perf.catalogue.lookup import common_gpu_sources, list_gpus, list_models
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.engines.lookup import list_engines

_GIB = 1024**3


def gpus() -> list[Row]:
    """Return the rows of the GPUs."""
    return [
        {
            "name": gpu.key,
            "also": list(gpu.aliases),
            "memory_gib": round(gpu.memory_bytes / _GIB, 1),
            "tb_per_s": _tera(gpu.bandwidth_bytes_per_s),
            **{f"{rate}_tflops": _tera(gpu.flops.get(rate)) for rate in ("bf16", "fp8", "fp4", "int8")},
            "link": f"{gpu.link_gpus} x {gpu.link}",
            "link_gb_per_s": round(gpu.link_bytes_per_s / 1e9, 3),
            "node_gb_per_s": round(gpu.node_link_bytes_per_s / 1e9, 3),
            "node_latency_us": round(gpu.node_link_latency_s * 1e6, 3),
            "sm": gpu.sm_count,
            "tdp_w": gpu.tdp_w,
            "usd_per_h": " - ".join(f"{price:g}" for price in dict.fromkeys(gpu.price_usd_per_h or ())),
            "kernels": "measured" if gpu.constants_of == gpu.key else f"of {gpu.constants_of or 'its kind'}",
            "confidence": gpu.confidence,
            "unverified": list(gpu.unverified),
            "source": gpu.source,
            **common_gpu_sources(),
        }
        for gpu in list_gpus()
    ]


def _tera(value: float | None) -> float | None:
    return None if value is None else round(value / 1e12, 4)


def models() -> list[Row]:
    """Return the rows of the models."""
    rows = []
    for model in list_models():
        moe = model.moe
        rows.append(
            {
                "name": model.name,
                "parameters_b": round(model.parameters / 1e9, 1),
                "active_b": round(model.active_parameters / 1e9, 1),
                "layers": model.layers,
                "attention": _attention(model),
                "experts": f"{moe.per_token} of {moe.experts}{' + shared' if moe.shared_width else ''}" if moe else None,
                "kv_kib_per_token": round(model.kv_bytes_per_token(2) / 1024, 1),
                "window_mib_per_sequence": round(model.window_bytes_per_sequence(2) / 1024**2, 1),
                "state_mib_per_sequence": round(model.state_bytes_per_sequence() / 1024**2, 1),
                "context": model.max_model_len,
                "weights": model.native_weights,
                "mtp_layers": model.mtp_layers,
                "kernels": "measured" if model.confidence.startswith("fitted") else "transferred",
                "confidence": model.confidence,
                "aliases": list(model.aliases),
                "notes": model.notes,
                "source": model.source,
            }
        )
    return rows


def _attention(model: ModelSpec) -> str:
    """Return the kinds of attention and their numbers of layers, such as "12 GQA, 12 GQA of 128 tokens"."""
    counts: dict[str, int] = {}
    for group in model.groups:
        block = group.attention
        if block is None:
            continue
        if isinstance(block, Gqa | Mla):
            kind = "MLA" if isinstance(block, Mla) else "MHA" if block.heads == block.kv_heads else "GQA"
            seen = block.window if isinstance(block, Gqa) else 0
            if block.index:
                kind, seen = f"sparse {kind}", block.index.top_k
            kind += f" of {seen:,} tokens" if seen else ""
        else:
            kind = "gated delta" if isinstance(block, GatedDelta) else "Mamba-2"
        counts[kind] = counts.get(kind, 0) + group.count
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def engines() -> list[Row]:
    """Return the rows of the engines."""
    return [
        {
            "name": engine.name,
            "title": engine.title,
            "kernels_of_version": engine.version,
            "scheduler": engine.scheduler,
            "block_size": engine.block_size,
            "max_num_seqs": _by_memory(engine.max_num_seqs),
            "max_num_batched_tokens": _by_memory(engine.max_num_batched_tokens),
            "gpu_memory_utilization": engine.gpu_memory_utilization,
            "kv_pool": engine.kv_pool,
            "host_ms_per_step": engine.host_step_ms,
            "source": engine.source,
        }
        for engine in list_engines()
    ]


def _by_memory(tiers: Mapping[float, int]) -> str:
    """Such as "256, from 70 GiB 1,024": the default on a GPU of little memory, and those of larger ones."""
    return ", ".join(f"from {gib:g} GiB {value:,}" if gib else f"{value:,}" for gib, value in sorted(tiers.items()))


def clusters() -> list[Row]:
    """Return the rows of the bundled cluster files."""
    rows = []
    for path in sorted(BUNDLED_DIRECTORY.glob("*.yaml")):
        config = make_config(str(path), {})
        pools = config.all_pools
        rows.append(
            {
                "name": f"{BUNDLED}{path.stem}",
                "models": ", ".join(dict.fromkeys(pool.model for pool in pools)),
                "pools": ", ".join(_pool(pool) for pool in pools),
                "router": config.router,
                "file": str(path),
            }
        )
    return rows


def _pool(pool: PoolConfig) -> str:
    gpus = pool.tensor_parallel_size * pool.pipeline_parallel_size * pool.data_parallel_size
    role = "" if pool.role == "both" else f"{pool.role} "
    return f"{role}{pool.instances} x {gpus} {pool.gpu}"


def routers() -> list[Row]:
    """Return the rows of the routers."""
    return [{"name": name, "chooses": (router.__doc__ or "").strip().splitlines()[0]} for name, router in ROUTERS.items()]
