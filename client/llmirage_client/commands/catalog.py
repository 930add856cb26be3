"""`llmirage catalog`: lists what is built in. The server's parts are imported only when they are asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from llmirage_server.config import PoolConfig

Row = dict[str, Any]

_GIB = 1024**3
_ONLY_IN_JSON = ("source", "file")  # too wide for a table


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
        "coding-agent": "50 synthetic coding agents, token ids with shared prefixes, tool waits, 0.2 sessions/s",
        "dag-agent-team": "spawns with joins, a delayed join, background and final forks, a pre-session spawn",
        "dag-example": "one root that forks into two branches",
        "dag-rounds": "a request-less orchestrator: three rounds with think times",
        "dag-three-roots": "three roots that fork twice each",
        "mixed-flat-agentic": "single requests and agent sessions in one file, counts only",
        "replay-example": "whole request bodies, sent as they are",
    }.get(name, "")


def clusters() -> list[Row]:
    from llmirage_server.config_file import BUNDLED, BUNDLED_DIRECTORY, make_config

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


def gpus() -> list[Row]:
    from llmirage_server.perf.catalogue import list_gpus

    return [
        {
            "name": gpu.key,
            "aliases": ", ".join(gpu.aliases),
            "memory_gib": round(gpu.memory_bytes / _GIB, 1),
            "tb_per_s": gpu.bandwidth_bytes_per_s / 1e12,
            **{f"{rate}_tflops": gpu.flops[rate] / 1e12 if rate in gpu.flops else None for rate in ("bf16", "fp8", "fp4")},
            "confidence": gpu.confidence,
            "source": gpu.source,
        }
        for gpu in list_gpus()
    ]


def models() -> list[Row]:
    from llmirage_server.perf.catalogue import list_models

    return [
        {
            "name": model.name,
            "kind": f"MoE, {model.experts_per_token} of {model.experts} experts" if model.experts else "dense",
            "layers": model.layers,
            "hidden": model.hidden,
            "context": model.max_model_len,
            "weights": model.native_weights,
            "source": model.source,
        }
        for model in list_models()
    ]


def routers() -> list[Row]:
    from llmirage_server.cluster.router import ROUTERS

    return [{"name": name, "chooses": (router.__doc__ or "").strip().splitlines()[0]} for name, router in ROUTERS.items()]


def formats() -> list[Row]:
    from llmirage_client.workload.registry import FORMATS

    return [
        {"name": f.name, "aliases": ", ".join(f.aliases), "holds": f.summary, "needs": f.needs} for f in FORMATS.values()
    ]


LISTS: dict[str, Callable[[], list[Row]]] = {
    "workloads": workloads,
    "clusters": clusters,
    "gpus": gpus,
    "models": models,
    "routers": routers,
    "formats": formats,
}


@click.command()
@click.argument("what", type=click.Choice(list(LISTS)))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object an entry, with the source of every figure.")
def catalog(what: str, as_json: bool) -> None:
    """List what is built in: workloads, cluster files, GPUs, models, routers or workload formats."""
    rows = LISTS[what]()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    _print_table(rows)


def _print_table(rows: list[Row]) -> None:
    rows = [{key: value for key, value in row.items() if key not in _ONLY_IN_JSON} for row in rows]
    import shutil
    import sys

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for key in rows[0]:
        numeric = all(isinstance(row[key], int | float | None) for row in rows)
        table.add_column(key.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*("-" if value is None or value == "" else _text(value) for value in row.values()))
    width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 200
    Console(width=width, highlight=False).print(table)


def _text(value: Any) -> str:
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)
