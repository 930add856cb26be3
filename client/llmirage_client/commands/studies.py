"""`llmirage simulate`, `route-score`, `size`, `sweep` and `calibrate`: simulated clusters, and studies of them."""

from __future__ import annotations

from llmirage_client.settings.endpoint import PromptSettings
from llmirage_client.settings.load import LoadSettings, ScenarioSettings
from llmirage_client.settings.output import PageOutput, ReportSettings
from llmirage_client.settings.simulation import (
    SIMULATION,
    CalibrationOutput,
    CalibrationSettings,
    RouteScoreSettings,
    SimulationOutput,
    SimulationSettings,
    SizingOutput,
    SizingSettings,
    SweepOutput,
    SweepSettings,
)
from llmirage_client.settings.workload import LengthSettings, WorkloadSettings
from llmirage_client.simulator.cluster_settings import BLOCKS, ELSEWHERE, SHAPE_SETTINGS, cluster_options
from llmirage_shared.command_line import argument, command, json_option, options, renamed
from llmirage_shared.settings import at_call

_SLO = 'use --slo, such as "ttft_p99<500ms, tpot_p95<30ms"'
# Words of planners that options have other names for.
_ELSEWHERE = ELSEWHERE | {
    "--concurrent-users": "use --concurrency N",
    "--dtype": "use --weights FORMAT, and --set kv_cache_dtype=FORMAT for the KV cache",
    "--input-len": "use --isl N",
    "--input-tokens": "use --isl N",
    "--latency": _SLO,
    "--output-len": "use --osl N",
    "--output-tokens": "use --osl N",
    "--precision": "use --weights FORMAT, and --set kv_cache_dtype=FORMAT for the KV cache",
    "--qps": "use --request-rate R",
    "--quantization": "use --weights FORMAT",
    "--replicas": "use --instances N",
    "--rps": "use --request-rate R",
    "--sla": _SLO,
    "--users": "use --concurrency N",
}
_SIZE_ELSEWHERE = _ELSEWHERE | {
    "--agents": "use --concurrency N",
    "--rate": "use --request-rate R",
    "--replicas": "not given, as it is the answer; use --instances N with --max-rate",
    "--tpot": _SLO,
    "--ttft": _SLO,
}

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
    elsewhere=_ELSEWHERE,
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
        json_option("Print a JSON object instead of a table.", SIMULATION, usual=True),
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


size = command(
    "size",
    "llmirage_client.commands.actions.studies:size",
    [
        argument("workload", required=False, names=at_call("llmirage_client.workload.synthesis.generated:workload_names")),
        *options(SizingSettings, but=("max_time",)),
        *options(LengthSettings, but=("isl_stddev", "osl_stddev", "input_file")),
        *options(SizingOutput),
        *options(SizingSettings, "max_time"),
        *cluster_options(*SHAPE_SETTINGS),
        *options(WorkloadSettings),
        *options(PromptSettings),
        *options(ScenarioSettings),
    ],
    """Find the cheapest deployment that meets latency objectives under given traffic.

    WORKLOAD is a file or bundled:NAME; --isl and --osl replace it. Traffic is a rate, a number of users, or the run of a
    --scenario with --concurrency lanes (docs/agentx.md). The command enumerates the ways to split the model over the given
    GPUs, rules out what the roofline model can rule out, and simulates the rest with --requests requests each. Exit status:
    0 with an answer, 1 if no deployment meets the objectives, 2 if the input was refused.
    """,
    blocks=BLOCKS,
    elsewhere=_SIZE_ELSEWHERE,
    examples=(
        'llmirage size --slo "ttft_p99<500ms" --isl 2000 --osl 300 --request-rate 10 --gpus h100_sxm,l40s',
        'llmirage size --slo "tpot_p95<30ms" --isl 2000 --osl 300 --concurrency 50 --model Qwen/Qwen3-32B',
    ),
)


sweep = command(
    "sweep",
    "llmirage_client.commands.actions.studies:sweep",
    [argument("study"), *options(SweepSettings), *options(SweepOutput)],
    """Simulate every point of a study and compare them (docs/studies.md, docs/what-if.md).

    STUDY is a YAML file of clusters and loads, or bundled:NAME. Each result is written when its point is done; the same
    command resumes an interrupted study. An impossible deployment is marked as refused, with the reason. Exit status: 0 if
    every point was done or refused, 1 if some failed or reached --max-time or none was done, 2 if the study was refused,
    130 after Ctrl-C.
    """,
    examples=("llmirage sweep bundled:routers", "llmirage sweep bundled:pools --workers 4 --artifact-dir pools"),
)


calibrate = command(
    "calibrate",
    "llmirage_client.commands.actions.studies:calibrate",
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
