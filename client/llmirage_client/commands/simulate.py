"""`llmirage simulate` and `route-score`: a workload on a simulated cluster in virtual time, and routers compared by it."""

from __future__ import annotations

from llmirage_client.settings.load import LoadSettings
from llmirage_client.settings.output import PageOutput, ReportSettings
from llmirage_client.settings.simulation import RouteScoreOutput, RouteScoreSettings, SimulationOutput, SimulationSettings
from llmirage_client.settings.workload import LengthSettings, WorkloadSettings
from llmirage_client.simulator.cluster_settings import BLOCKS, cluster_options
from llmirage_shared.command_line import argument, command, options, renamed
from llmirage_shared.settings import at_call

simulate = command(
    "simulate",
    "llmirage_client.commands.actions.simulate:simulate",
    [
        argument("workload", required=False, names=at_call("llmirage_client.workload.synthesis.generated:workload_names")),
        *options(SimulationSettings),
        *options(SimulationOutput),
        renamed("door", "via", direct="engine", memory="api"),
        *options(LengthSettings),
        *cluster_options(),
        *options(WorkloadSettings),
        *options(LoadSettings),
        *options(ReportSettings),
        *options(PageOutput),
    ],
    """Run a workload on a simulated cluster, in virtual time, and report the metrics.

    WORKLOAD is a file, bundled:NAME, or a preset of `llmirage generate` (as in agent-chain --agents 200); --isl and --osl
    replace it. The same seed gives the same result; the default of --random-seed is 0 here. Exit status: 0 if all requests
    succeeded, 1 if some failed or --max-time was reached, 2 if the input was refused, 3 if an objective of --slo was missed.
    """,
    blocks=BLOCKS,
    examples=(
        "llmirage simulate bundled:coding-agent --gpu h200_sxm --instances 2",
        "llmirage simulate --isl 4000 --osl 500 --request-rate 10 --model Qwen/Qwen3-32B --tp 2",
    ),
)


route_score = command(
    "route-score",
    "llmirage_client.commands.actions.simulate:route_score",
    [
        argument("run"),
        argument("stamps"),
        *options(RouteScoreSettings),
        *options(RouteScoreOutput),
        *cluster_options("router"),
    ],
    """Compare an outside router with llmirage's own: cache hits, balance of the instances, TTFT.

    RUN is a run of `llmirage run` through the router, before `llmirage serve --fleet --set sent_stamps=STAMPS` with the
    cluster that the options describe. Its load is simulated with each router, and with an infinite cache that all instances
    share. Exit status: 2 if there is nothing to compare.
    """,
    blocks=BLOCKS,
    examples=(
        "llmirage route-score artifacts/low stamps.jsonl --model Qwen/Qwen3-32B --instances 2",
        "llmirage route-score artifacts/low stamps.jsonl --model Qwen/Qwen3-32B --instances 2 --routers session",
    ),
)
