"""`llmirage size`: the cheapest deployment that meets objectives, or what a deployment carries."""

from __future__ import annotations

from llmirage_client.load.options import RunOptions
from llmirage_client.settings.sizing import SizingOutput, SizingSettings
from llmirage_client.settings.workload import LengthSettings, WorkloadSettings
from llmirage_client.simulator.cluster_flags import SHAPE_SETTINGS, cluster_options
from llmirage_shared.command_line import argument, command, options

size = command(
    "size",
    "llmirage_client.commands.actions.size:size",
    [
        argument("workload", required=False),
        *options(SizingSettings),
        *options(LengthSettings),
        *options(SizingOutput),
        *cluster_options(*SHAPE_SETTINGS),
        *options(WorkloadSettings),
        *options(RunOptions, "session_prefix", "tokenizer"),
    ],
    """Find the cheapest deployment that meets objectives under the traffic of WORKLOAD (a file, bundled:NAME, or lengths by
    --isl and --osl), sent at --request-rate or by --concurrency users.

    Every way to split the model over the GPUs named is pruned with the roofline, the rest simulated, --requests requests
    (1000) each. Exit status: 0 an answer, 1 nothing meets the objectives, 2 the input was refused.
    """,
)
