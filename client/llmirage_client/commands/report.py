"""`llmirage report`: runs as one HTML page."""

from __future__ import annotations

from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import setting, switch


class PageSettings:
    output: str | None = setting(
        None,
        OPTIONS,
        "The page; - for standard output.",
        short="o",
        metavar="FILE",
        unset="report.html in the folder named, here for several",
    )
    open: bool = switch(OPTIONS, "Show the page in the browser.")


report = command(
    "report",
    "llmirage_client.commands.actions.report:report",
    [argument("runs", "RUN...", many=True), *options(PageSettings)],
    """Write one HTML page about RUN, or about several runs beside each other.

    RUN is the folder of a run's files, its profile_export.jsonl, or a folder with such folders below it, as a sweep leaves
    one. The page needs nothing else: it works offline and is drawn in light and dark. A run that was cut off has a page
    too, of what finished. Exit status 2 when there is no run to be read.
    """,
)
