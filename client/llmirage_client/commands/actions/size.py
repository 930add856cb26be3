"""The action of `llmirage size`: print or write what an operation of sizing finds."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from typing import Any

import click

from llmirage_client.commands.actions.output import open_page
from llmirage_client.operations import size as operation
from llmirage_client.operations.size import SizeSettings
from llmirage_client.report.atomic_files import unused_folder
from llmirage_client.report.screen import print_blocks
from llmirage_client.simulate.garbage import own_process
from llmirage_client.simulator.cluster_settings import ShapelessClusterSettings
from llmirage_client.size.page import page_of
from llmirage_shared.settings import InputRefused, instance_of


def size(workload: str | None, json: bool, html: str | None, open: bool, **given: Any) -> None:
    """Run `llmirage size`."""
    own_process()
    report = operation.size(workload, instance_of(SizeSettings, given, cluster=ShapelessClusterSettings.of(given)))
    if html is not None or open:
        try:
            page = Path(html) if html else unused_folder("size") / "size.html"
            page.write_text(page_of(report), encoding="utf-8")
        except OSError as error:
            raise InputRefused(
                [f"--html {html}: {error.strerror}" if html else f"artifacts: {error.strerror}"], "size"
            ) from None
        if open:
            click.echo(f"HTML report written to {page}.", err=True)
            open_page(page)
    if json:
        click.echo(dumps(report.json()))
    else:
        print_blocks(report.blocks())
    sys.exit(0 if report.answered else 1)
