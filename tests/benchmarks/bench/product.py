"""Everything of llmirage that the benchmarks use beyond its command: the one place to mend when something moves."""

from typing import Any

from llmirage_client.load.options import RunOptions
from llmirage_client.load.runner import Runner
from llmirage_client.report.records_file import RecordWriter, RunClock
from llmirage_client.simulate.simulation import Simulation, own_process, simulate
from llmirage_client.targets.http import HttpTarget
from llmirage_client.workload.registry import load as load_workload
from llmirage_client.workload.session import Branch, Session, TokenSpec, Turn, Workload
from llmirage_client.workload.synthetic_load import synthetic_load
from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.radix_tree import RadixTree
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request, token_bytes
from llmirage_server.cluster.routers import make_router
from llmirage_server.config import ClusterConfig
from llmirage_server.config.file import make_config

own_process()  # as the commands do

__all__ = [
    "Branch", "Cluster", "ClusterConfig", "EngineLimits", "HttpTarget", "Instance", "RadixTree", "RecordWriter", "Request",
    "RunClock", "RunOptions", "Runner", "Session", "Simulation", "TokenSpec", "Turn", "Workload", "load_workload",
    "make_config", "make_router", "simulate_by_api", "simulate_by_engine", "synthetic_load", "token_bytes",
]  # fmt: skip


def simulate_by_engine(config: ClusterConfig, workload: Workload, **options: Any) -> Simulation:
    """The cluster alone, asked directly."""
    return simulate(config, workload, RunOptions(seed=1, **options))


def simulate_by_api(config: ClusterConfig, workload: Workload, **options: Any) -> Simulation:
    """The whole API in this process, in virtual time."""
    return simulate(config, workload, RunOptions(seed=1, **options), via="api")
