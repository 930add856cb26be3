"""Cluster settings as users of the client write them: lines of a study file, flags. The rules are those of cluster files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmirage_client.simulator.cluster_flags import NOT_HERE
from llmirage_server.config import ALIASES, SETTINGS, ClusterConfig, did_you_mean
from llmirage_server.config.file import cluster_path, combined, is_setting, make_config, read_cluster_file, read_settings

__all__ = [
    "cluster_config", "cluster_path", "combined", "did_you_mean", "is_setting", "read_cluster_file", "read_settings",
    "setting_names",
]  # fmt: skip


def setting_names() -> list[str]:
    """Every name that a setting goes by."""
    return [*SETTINGS, *ALIASES, "pools", "events", "kv_transfer", "kv_offload"]


def cluster_config(settings: Mapping[str, Any], seed: int) -> ClusterConfig:
    """The cluster that was asked for; `seed` is that of the simulation. Raises ConfigError with all problems."""
    flags = {name: settings.get(name) for name in SETTINGS if name not in NOT_HERE}
    flags["tokenizer"] = settings.get("tokenizer")
    return make_config(settings["cluster_file"], flags | {"seed": seed})
