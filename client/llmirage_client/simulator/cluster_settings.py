"""Cluster settings as users of the client write them: lines of a study file, flags. The rules are those of cluster files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmirage_client.simulator.cluster_flags import NOT_HERE
from llmirage_server.config import ALIASES, SETTINGS, ClusterConfig, InstanceSettings, canonical_name, did_you_mean, effect
from llmirage_server.config.file import (
    alone,
    cluster_path,
    combined,
    is_setting,
    make_configs,
    read_cluster_file,
    read_settings,
)

__all__ = [
    "alone", "canonical_name", "check_effect", "cluster_config", "cluster_configs", "cluster_path", "combined",
    "did_you_mean", "is_setting", "read_cluster_file", "read_settings", "setting_names", "without_effect",
]  # fmt: skip


def setting_names() -> list[str]:
    """Every name that a setting goes by."""
    return [*SETTINGS, *ALIASES, "pools", "events", "kv_transfer", "kv_offload"]


def check_effect(configs: Iterable[InstanceSettings]) -> None:
    """As that of the server, for clusters without one."""
    effect.check_effect(configs, simulated=True)


def without_effect(configs: Iterable[InstanceSettings]) -> dict[str, str]:
    """As that of the server, for clusters without one."""
    return effect.without_effect(configs, simulated=True)


def cluster_config(settings: Mapping[str, Any], seed: int) -> ClusterConfig:
    """The cluster that was asked for; `seed` is that of the simulation.

    Raises ConfigError with all problems, settings without effect among them.
    """
    configs = cluster_configs(settings, seed)
    check_effect(configs)
    return configs[0]


def cluster_configs(settings: Mapping[str, Any], seed: int) -> tuple[ClusterConfig, ...]:
    """That cluster, and what its file says by itself: for those who look for settings without effect in more clusters."""
    flags = {name: settings.get(name) for name in SETTINGS if name not in NOT_HERE}
    flags["tokenizer"] = settings.get("tokenizer")
    return make_configs(settings["cluster_file"], flags | {"seed": seed})
