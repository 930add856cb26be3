"""Cluster settings as users of the client write them: flags, lines of a study file.

Names and rules are those of `llmirage serve` and of cluster files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import click

from llmirage_server.config import (
    ALIASES,
    SETTINGS,
    ClusterConfig,
    canonical_name,
    did_you_mean,
    ineffective,
)
from llmirage_server.config.cluster import BLOCKS, ELSEWHERE
from llmirage_server.config.file import (
    alone,
    cluster_path,
    combined,
    is_setting,
    make_configs,
    read_cluster_file,
    read_settings,
)
from llmirage_shared.command_line import options
from llmirage_shared.settings import About, setting, settings_of

__all__ = [
    "BLOCKS", "ELSEWHERE", "SHAPE_SETTINGS", "SIMULATED", "ClusterFile", "ClusterSettings", "ShapelessClusterSettings",
    "alone", "canonical_name", "check_effect", "cluster_config", "cluster_configs", "cluster_options", "cluster_path",
    "combined", "did_you_mean", "effect_notes", "is_setting", "read_cluster_file", "read_settings", "setting_names",
    "without_effect",
]  # fmt: skip

# What a server shows and a simulation does not have, or has under another name.
NOT_HERE = frozenset(
    (
        *(name for name, about in settings_of(ClusterConfig).items() if about.group in ("Recordings", "Access", "Faults")),
        *("speed", "accept_models", "tokenizer", "unknown_fields", "lenient", "seed"),
        *("state", "state_mib", "files_mib", "response_ttl_s"),
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


SIMULATED = tuple(name for name in SETTINGS if name not in NOT_HERE)
"""Names of the settings of a cluster that matter to a simulation."""


def setting_names() -> list[str]:
    """Every name that a setting goes by."""
    return [*SETTINGS, *ALIASES, *BLOCKS]


# As those of the server, for clusters without one.
check_effect = partial(ineffective.check_effect, simulated=True)
effect_notes = partial(ineffective.effect_notes, simulated=True)
without_effect = partial(ineffective.without_effect, simulated=True)


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """A cluster file, and settings by name that override it. They are checked when the cluster is made."""

    left_out: ClassVar[Sequence[str]] = ()
    cluster_file: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def known(cls) -> dict[str, About]:
        """Return the settings of a simulated cluster by name, its file among them."""
        return {**settings_of(ClusterFile), **{name: SETTINGS[name] for name in SIMULATED if name not in cls.left_out}}

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
