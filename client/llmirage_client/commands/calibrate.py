"""`llmirage calibrate`: an engine file whose simulated cluster behaves as a measured one."""

from __future__ import annotations

from llmirage_client.settings.simulation import CalibrationOutput, CalibrationSettings
from llmirage_client.simulator.cluster_flags import BLOCKS, cluster_options
from llmirage_shared.command_line import argument, command, options

calibrate = command(
    "calibrate",
    "llmirage_client.commands.actions.calibrate:calibrate",
    [argument("runs", "RUN...", many=True), *options(CalibrationOutput), *options(CalibrationSettings), *cluster_options()],
    """Fit an engine profile to measured runs of one deployment.

    RUN is a folder of `llmirage run` or AIPerf, the JSON file of `vllm bench serve --save-result --save-detailed`, or
    evalscope's benchmark_data.db. Describe the measured deployment with --model, --gpu, --engine and so on. The command
    simulates the same requests and changes the factors until the times agree. Exit status: 2 if a run or the cluster is
    refused.
    """,
    blocks=BLOCKS,
    examples=(
        "llmirage calibrate artifacts/latest --model Qwen/Qwen3-32B --gpu h100_sxm --engine vllm",
        "llmirage calibrate artifacts/low artifacts/high --model Qwen/Qwen3-32B -o mine.yaml",
    ),
)
