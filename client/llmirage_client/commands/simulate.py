"""`llmirage simulate`: a workload on a simulated cluster in virtual time."""

from __future__ import annotations

from llmirage_client.load.options import RunOptions
from llmirage_client.settings.endpoint import ConnectionSettings
from llmirage_client.settings.output import ReportSettings
from llmirage_client.settings.simulation import SimulationSettings
from llmirage_client.settings.workload import LengthSettings, WorkloadSettings
from llmirage_client.simulator.cluster_flags import cluster_options
from llmirage_shared.command_line import argument, command, options

simulate = command(
    "simulate",
    "llmirage_client.commands.actions.simulate:simulate",
    [
        argument("workload", required=False),
        *options(SimulationSettings),
        *options(LengthSettings),
        *cluster_options(),
        *options(WorkloadSettings),
        *options(ConnectionSettings, "context_mode"),
        *options(RunOptions, but=("model", "endpoint_path", "session_header")),
        *options(ReportSettings),
    ],
    """Run WORKLOAD (a file, bundled:NAME, or lengths by --isl and --osl) on a simulated cluster, and report it.

    Time is virtual: an hour of the cluster passes as fast as it can be computed. The same seed gives the same result;
    --random-seed is 0 if it is not given. Exit status: 0 all requests succeeded, 1 some failed or --max-time came first,
    2 the input was refused.
    """,
)
