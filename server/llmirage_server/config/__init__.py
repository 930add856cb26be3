"""Everything that can be configured: names, defaults and checks. Flags and cluster files both end here."""

from llmirage_server.config.cluster import (
    ALIASES,
    INSTANCE_SETTINGS,
    SETTINGS,
    ClusterConfig,
    EventConfig,
    KvTransferConfig,
    PoolConfig,
    canonical_name,
)
from llmirage_server.config.instance import InstanceSettings
from llmirage_shared.settings import ConfigError, did_you_mean

__all__ = [
    "ALIASES", "INSTANCE_SETTINGS", "SETTINGS", "ClusterConfig", "ConfigError", "EventConfig", "InstanceSettings",
    "KvTransferConfig", "PoolConfig", "canonical_name", "did_you_mean",
]  # fmt: skip
