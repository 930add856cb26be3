"""The actions of `llmirage record`: the recording proxy on a port, and files of other tools as recordings."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from json import dumps, loads
from pathlib import Path
from typing import Any

import click
import yaml
from starlette.responses import Response
from starlette.routing import Route

from llmirage_server.anthropic.messages import MessagesExchange
from llmirage_server.commands.http_server import LiveServer, PortInUseError, base_url, bind, connection_limits
from llmirage_server.config import ConfigError
from llmirage_server.http.application import LazyRoutes
from llmirage_server.http.byte_budget import ByteBudget
from llmirage_server.http.exchange import EndpointApp, HttpExchange
from llmirage_server.http.relay import ForwardedRequest, Upstream
from llmirage_server.proxy.recorder import ExchangeRecorder
from llmirage_server.proxy.upstream import HttpUpstream
from llmirage_server.replies.recordings.foreign import (
    Exchanged,
    ForeignFileError,
    exchanges_of_cassette,
    exchanges_of_lines,
    recording_of,
)
from llmirage_server.replies.recordings.recording import Recording
from llmirage_server.replies.recordings.store import RecordingWriter
from llmirage_server.telemetry.traces.workload import WorkloadWriter
from llmirage_shared.wire import errors
from llmirage_shared.yaml_lines import read_plain

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


class RecordingProxy(LazyRoutes):
    """Passes everything on; `stop` ends what is under way, so that it is recorded as far as it came."""

    def __init__(self, upstream: Upstream, recorder: ExchangeRecorder) -> None:
        self._upstream = upstream
        self._recorder = recorder
        self._open: set[Any] = set()
        app = partial(EndpointApp, dict.fromkeys(_METHODS, self._forward))
        messages = Route("/v1/messages{rest:path}", app(exchange=MessagesExchange))
        self.unread = ByteBudget()
        super().__init__(lambda: [messages], app(), lambda: _life(self), self.unread)

    def stop(self) -> None:
        for response in list(self._open):
            response.abort(errors.shutting_down())

    async def close(self) -> None:
        """Wait until everything is written."""
        self._recorder.close()
        await self._upstream.close()

    async def _forward(self, exchange: HttpExchange) -> Response:
        if exchange.headers.get(b"upgrade", b"").lower() == b"websocket":
            raise errors.no_websocket()  # exchanges are recorded over HTTP
        with_body = exchange.scope["method"] in ("POST", "PUT", "PATCH")
        body = await (exchange.full_body() if with_body else exchange.body_of_any_type())
        request = ForwardedRequest.of(exchange, body)
        return await self._upstream.answer(request, self._recorder.tap(request), self._open)


@contextlib.asynccontextmanager
async def _life(app: RecordingProxy) -> AsyncIterator[None]:
    yield
    await app.close()


def record(
    upstream: str | None,
    out: str | None,
    record_workload: str | None,
    host: str,
    port: int,
    json: bool,
    upstream_key: str | None,
) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigError."""
    wanted = (("--upstream", upstream), ("--out", out or record_workload))
    if upstream is None or not (out or record_workload):
        raise ConfigError([f"{name} is missing" for name, value in wanted if value is None])
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        writer = None if out is None else RecordingWriter(Path(out))
    except OSError as error:
        raise ConfigError([f"--out {out}: {error.strerror or error}"]) from None
    try:
        bound = bind(host, port)
    except PortInUseError as error:
        click.echo(f"llmirage record: {error}", err=True)
        sys.exit(1)
    with bound:
        workload = None if record_workload is None else WorkloadWriter(Path(record_workload))
        secrets = () if upstream_key is None else (upstream_key,)
        recorder = ExchangeRecorder(writer, secrets, _tell_json if json else _tell, workload)
        proxy = RecordingProxy(HttpUpstream(upstream, upstream_key), recorder)
        folder = None if writer is None else str(writer.folder)
        told = f"llmirage records {upstream} in {folder or record_workload}\n\n  {base_url(bound)}/v1\n\nCtrl-C ends it."
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


def convert(files: Sequence[str], out: str, format: str, json: bool) -> None:
    """Write the script of these files. Raises ConfigError with their problems; then nothing is written."""
    problems: list[str] = []
    found: list[Exchanged] = []
    lines: list[tuple[str, Any]] = []
    for name in files:
        try:
            kind, document = _read(Path(name), format)
            if kind == "vcr":
                found += exchanges_of_cassette(document)
            else:
                lines += document
        except (ForeignFileError, OSError) as error:
            problems.append(f"{name}: {getattr(error, 'strerror', None) or error}")
    try:
        found += exchanges_of_lines(lines)
    except ForeignFileError as error:
        problems.append(str(error))
    if problems:
        raise ConfigError(problems)
    if not found:
        raise ConfigError(["no exchange with chat, completions, responses, messages or embeddings is in these files"])
    _write(found, out, json)


def _write(found: Iterable[Exchanged], out: str, json: bool) -> None:
    try:
        writer = RecordingWriter(Path(out))
        written = [writer.write(recording_of(exchange)) for exchange in found]
    except OSError as error:
        raise ConfigError([f"{out}: {error.strerror or error}"]) from None
    if json:
        click.echo(dumps({"folder": out, "recordings": [path.name for path in written]}))
        return
    click.echo(f"{len(written)} {'recordings are' if len(written) > 1 else 'recording is'} in {out}")


def _read(path: Path, format: str) -> tuple[str, Any]:
    """Return the format of a file and its content: of `pairs` the lines, each with its place."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if format == "pairs" or (format == "auto" and path.suffix == ".jsonl"):
        return "pairs", list(_lines(path, text))
    try:
        document = read_plain(text)
    except yaml.YAMLError as error:
        raise ForeignFileError(f"is not YAML: {' '.join(str(error).split())}") from None
    if isinstance(document, dict) and isinstance(document.get("interactions"), list):
        return "vcr", document
    if isinstance(document, dict) and isinstance(document.get("fixtures"), list):
        raise ForeignFileError("has aimock's fixtures, which become a script: llmirage script convert")
    raise ForeignFileError("is no cassette (YAML with interactions); pairs of requests and responses are a .jsonl file")


def _lines(path: Path, text: str) -> Iterable[tuple[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield f"{path}:{number}", loads(line)
            except ValueError as error:
                raise ForeignFileError(f"line {number} is not JSON: {error}") from None
