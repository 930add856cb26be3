"""`llmirage record`: the recording proxy on a port."""

from __future__ import annotations

import logging
import sys
from json import dumps
from pathlib import Path

import click

from llmirage_server.commands.http_server import LiveServer, PortInUseError, base_url, bind, connection_limits
from llmirage_server.config import ConfigError
from llmirage_server.proxy.recorder import ExchangeRecorder
from llmirage_server.proxy.recording_proxy import RecordingProxy
from llmirage_server.proxy.upstream import HttpUpstream
from llmirage_server.replies.recordings.recording import Recording
from llmirage_server.replies.recordings.store import RecordingWriter


def record(upstream: str | None, out: str | None, host: str, port: int, json: bool, upstream_key: str | None) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigError."""
    if upstream is None or out is None:
        raise ConfigError(
            [f"{name} is missing" for name, value in (("--upstream", upstream), ("--out", out)) if value is None]
        )
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        writer = RecordingWriter(Path(out))
    except OSError as error:
        raise ConfigError([f"--out {out}: {error.strerror or error}"]) from None
    try:
        bound = bind(host, port)
    except PortInUseError as error:
        click.echo(f"llmirage record: {error}", err=True)
        sys.exit(1)
    with bound:
        recorder = ExchangeRecorder(writer, () if upstream_key is None else (upstream_key,), _tell_json if json else _tell)
        proxy = RecordingProxy(HttpUpstream(upstream, upstream_key), recorder)
        folder = str(writer.folder)
        told = f"llmirage records {upstream} in {folder}\n\n  {base_url(bound)}/v1\n\nCtrl-C ends it."
        if json:
            told = dumps({"url": f"{base_url(bound)}/v1", "upstream": upstream, "folder": folder})
        server = LiveServer(proxy, proxy.stop, lambda: click.echo(told), limits=connection_limits(None, unread=proxy.unread))
        # A response that the upstream broke off is broken off here, too, which uvicorn would log as an error.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        server.run(sockets=[bound])


def _tell_json(recording: Recording) -> None:
    told = {"file": f"{recording.name}.yaml", "method": recording.method, "path": recording.path}
    click.echo(dumps(told | {"status": recording.status, "stream": recording.stream, "ended": recording.ended}))


def _tell(recording: Recording) -> None:
    at_s = recording.chunks[-1].at_ms / 1000 if recording.chunks else 0.0
    ended = f" ({recording.ended})" if recording.ended is not None else ""
    click.echo(f"{recording.status} {recording.path.partition('?')[0]} {at_s:.2f} s{ended}: {recording.name}.yaml")
