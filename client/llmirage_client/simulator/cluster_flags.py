"""The settings of `llmirage serve` on the command line of a simulation, by the same names."""

from __future__ import annotations

import click

from llmirage_server.config import ClusterConfig
from llmirage_server.config.cluster import BLOCKS
from llmirage_shared.command_line import options
from llmirage_shared.settings import setting

__all__ = ["BLOCKS", "NOT_HERE", "SHAPE_SETTINGS", "ClusterFile", "cluster_options"]

# What a server shows and a simulation does not have, or has under another name.
NOT_HERE = frozenset(
    (
        *(
            "speed",
            "accept_models",
            "tokenizer",
            "unknown_fields",
            "lenient",
            "state",
            "seed",
            "api_key",
            "rate_limit",
            "token_limit",
        ),
        *("faults", "allow_fault_header"),
        *("replay", "replay_timing", "replay_match", "replay_ignore", "on_miss", "upstream", "upstream_key"),
    )
)
# What `llmirage size` looks for itself.
SHAPE_SETTINGS = (
    *("gpu", "engine", "weights", "instances"),
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "expert_parallel_size"),
)


class ClusterFile:
    """The settings that name a cluster file and settings of it."""

    cluster_file: str | None = setting(
        None,
        "Cluster",
        "YAML file with settings and pools, or bundled:NAME; flags override it (docs/cluster-files.md).",
        spelled="cluster",
        metavar="FILE",
        usual=True,
    )


def cluster_options(*left_out: str) -> list[click.Parameter]:
    """--cluster FILE and a flag for every setting that matters to a simulation, but for some."""
    return [*options(ClusterFile), *options(ClusterConfig, but=(*NOT_HERE, *left_out), checked=False)]
