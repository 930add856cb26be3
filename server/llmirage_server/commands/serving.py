"""What `llmirage serve` does: flags and a cluster file become a configuration, the configuration a server."""

from __future__ import annotations

import gc
import logging
import sys
from typing import Any

import click

from llmirage_server.app import create_app
from llmirage_server.commands.banner import banner, farewell
from llmirage_server.commands.http_server import LiveServer, PortInUseError, base_url, bind
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.file import make_config


def serve(cluster_file: str | None, host: str, port: int, access_log: bool, **flags: Any) -> None:
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        config = make_config(cluster_file, flags)
        sys.exit(_serve(config, host, port, access_log))
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"llmirage serve: {problem}", err=True)
        sys.exit(2)


def _serve(config: ClusterConfig, host: str, port: int, access_log: bool) -> int:
    try:
        bound = bind(host, port)  # first of all, so that a port in use is told at once
    except PortInUseError as error:
        click.echo(f"llmirage serve: {error}", err=True)
        return 1
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
