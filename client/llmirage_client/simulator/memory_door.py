"""The memory door: a simulated cluster behind the server's whole protocol, in this process and in virtual time."""

from __future__ import annotations

from llmirage_client.simulator.direct import LOCAL_URL
from llmirage_client.simulator.engine import Cluster, ClusterConfig, Onlooker, new_app
from llmirage_client.simulator.memory import MemoryTransport
from llmirage_client.targets.http import HttpTarget
from llmirage_server.drivers.observed import WatchedDriver


class MemoryDoor:
    """A server. `open` it on the loop."""

    def __init__(self, config: ClusterConfig) -> None:
        """Raises ConfigError."""
        self._app = new_app(config)
        self._driver: WatchedDriver | None = None

    @property
    def cluster(self) -> Cluster:
        return self._app.driver.cluster

    def open(self, onlooker: Onlooker) -> HttpTarget:
        """What requests go to, while somebody looks at the cluster."""
        self._driver = self._app.driver = self._app.service.driver = WatchedDriver(self.cluster, onlooker)
        return HttpTarget(LOCAL_URL, transport=MemoryTransport(self._app))

    @property
    def waited_s(self) -> list[float]:
        """Of requests that are over, in that order: from arrival to the first step."""
        return [] if self._driver is None else self._driver.waited_s
