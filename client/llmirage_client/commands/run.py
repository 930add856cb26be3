"""`llmirage run`: replays a workload against an endpoint."""

from __future__ import annotations

from llmirage_client.settings.endpoint import ConnectionSettings
from llmirage_client.settings.load import LoadSettings
from llmirage_client.settings.output import PageOutput, PointSettings, ReportSettings, RunOutput, WorkerSettings
from llmirage_client.settings.workload import LengthSettings, WorkloadSettings
from llmirage_shared.command_line import argument, command, options
from llmirage_shared.settings import at_call

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
        *options(RunOutput),
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
    examples=(
        "llmirage run bundled:coding-agent --agents 8 --url localhost:8000",
        'llmirage run --isl 1000 --osl 200 --requests 64 --concurrency 16 --slo "ttft_p99<500ms"',
    ),
)
