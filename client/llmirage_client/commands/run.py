"""`llmirage run`: replays a workload against an endpoint."""

from __future__ import annotations

from llmirage_client.settings.endpoint import ConnectionSettings
from llmirage_client.settings.load import LoadSettings
from llmirage_client.settings.output import REPORT, PageOutput, PointSettings, ReportSettings, WorkerSettings
from llmirage_client.settings.workload import LengthSettings, WorkloadSettings
from llmirage_shared.command_line import argument, command, json_option, options
from llmirage_shared.settings import at_call

_FILES = "use --artifact-dir DIR: every run writes its files there"
_LENGTHS = "use --format-option {}=N"
_DRAWN = "use a distribution: --isl 'normal(mean=800, std=100)', and likewise --osl and --turns"
# Flags of AIPerf, `vllm bench serve`, SGLang's bench_serving and `evalscope perf` (docs/from/ has their pages).
_ELSEWHERE = {
    "--api": "use --endpoint-type chat, completions, responses or messages",
    "--backend": "use --endpoint-type chat, completions, responses or messages",
    "--base-url": "use --url URL",
    "--connection-reuse-strategy": "not needed: connections are kept and used again",
    "--conversation-turn-stddev": _DRAWN,
    "--dataset": "give FILE, the first argument, with --format NAME if its content does not tell; or --isl and --osl",
    "--dataset-name": "give FILE, the first argument, with --format NAME if its content does not tell; or --isl and --osl",
    "--dataset-path": "give FILE, the first argument",
    "--export-level": "not needed: profile_export.jsonl has every request, inputs.json every body",
    "--extra-args": "use --extra-inputs KEY:VALUE or a JSON object",
    "--extra-body": "use --extra-inputs KEY:VALUE or a JSON object",
    "--headers": "use --header NAME:VALUE",
    "--host": "use --url HOST:PORT",
    "--ignore-eos": "use --extra-inputs ignore_eos:true; --isl and --osl ask for exact lengths anyway",
    "--max-concurrency": "use --concurrency N",
    "--max-prompt-length": _LENGTHS.format("max_prompt_length"),
    "--max-tokens": "use --extra-inputs max_tokens:N",
    "--metric-percentiles": "not needed: reports have p50 to p99 of every metric",
    "--min-prompt-length": _LENGTHS.format("min_prompt_length"),
    "--min-tokens": "use --extra-inputs min_tokens:N",
    "--multi-turn": "not needed: conversations of a file are replayed turn by turn",
    "--name": _FILES,
    "--num-prefix-prompts": "use --shared-prefix N for one prefix of all sessions",
    "--num-profile-runs": "use --artifact-dir for each of several runs, then `llmirage compare`",
    "--num-prompts": "use --request-count N, and --requests N with --isl and --osl",
    "--num-warmups": "use --num-warmup-requests N",
    "--open-loop": "use --request-rate R without --concurrency",
    "--output-file": _FILES,
    "--outputs-dir": _FILES,
    "--percentile-metrics": "not needed: reports have p50 to p99 of every metric",
    "--port": "use --url HOST:PORT",
    "--prefix-length": _LENGTHS.format("prefix_length"),
    "--public-dataset": "give FILE, the first argument: a data set that you have fetched",
    "--random-input": "use --isl N",
    "--random-input-len": "use --isl N",
    "--random-output": "use --osl N",
    "--random-output-len": "use --osl N",
    "--random-prefix-len": "use --shared-prefix N",
    "--random-range-ratio": "use --isl LOW:HIGH and --osl LOW:HIGH",
    "--result-dir": _FILES,
    "--result-filename": _FILES,
    "--save-detailed": _FILES,
    "--save-result": _FILES,
    "--seed": "use --random-seed N",
    "--seq-dist": _DRAWN,
    "--sequence-distribution": _DRAWN,
    "--session-turns-stddev": _DRAWN,
    "--sla-auto-tune": "use --find-max SLO",
    "--stop": "use --extra-inputs with a JSON object",
    "--system-prompt": "use --shared-prefix N, or a FILE with system messages",
    "--temperature": "use --extra-inputs temperature:T",
    "--tokenizer-path": "use --tokenizer NAME",
    "--top-k": "use --extra-inputs top_k:N",
    "--top-p": "use --extra-inputs top_p:P",
    "--ui": "not needed: figures on a terminal, lines elsewhere; --json for the summary alone",
    "--ui-type": "not needed: figures on a terminal, lines elsewhere; --json for the summary alone",
    "--wait-for-model-timeout": "wait before the run until the endpoint answers: one that does not ends the run at once",
    "--workers-max": "use --workers N",
}

run = command(
    "run",
    "llmirage_client.commands.actions.run:run",
    [
        argument("file", required=False, names=at_call("llmirage_client.workload.synthesis.generated:workload_names")),
        *options(ConnectionSettings),
        *options(LengthSettings),
        *options(WorkloadSettings),
        *options(LoadSettings),
        *options(PointSettings),
        *options(WorkerSettings),
        *options(ReportSettings),
        *options(PageOutput),
        json_option("Print only the summary, as JSON; of a sweep or a search, its points.", REPORT, usual=True),
    ],
    """Run a workload against an endpoint and report the metrics.

    FILE is a workload file, bundled:NAME, a preset of `llmirage generate` (as in coding-agent --agents 200), or the name of
    a format that generates its own requests; --isl and --osl replace it. A first request finds out whether the endpoint
    answers and knows the model and the key. Every root conversation runs once unless an option says otherwise. Exit status:
    0 if all requests succeeded, 1 if some failed (unless --slo says how many may), 2 if the input was refused, 3 if an
    objective of --slo was missed, 4 if the answer of --find-max rests on prompts that the endpoint had seen before, 130
    after Ctrl-C (the report is written for what finished).
    """,
    lists=("--parallel", "--number", "--rate"),
    elsewhere=_ELSEWHERE,
    examples=(
        "llmirage run bundled:coding-agent --agents 8 --url localhost:8000",
        'llmirage run --isl 1000 --osl 200 --requests 64 --concurrency 16 --slo "ttft_p99<500ms"',
    ),
)
