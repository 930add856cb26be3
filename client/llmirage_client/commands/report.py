"""`llmirage report`: runs as one HTML page."""

from __future__ import annotations

from llmirage_shared.command_line import OPTIONS, argument, command, options
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
    "llmirage_client.commands.actions.report:report",
    [argument("runs", "RUN...", many=True), *options(PageSettings)],
    """Write an HTML report of one run, or of several side by side.

    RUN is the folder of a run, its profile_export.jsonl, or a folder of runs, such as that of a sweep. The page is one file
    and works offline, in light and dark mode. An interrupted run is reported as far as it went. Exit status: 2 if there is
    no run to read.
    """,
    examples=(
        "llmirage report artifacts/latest",
        "llmirage report artifacts/low artifacts/high -o loads.html",
    ),
)
