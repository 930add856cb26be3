"""`llmirage serve`: flags and a cluster file become a configuration, the configuration a server."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Sequence
from typing import Any

import click

from llmirage_server.commands.options import GroupedCommand, setting_options
from llmirage_server.config import ClusterConfig, ConfigError


@click.command(cls=GroupedCommand, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--cluster",
    "cluster_file",
    metavar="FILE",
    help="YAML file with settings (max_num_seqs: 64) and pools, or bundled:NAME; flags win (docs/cluster-files.md).",
)
@setting_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", "-p", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes any free port.")
@click.option("--access-log", is_flag=True, help="Log each request.")
def serve(cluster_file: str | None, host: str, port: int, access_log: bool, **flags: Any) -> None:
    """Start the fake cluster behind an OpenAI-compatible API.

    Without arguments: Qwen3-30B-A3B on two instances of one H100 each, at the speed those would have.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    from llmirage_server.config.file import make_config

    try:
        config = make_config(cluster_file, flags)
        sys.exit(_serve(config, host, port, access_log))
    except ConfigError as error:
        _refuse(error.problems)


def _serve(config: ClusterConfig, host: str, port: int, access_log: bool) -> int:
    from llmirage_server.commands.http_server import PortInUseError, bind

    try:
        bound = bind(host, port)  # first of all, so that a port in use is told at once
    except PortInUseError as error:
        click.echo(f"llmirage serve: {error}", err=True)
        return 1
    from llmirage_server.app import create_app
    from llmirage_server.commands.banner import banner, farewell
    from llmirage_server.commands.http_server import LiveServer, base_url

    with bound:
        app = create_app(config)
        if config.tokenizer is not None:
            app.service.text.load()  # a tokenizer that cannot be loaded is a configuration error, told before the start
        if access_log:
            logging.getLogger("uvicorn.access").setLevel(logging.INFO)
        # Fewer collections: what requests leave behind is small, and each pass costs time that tokens wait.
        gc.set_threshold(20_000, 20, 50)
        server = LiveServer(app, lambda: click.echo(banner(app, base_url(bound))), access_log)
        server.run(sockets=[bound])
    if summary := farewell(app.driver.pacing.summary()):
        click.echo(summary)
    return 0


def _refuse(problems: Sequence[str]) -> None:
    for problem in problems:
        click.echo(f"llmirage serve: {problem}", err=True)
    sys.exit(2)
