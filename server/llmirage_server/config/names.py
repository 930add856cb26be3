"""All settings that a flag or a line of a cluster file can give, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from llmirage_server.config.cluster import ClusterConfig
from llmirage_server.config.instance import InstanceSettings
from llmirage_shared.settings import About, settings_of

SETTINGS: Mapping[str, About] = settings_of(ClusterConfig)
ALIASES: Mapping[str, str] = {alias: name for name, about in SETTINGS.items() for alias in about.other_names}
INSTANCE_SETTINGS = frozenset(field.name for field in dataclasses.fields(InstanceSettings))


def canonical_name(key: str) -> str | None:
    """The setting that a key means; dashes and underscores are the same. None for an unknown key."""
    name = key.replace("-", "_").lower()
    name = ALIASES.get(name, name)
    return name if name in SETTINGS else None
