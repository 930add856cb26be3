"""Options that say what is reported, and where to."""

from __future__ import annotations

import click

from llmirage_client.commands.flags.sections import flag, together

_SECTION = "Report"


def goodput(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Checked here, parsed where it is used, so that files show it as it was given."""
    if value is not None:
        from llmirage_client.measure.goodput import parse_goodput

        try:
            parse_goodput(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return value


measure_flags = together(
    flag(
        _SECTION,
        "--artifact-dir",
        type=click.Path(file_okay=False),
        metavar="DIR",
        help="Where the files go.  [default: artifacts/MODEL-ENDPOINT-LOAD]",
    ),
    flag(
        _SECTION,
        "--goodput",
        callback=goodput,
        metavar='"NAME:LIMIT ..."',
        help='Also count the requests that met every limit, such as "ttft:200 tpot:15" in ms; names are ttft, ttst, ttfo, '
        "tpot, latency, tps_per_user or a tag of docs/metrics.md.",
    ),
    flag(
        _SECTION,
        "--slice-duration",
        type=click.FloatRange(min=0, min_open=True),
        metavar="S",
        help="Also write the metrics of each S seconds of the run, in files of their own.",
    ),
)
