"""Cluster settings as studies write them: lines of a study file, read by the rules of cluster files."""

from __future__ import annotations

from llmirage_server.config import ALIASES, SETTINGS, did_you_mean
from llmirage_server.config.file import cluster_path, combined, is_setting, read_cluster_file, read_settings

__all__ = [
    "cluster_path",
    "combined",
    "did_you_mean",
    "is_setting",
    "read_cluster_file",
    "read_settings",
    "setting_names",
]


def setting_names() -> list[str]:
    """Every name that a setting goes by."""
    return [*SETTINGS, *ALIASES, "pools", "events", "kv_transfer", "kv_offload"]
