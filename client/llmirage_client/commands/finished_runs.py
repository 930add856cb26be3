"""`llmirage report`, `compare`, `verdict` and `verify-client`: pages, differences and judgements of what has been run."""

from __future__ import annotations

from llmirage_client.settings.output import CompareSettings
from llmirage_shared.command_line import OPTIONS, argument, command, json_option, options
from llmirage_shared.settings import setting, switch


class PageSettings:
    """Settings of `llmirage report`."""

    output: str | None = setting(
        None,
        OPTIONS,
        "HTML file to write; - for standard output.",
        short="o",
        metavar="FILE",
        unset="report.html in the run's folder; in the current one for several runs",
    )
    json: bool = switch(OPTIONS, "Print what was written, as JSON.")
    open: bool = switch(OPTIONS, "Open the page in the browser.")


report = command(
    "report",
    "llmirage_client.commands.actions.finished_runs:report",
    [argument("runs", "RUN...", many=True), *options(PageSettings)],
    """Write an HTML report of one run, or of several side by side.

    RUN is the folder of a run, its profile_export.jsonl, or a folder of runs, such as that of a sweep. The page is one file
    and works offline, in light and dark mode. An interrupted run is reported as far as it went. Exit status: 2 if there is
    no run to read.
    """,
    examples=("llmirage report artifacts/latest", "llmirage report artifacts/low artifacts/high -o loads.html"),
)


compare = command(
    "compare",
    "llmirage_client.commands.actions.finished_runs:compare",
    [
        argument("baseline"),
        argument("runs", "RUN...", many=True),
        *options(CompareSettings),
        json_option("Print a JSON object instead of tables."),
    ],
    """Compare the metrics of each RUN with those of BASELINE.

    A run is a folder of `llmirage run` or AIPerf, or its profile_export.jsonl. The confidence interval of a difference comes
    from a bootstrap over conversations and over parts of the run; a difference is significant if its interval does not
    include zero. Exit status: 1 if --fail-if-worse finds a worse metric, 2 if a run cannot be read or judged.
    """,
    bare={"--fail-if-worse": "0"},
    examples=(
        "llmirage compare artifacts/low artifacts/high",
        "llmirage compare artifacts/low artifacts/high --fail-if-worse 5%",
    ),
)


class VerdictSettings:
    """Settings of `llmirage verdict`."""

    since: int | None = setting(
        None, OPTIONS, "Judge the requests after this number of the journal.", unset="all that it has", least=0
    )
    unused_s: float = setting(
        5.0,
        OPTIONS,
        "A connection is leaked if it was open and unused for so long when its client opened another one.",
        metavar="SECONDS",
        above=0,
        most=86_400,
    )
    api_key: str | None = setting(None, OPTIONS, "API key of the server.")
    json: bool = switch(OPTIONS, "Print the server's JSON instead of a table.")


verdict = command(
    "verdict",
    "llmirage_client.commands.actions.verdict:verdict",
    [argument("url", required=False, default="http://localhost:8000"), *options(VerdictSettings)],
    """Judge the clients of a running `llmirage serve` by the requests in its journal.

    docs/verdict.md has the rules. Exit status: 0 if none is broken, 1 if the server cannot be asked, 3 if one is broken.
    """,
    examples=("llmirage verdict http://localhost:8000", "llmirage verdict http://localhost:8000 --since 100 --json"),
)


verify_client = command(
    "verify-client",
    "llmirage_client.commands.actions.finished_runs:verify_client",
    [argument("run"), argument("stamps"), json_option("Print a JSON object instead of a table.")],
    """Say how far the TTFT and ITL of a load client are off.

    RUN is a run of `llmirage run` or AIPerf against `llmirage serve --set sent_stamps=STAMPS`: its folder or its
    profile_export.jsonl. The server's stamps say when each token was sent. Exit status: 2 if there is nothing to compare.
    """,
    examples=(
        "llmirage verify-client artifacts/latest stamps.jsonl",
        "llmirage verify-client aiperf/profile_export.jsonl stamps.jsonl --json",
    ),
)
