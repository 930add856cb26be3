"""What `llmirage verify-client` does: compares a run's times with the stamps of the server."""

from __future__ import annotations

from json import dumps

import click

from llmirage_client.measure.client_error import client_error, read_stamps
from llmirage_client.measure.run_folder import read_runs
from llmirage_client.report.screen import print_table
from llmirage_shared.settings import InputRefused

_NAMES = {"ttft": "TTFT", "itl": "ITL, mean of a reply", "gap": "gap between two chunks"}


def verify_client(run: str, stamps: str, json: bool) -> None:
    """Run `llmirage verify-client`."""
    [result] = read_runs([run])
    found = client_error(result.records, read_stamps(stamps))
    if not found.compared:
        raise InputRefused([f"{stamps} has none of the {found.requests} streamed requests of {run}, by X-Request-ID"])
    if json:
        click.echo(dumps(found.as_dict(), indent=2))
        return
    click.echo(f"{found.compared} of {found.requests} streamed requests have stamps. Measured less sent, in ms:\n")
    print_table(
        [
            {"": name, "values": one.count, "median": f"{one.median:+.3f}", "p99 of amounts": f"{one.p99:.3f}"}
            for tag, name in _NAMES.items()
            if (one := getattr(found, tag)) is not None
        ]
    )
