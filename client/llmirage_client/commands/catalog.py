"""`llmirage catalog`: lists what is built in. The server's parts are imported only when they are asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from llmirage_client.commands.table import Row, print_table

if TYPE_CHECKING:
    from llmirage_server.config import PoolConfig
    from llmirage_server.perf.catalogue.models import ModelSpec

_GIB = 1024**3
# too wide for a table, or of interest to few
_ONLY_IN_JSON = frozenset(
    {
        *(
            "source",
            "price_source",
            "node_link_source",
            "file",
            "confidence",
            "unverified",
            "notes",
            "aliases",
            "sm",
            "tdp_w",
        ),
        *("node_gb_per_s", "node_latency_us", "mtp_layers", "window_mib_per_sequence", "state_mib_per_sequence"),
        *("kv_pool", "host_ms_per_step"),
        *("fetch", "options_in_full"),
    }
)


def workloads() -> list[Row]:
    from llmirage_client.workload.registry import bundled, load
    from llmirage_client.workload.summary import summarise

    rows = []
    for name, path in bundled().items():
        workload = load(str(path))
        summary = summarise(workload, with_reuse=False)
        rows.append(
            {
                "name": f"bundled:{name}",
                "format": workload.format,
                "sessions": summary.sessions,
                "roots": summary.roots,
                "requests": summary.requests,
                "about": _about(name),
            }
        )
    return rows


def _about(name: str) -> str:
    return {
        "chat": "30 synthetic chats: short messages, reading times, 0.5 conversations/s",
        "coding-agent-team": "12 synthetic coding agents with sub-agents and branches: forks, spawns, joins, tool waits",
        "rag": "30 synthetic conversations over shared documents",
        "coding-agent": "50 synthetic coding agents, token ids with shared prefixes, tool waits, 0.2 sessions/s",
        "dag-agent-team": "spawns with joins, a delayed join, background and final forks, a pre-session spawn",
        "dag-example": "one root that forks into two branches",
        "dag-rounds": "a request-less orchestrator: three rounds with think times",
        "dag-three-roots": "three roots that fork twice each",
        "mixed-flat-agentic": "single requests and agent sessions in one file, counts only",
        "replay-example": "whole request bodies, sent as they are",
    }.get(name, "")


def clusters() -> list[Row]:
    from llmirage_server.config.file import BUNDLED, BUNDLED_DIRECTORY, make_config

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


def studies() -> list[Row]:
    from llmirage_client.sweep.file import BUNDLED, BUNDLED_DIRECTORY, read_study

    rows = []
    for path in sorted(BUNDLED_DIRECTORY.glob("*.yaml")):
        study = read_study(str(path))
        rows.append(
            {
                "name": f"{BUNDLED}{path.stem}",
                "about": study.name,
                "points": len(study.points),
                "varied": study.varied,
                "file": str(path),
            }
        )
    return rows


def gpus() -> list[Row]:
    from llmirage_server.perf.catalogue.lookup import common_gpu_sources, list_gpus

    return [
        {
            "name": gpu.key,
            "also": list(gpu.aliases),
            "memory_gib": round(gpu.memory_bytes / _GIB, 1),
            "tb_per_s": _tera(gpu.bandwidth_bytes_per_s),
            **{f"{rate}_tflops": _tera(gpu.flops.get(rate)) for rate in ("bf16", "fp8", "fp4", "int8")},
            "link": f"{gpu.link_gpus} x {gpu.link_kind}",
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
    from llmirage_server.perf.catalogue.layers import Moe
    from llmirage_server.perf.catalogue.lookup import list_models

    rows = []
    for model in list_models():
        moe = next((group.mlp for group in model.groups if isinstance(group.mlp, Moe)), None)
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
    """What stands for attention in how many layers, such as "12 GQA, 12 GQA of 128 tokens"."""
    from llmirage_server.perf.catalogue.layers import GatedDelta, Gqa, Mla

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
    from llmirage_server.perf.catalogue.engines import list_engines

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
            "kv_pool": engine.kv_pool.replace("_", " "),
            "host_ms_per_step": engine.host_step_ms,
            "source": engine.source.strip(),
        }
        for engine in list_engines()
    ]


def _by_memory(tiers: Mapping[float, int]) -> str:
    """Such as "256, from 70 GiB 1,024": the default on a GPU of little memory, and those of larger ones."""
    return ", ".join(f"from {gib:g} GiB {value:,}" if gib else f"{value:,}" for gib, value in sorted(tiers.items()))


def routers() -> list[Row]:
    from llmirage_server.cluster.routers import ROUTERS

    return [{"name": name, "chooses": (router.__doc__ or "").strip().splitlines()[0]} for name, router in ROUTERS.items()]


def formats() -> list[Row]:
    from llmirage_client.workload.registry import FORMATS

    return [
        {
            "name": f.name,
            "also": list(f.aliases),
            "holds": f.summary,
            "needs": f.needs,
            "fetch": f.fetch,
            "options": [option.name for option in f.options],
            "options_in_full": [asdict(option) for option in f.options],
        }
        for f in FORMATS.values()
    ]


LISTS: dict[str, Callable[[], list[Row]]] = {
    "workloads": workloads,
    "clusters": clusters,
    "studies": studies,
    "gpus": gpus,
    "models": models,
    "engines": engines,
    "routers": routers,
    "formats": formats,
}


@click.command()
@click.argument("what", type=click.Choice(list(LISTS)))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object an entry, with the source of every figure.")
def catalog(what: str, as_json: bool) -> None:
    """List what is built in: workloads, cluster files, studies, GPUs, models, engines, routers or workload formats."""
    rows = LISTS[what]()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    print_table(rows, _ONLY_IN_JSON)
