"""Cluster settings as users of the client write them: lines of a study file, flags. The rules are those of cluster files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from llmirage_client.simulator.cluster_flags import BLOCKS, NOT_HERE, SHAPE_SETTINGS, ClusterFile
from llmirage_server.config import (
    ALIASES,
    SETTINGS,
    ClusterConfig,
    InstanceSettings,
    canonical_name,
    did_you_mean,
    ineffective,
)
from llmirage_server.config.file import (
    alone,
    cluster_path,
    combined,
    is_setting,
    make_configs,
    read_cluster_file,
    read_settings,
)
from llmirage_shared.settings import About, settings_of

__all__ = [
    "SIMULATED", "ClusterSettings", "ShapelessClusterSettings", "alone", "canonical_name", "check_effect", "cluster_config",
    "cluster_configs", "cluster_path", "combined", "did_you_mean", "effect_notes", "is_setting", "read_cluster_file",
    "read_settings", "setting_names", "without_effect",
]  # fmt: skip


SIMULATED = tuple(name for name in SETTINGS if name not in NOT_HERE)
"""Names of the settings of a cluster that matter to a simulation."""


def setting_names() -> list[str]:
    """Every name that a setting goes by."""
    return [*SETTINGS, *ALIASES, *BLOCKS]


def check_effect(configs: Iterable[InstanceSettings]) -> None:
    """As that of the server, for clusters without one."""
    ineffective.check_effect(configs, simulated=True)


def effect_notes(configs: Iterable[InstanceSettings]) -> list[str]:
    """As that of the server, for clusters without one."""
    return ineffective.effect_notes(configs, simulated=True)


def without_effect(configs: Iterable[InstanceSettings], harmless: bool = False) -> dict[str, str]:
    """As that of the server, for clusters without one."""
    return ineffective.without_effect(configs, True, harmless)


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """A cluster file, and settings by name that override it. They are checked when the cluster is made."""

    left_out: ClassVar[Sequence[str]] = ()
    cluster_file: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def known(cls) -> dict[str, About]:
        """Return the settings of a simulated cluster by name, its file among them."""
        return {
            **settings_of(ClusterFile),
            **{name: SETTINGS[name] for name in SIMULATED if name not in cls.left_out},
        }

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Pick the cluster's settings from all settings of a command; None stands for not given."""
        picked = {name: given[name] for name in cls.known() if given.get(name) is not None}
        return cls(cluster_file=picked.pop("cluster_file", None), overrides=picked)


class ShapelessClusterSettings(ClusterSettings):
    """A cluster without the settings that `llmirage size` looks for."""

    left_out = SHAPE_SETTINGS


def cluster_config(settings: ClusterSettings, seed: int, tokenizer: str | None = None) -> ClusterConfig:
    """Make the cluster; `seed` and `tokenizer` are those of the simulation.

    Raises ConfigError with all problems, settings without effect among them.
    """
    configs = cluster_configs(settings, seed, tokenizer)
    check_effect(configs)
    return configs[0]


def cluster_configs(settings: ClusterSettings, seed: int, tokenizer: str | None = None) -> tuple[ClusterConfig, ...]:
    """Make the cluster, and that of its file alone, in both of which settings may be without effect."""
    return make_configs(settings.cluster_file, {**settings.overrides, "tokenizer": tokenizer, "seed": seed})
