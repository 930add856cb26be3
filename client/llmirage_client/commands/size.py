"""`llmirage size`: the cheapest deployment that meets objectives, or what a deployment carries."""

from __future__ import annotations

from llmirage_client.settings.endpoint import PromptSettings
from llmirage_client.settings.sizing import SizingOutput, SizingSettings
from llmirage_client.settings.workload import LengthSettings, WorkloadSettings
from llmirage_client.simulator.cluster_flags import BLOCKS, SHAPE_SETTINGS, cluster_options
from llmirage_shared.command_line import argument, command, options
from llmirage_shared.settings import at_call

size = command(
    "size",
    "llmirage_client.commands.actions.size:size",
    [
        argument("workload", required=False, names=at_call("llmirage_client.workload.synthesis.generated:workload_names")),
        *options(SizingSettings, but=("max_time",)),
        *options(LengthSettings, but=("isl_stddev", "osl_stddev", "input_file")),
        *options(SizingOutput),
        *options(SizingSettings, "max_time"),
        *cluster_options(*SHAPE_SETTINGS),
        *options(WorkloadSettings),
        *options(PromptSettings),
    ],
    """Find the cheapest deployment that meets latency objectives under given traffic.

    WORKLOAD is a file or bundled:NAME; --isl and --osl replace it. Traffic is a rate or a number of users. The command
    enumerates the ways to split the model over the given GPUs, rules out what the roofline model can rule out, and
    simulates the rest with --requests requests each. Exit status: 0 with an answer, 1 if no deployment meets the
    objectives, 2 if the input was refused.
    """,
    blocks=BLOCKS,
    examples=(
        'llmirage size --slo "ttft_p99<500ms" --isl 2000 --osl 300 --request-rate 10 --gpus h100_sxm,l40s',
        'llmirage size --slo "tpot_p95<30ms" --isl 2000 --osl 300 --concurrency 50 --model Qwen/Qwen3-32B',
    ),
)
