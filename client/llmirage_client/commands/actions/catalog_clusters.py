"""What the server has for clusters: files of whole ones, routers."""

from __future__ import annotations

from llmirage_client.commands.actions.table import Row
from llmirage_server.cluster.routers import ROUTERS
from llmirage_server.config import PoolConfig
from llmirage_server.config.file import BUNDLED, BUNDLED_DIRECTORY, make_config


def clusters() -> list[Row]:
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
    return [{"name": name, "chooses": (router.__doc__ or "").strip().splitlines()[0]} for name, router in ROUTERS.items()]
