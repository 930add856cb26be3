"""Everything that can be configured: names, defaults and checks. Flags and cluster files both end here."""

from llmirage_server.config.cluster import ClusterConfig, EventConfig, KvTransferConfig, PoolConfig
from llmirage_server.config.instance import InstanceSettings
from llmirage_server.config.names import (
    ABOUT,
    ALIASES,
    DEFAULTS,
    FIELD_TYPES,
    INSTANCE_SETTINGS,
    canonical_name,
    convert,
)
from llmirage_server.config.settings import ConfigError, did_you_mean

__all__ = [
    "ABOUT",
    "ALIASES",
    "DEFAULTS",
    "FIELD_TYPES",
    "INSTANCE_SETTINGS",
    "ClusterConfig",
    "ConfigError",
    "EventConfig",
    "InstanceSettings",
    "KvTransferConfig",
    "PoolConfig",
    "canonical_name",
    "convert",
    "did_you_mean",
]
