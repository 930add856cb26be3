"""`llmirage demo`: a server, two workloads, two reports, in about a minute; every command it runs can be typed by hand."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from json import dumps, loads

import click

from llmirage_client.report.screen import shows_wide_tables
from llmirage_shared.command_line import OPTIONS, command, options
from llmirage_shared.settings import setting, switch

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def shown_command(*arguments: str, json: bool) -> list[str]:
    """Show the command as a user would type it and return it as this interpreter runs it. json: show it elsewhere."""
    click.secho(f"\n$ llmirage {shlex.join(arguments)}", bold=True, err=json)
    return [sys.executable, "-m", "llmirage", *arguments]


def wait_until_healthy(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers. Raises click.ClickException."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise click.ClickException(f"the server ended with status {server.returncode} before it answered")
        try:
            # It generates a token: what is slow only the first time is over when the report begins.
            with urllib.request.urlopen(f"{url}/health_generate", timeout=5.0):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise click.ClickException(f"the server did not answer {url}/health_generate within {START_TIMEOUT_S:.0f} s")


@contextlib.contextmanager
def running_server(port: int, speed: int, json: bool) -> Iterator[str]:
    """Run a server of its own process; yield its URL."""
    command = shown_command("serve", "--port", str(port), "--speed", str(speed), json=json)
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL if json else None)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(url, server)
        yield url
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()


def run_demo(port: int | None, speed: int, sessions: int, json: bool) -> None:
    """Run `llmirage demo`."""
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"  # its server is on this machine
    statuses, results = [], []
    more, caught = (["--json"], subprocess.PIPE) if json else (["--wide"] * shows_wide_tables(), None)
    with running_server(port or free_port(), speed, json) as url:
        for workload in (["bundled:dag-example"], ["bundled:coding-agent", "--num-conversations", str(sessions)]):
            arguments = shown_command("run", *workload, "--url", url, "--speed", str(speed), *more, json=json)
            done = subprocess.run(arguments, check=False, stdout=caught)
            statuses.append(done.returncode)
            if done.stdout:
                results.append({"workload": workload[0], **loads(done.stdout)})
    if json:
        click.echo(dumps({"runs": results}))
    if any(statuses):
        raise click.ClickException("a run failed; its report above says how")
    if json:
        return
    name = "llmirage" if shutil.which("llmirage") else os.path.relpath(sys.argv[0])  # not on the path: as it was called
    click.echo(
        f"\nTry next: `{name} serve` in one terminal, `{name} run bundled:coding-agent --url localhost:8000` in another;"
        f" `{name} report artifacts/latest --open` shows the last run; `{name} catalog workloads` lists workloads."
    )


class DemoSettings:
    """Settings of `llmirage demo`."""

    port: int | None = setting(None, OPTIONS, "Port of the demo server.", unset="any free port")
    speed: int = setting(5, OPTIONS, "Run the cluster N times faster than real time.", least=1, most=100)
    json: bool = switch(OPTIONS, "Print only the results of both runs, as JSON.")
    sessions: int = setting(6, OPTIONS, "Number of coding-agent sessions.", least=1, most=50)


demo = command(
    "demo",
    "llmirage_client.commands.demo:run_demo",
    options(DemoSettings),
    """Start a simulated cluster of two instances, run two workloads against it and print their reports.

    The first workload is a conversation that forks into two branches; the second is coding agents that run tools between
    their requests. The reports are in the time of the simulated cluster, not of this machine.
    """,
    examples=("llmirage demo", "llmirage demo --speed 20 --sessions 2"),
)
