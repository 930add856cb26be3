"""The programs of the pages, played in this process: the API behind its app, virtual time, no port and no network."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from click.testing import CliRunner

from llmirage_client import cli
from llmirage_client.commands.actions import run as run_action
from llmirage_client.load.runner import run_on_best_loop
from llmirage_client.operations import execute_points, one_run
from llmirage_client.simulator.memory import MemoryTransport
from llmirage_client.targets import endpoint
from llmirage_client.targets.http import HttpTarget
from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.commands import http_server
from llmirage_server.commands.banner import banner, machine_cost
from llmirage_server.config import ClusterConfig
from llmirage_shared.virtual_time import run


class Machine:
    """One user's machine: a working directory, and the server that `llmirage serve` started last, or its default."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        self._config = ClusterConfig()
        self._app: LlmirageApp | None = None
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr("webbrowser.open", lambda url: True)
        monkeypatch.setattr(http_server, "_serve", self._serve)
        for module in (run_action, execute_points):
            monkeypatch.setattr(module, "run_on_best_loop", self._run)
        monkeypatch.setattr(one_run, "put_loop_first", lambda: None)
        monkeypatch.setattr(endpoint, "HttpTarget", self._target)
        for library in (httpx, httpx2):
            monkeypatch.setattr(library.HTTPTransport, "handle_request", self._answers(library))

    def command(self, words: list[str]) -> tuple[int, str]:
        """Exit status and what a terminal would have shown of `llmirage WORDS`."""
        done = CliRunner().invoke(cli.main, words)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output

    def python(self, text: str, name: str) -> None:
        """Run the program, which starts the server that it asks. name: of the file that tracebacks show."""
        with self._monkeypatch.context() as own:
            own.setattr(execute_points, "run_on_best_loop", run_on_best_loop)
            exec(compile(text, name, "exec"), {"__name__": "__main__"})

    def _serve(self, config: ClusterConfig, listening: http_server.Listening, tls: tuple[str, str] | None) -> int:
        with closing(create_app(config)) as app:
            print(banner(app, f"http://{listening.host}:{listening.port}", machine_cost()))
        self._config = config
        return 0

    def _run(self, main: Any) -> Any:
        self._app = create_app(replace(self._config, accept_models="any"))  # the pages' endpoints serve what they name
        with closing(self._app):
            return run(main())

    def _target(self, *arguments: Any, **named: Any) -> HttpTarget:
        if self._app is None:  # a Python program asks the server that it has started itself
            return HttpTarget(*arguments, **named)
        return HttpTarget(*arguments, **{**named, "transport": MemoryTransport(self._app)})

    def _answers(self, library: Any) -> Any:
        """What a client without asyncio calls for a request; each has a loop and a server of its own."""

        def handle_request(_: Any, request: Any) -> Any:
            async def ask() -> Any:
                with closing(create_app(self._config)) as app:
                    response = await MemoryTransport(app).handle_async_request(request)
                    return library.Response(response.status_code, headers=response.headers, content=await response.aread())

            return run(ask())

        return handle_request
