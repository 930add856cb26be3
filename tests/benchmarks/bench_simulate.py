"""What simulations cost, in CPU time, on one thread.

Run it:  python tests/benchmarks/bench_simulate.py [standard|agentic|command|memory|scale|hour ...]
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import resource
import subprocess
import sys
import time
from collections.abc import Callable

from llmirage_client.load.options import RunOptions
from llmirage_client.simulate.simulation import Door, Simulation, simulate
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.workload.session import Workload
from llmirage_client.workload.synthetic_load import synthetic_load

MODEL = "meta-llama/Llama-3.1-8B"
RATE_PER_S = 4.0  # of each instance
REPEATS = 3


def cluster(instances: int) -> ClusterConfig:
    return ClusterConfig(model=MODEL, gpu="h100_sxm", instances=instances)


def cheapest(
    config: ClusterConfig, workload: Workload, options: RunOptions, door: Door = "direct"
) -> tuple[float, Simulation]:
    """CPU seconds of the cheapest of some runs; the first one in a process also loads catalogues and is not counted."""
    simulate(config, synthetic_load(100, 10, 5, seed=1), options, door=door)
    best, kept = float("inf"), None
    for _ in range(REPEATS):
        begun_s = time.process_time()
        kept = simulate(config, workload, options, door=door)
        best = min(best, time.process_time() - begun_s)
    assert kept is not None
    return best, kept


def standard() -> None:
    """Llama-3.1-8B on H100, 2000 in, 500 out, Poisson arrivals."""
    for instances, requests in ((1, 2000), (8, 2000), (8, 20000)):
        workload = synthetic_load(2000, 500, requests, seed=1)
        options = RunOptions(request_rate_per_s=RATE_PER_S * instances, seed=1)
        cpu_s, simulation = cheapest(cluster(instances), workload, options)
        assert simulation.summary["requests"] == requests
        print(
            f"standard job, {instances} instances, {requests} requests: {requests / cpu_s:,.0f} requests and "
            f"{requests * 500 / cpu_s / 1e6:.2f} M tokens a CPU s ({cpu_s / requests * 1e6:.0f} us a request)"
        )


def agentic() -> None:
    """100 sessions of 12 turns: 1500 new tokens, 300 out, 2 s of thinking, one session a second, 4 instances."""
    workload = synthetic_load(1500, 300, 1200, turns=12, wait_s=2, seed=1)
    timed = {
        name: type(session)(name, session.turns, session.mode, arrival_s=float(place))
        for place, (name, session) in enumerate(workload.sessions.items())
    }
    workload = Workload(workload.format, workload.path, timed, workload.roots)
    cpu_s, simulation = cheapest(cluster(4), workload, RunOptions(fixed_schedule=True, seed=1))
    share = simulation.summary["cached_token_share"]
    print(f"agentic, 4 instances, 100 sessions of 12 turns: {1200 / cpu_s:,.0f} turns a CPU s ({share:.0%} cached)")


def command() -> None:
    """The whole command, with its start."""
    words = ["simulate", "--isl", "2000", "--osl", "500", "--request-rate", "32", "--requests", "2000", "--json"]
    words += ["--model", MODEL, "--gpu", "h100_sxm", "--instances", "8"]
    costs = []
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "llmirage_client", *words], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"whole command, 2,000 requests: {min(costs):.2f} CPU s")


def memory() -> None:
    """The whole protocol in memory: the cost of a token, from the difference of two lengths."""
    costs = []
    for tokens in (50, 450):
        workload = synthetic_load(500, tokens, 100, seed=1)
        cpu_s, _ = cheapest(cluster(2), workload, RunOptions(concurrency=32, seed=1), "memory")
        costs.append(cpu_s)
    print(f"memory door: {(costs[1] - costs[0]) / (100 * 400) * 1e6:.1f} us CPU a token")


def scale() -> None:
    """The cost of a request by the number of instances."""
    per_request = []
    for instances in (1, 8, 64):
        requests = max(2000, 60 * instances)
        workload = synthetic_load(2000, 500, requests, seed=1)
        cpu_s, _ = cheapest(cluster(instances), workload, RunOptions(request_rate_per_s=RATE_PER_S * instances, seed=1))
        per_request.append(cpu_s / requests * 1e6)
        print(f"{instances} instances: {per_request[-1]:.0f} us a request ({per_request[-1] / per_request[0]:.2f} x)")


def hour() -> None:
    """An hour of 64 instances with 256 agents at a time, of 20 turns each."""
    workload = synthetic_load(1500, 300, 100_000, turns=20, wait_s=2, seed=1)
    options = RunOptions(concurrency=256, benchmark_duration_s=3600.0, benchmark_grace_period_s=0.0, seed=1)
    begun_s = time.process_time()
    simulation = simulate(cluster(64), workload, options)
    cpu_s = time.process_time() - begun_s
    turns = simulation.summary["requests"]
    print(f"an hour of 64 instances, 256 agents: {cpu_s:.1f} CPU s, {turns:,} turns ({cpu_s / turns * 1e6:.0f} us a turn)")


BENCHMARKS: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (standard, agentic, command, memory, scale, hour)
}


if __name__ == "__main__":
    for name in sys.argv[1:] or BENCHMARKS:
        BENCHMARKS[name]()
