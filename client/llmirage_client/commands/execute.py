"""Carries a run out: asks the endpoint what it is, runs the workload, writes the files, prints the report."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import itertools
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from llmirage_client.load.heartbeat import Heartbeat
from llmirage_client.load.options import RunOptions
from llmirage_client.load.runner import Runner
from llmirage_client.load.token_calls import PromptTooShortError, short_prompts
from llmirage_client.measure.metrics import compute
from llmirage_client.measure.record import RunResult
from llmirage_client.report.console import render
from llmirage_client.report.files import write_artifacts
from llmirage_client.report.progress import Progress
from llmirage_client.report.records_file import RecordWriter, RunClock
from llmirage_client.targets.endpoint import Endpoint
from llmirage_client.targets.http import HttpTarget, probe
from llmirage_client.workload.session import Workload, WorkloadError
from llmirage_client.workload.summary import requests_by_root
from llmirage_shared.chat_template import ChatTemplateError
from llmirage_shared.tokens import TokenizerError

INTERRUPTED = 130  # what shells report for Ctrl-C
_CTRL_C = "Ctrl-C"
_CONTENT_ERRORS = (TokenizerError, ChatTemplateError, PromptTooShortError)


class RefusedError(Exception):
    """The run cannot start as it was asked for; the message is for the user."""


def execute(
    workload: Workload, options: RunOptions, endpoint: Endpoint, artifact_dir: str | None, shown: Mapping[str, Any]
) -> int:
    """Return the exit status. shown: the settings as the user knows them, for the report and the files."""
    run = _Run(workload, options, endpoint, artifact_dir, shown)
    try:
        result = _on_best_loop(run)
    except RefusedError as error:
        click.echo(error, err=True)
        return 2
    assert run.records is not None
    measured = compute(result)
    files: list[Path] = []
    try:
        files = write_artifacts(result, run.folder, metrics=measured, records=run.records)
    except OSError as error:
        result.notes.append(f"The files could not be written: {error}")
    render(result, metrics=measured, files=files)
    if result.cancel_reason == _CTRL_C:
        return INTERRUPTED
    # What the end of --benchmark-duration cut off did not fail.
    failed = any(not record.ok and not record.cancelled for record in result.records)
    succeeded = any(record.ok for record in result.records)
    return 0 if succeeded and not failed and files and not result.cancelled else 1


def _spare_the_collector() -> None:
    """Keep the cycle collector from walking the workload and all records again and again: up to 7 % of the run's CPU."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _on_best_loop(run: _Run) -> RunResult:
    try:
        import uvloop
    except ImportError:  # not made for every platform
        return asyncio.run(run())
    return uvloop.run(run())


class _Run:
    """One run from the first question to the endpoint to the last record. folder and records are known once it is called."""

    def __init__(
        self, workload: Workload, options: RunOptions, endpoint: Endpoint, artifact_dir: str | None, shown: Mapping[str, Any]
    ) -> None:
        self.folder = Path(artifact_dir or "")
        self.records: RecordWriter | None = None
        self._workload = workload
        self._options = options
        self._endpoint = endpoint
        self._artifact_dir = artifact_dir
        self._shown = shown
        self._notes: list[str] = []
        if any(session.mode == "verbatim" for session in workload.sessions.values()) and (
            options.extra_inputs or options.model
        ):
            self._notes.append(
                "The file's request bodies are sent as they are: --model and --extra-inputs do not change them."
            )

    async def __call__(self) -> RunResult:
        endpoint = self._endpoint
        try:
            target = endpoint.target()
        except ValueError as error:
            raise RefusedError(str(error)) from None
        try:
            self._options = await self._know_endpoint(target)
            self._check_prompts()
            self._open_records(target)
            return await self._send(target)
        finally:
            await target.close()

    async def _know_endpoint(self, target: HttpTarget) -> RunOptions:
        """Fill in what only the endpoint can say. It is asked only if that matters."""
        options = self._options
        sessions = self._workload.sessions.values()
        needs_model = not options.model and any(
            turn.model is None and turn.payload is None for session in sessions for turn in session.turns
        )
        by_tokens = any(
            session.mode == "tokens" or any(turn.min_tokens is not None for turn in session.turns) for session in sessions
        )
        written = options.tokenizer is None and any(turn.synthetic for session in sessions for turn in session.turns)
        if not needs_model and not by_tokens and not written:
            return options
        info = await probe(target)
        if written and info.kind != "llmirage":
            self._notes.append(
                "Messages given by their length have it in the tokenizer of this package; --tokenizer names the endpoint's."
            )
        if needs_model and len(info.models) > 1 and info.kind != "llmirage":
            raise RefusedError(f"{self._endpoint.url} serves several models, give one by --model: {', '.join(info.models)}")
        model = options.model
        if needs_model:
            model = info.models[0] if info.models else "default"
            if not info.models:
                reason = info.error or "it is empty"
                self._notes.append(
                    f"No model was given and the endpoint's list of models did not help ({reason}): 'default' it is."
                )
        return dataclasses.replace(options, model=model, endpoint_kind=info.kind)

    def _check_prompts(self) -> None:
        """Refuse what would fail on the way because no prompt can be written for it."""
        try:
            problems = short_prompts(self._workload, self._options)
        except _CONTENT_ERRORS as error:
            raise RefusedError(str(error)) from None
        if problems:
            raise RefusedError(str(WorkloadError(self._workload.path, problems)))

    def _open_records(self, target: HttpTarget) -> None:
        if self._artifact_dir is None:
            self.folder = Path("artifacts") / _folder_name(self._model_shown(), self._options)
        try:
            self.records = RecordWriter(self.folder, RunClock(target.now(), time.time(), self._options.speed))
        except OSError as error:
            raise RefusedError(f"--artifact-dir {self.folder}: {error.strerror or error}") from None

    async def _send(self, target: HttpTarget) -> RunResult:
        assert self.records is not None
        progress = Progress(_expected_requests(self._workload, self._options))
        runner = Runner(self._workload, self._options, target, progress, self.records.write)
        restore_signals = self._heed_signals(runner)
        progress.start()
        _spare_the_collector()
        try:
            async with Heartbeat(runner.show_progress) as heartbeat:
                result = await runner.run()
        except ExceptionGroup as group:
            expected, others = group.split(_CONTENT_ERRORS)
            if expected is None or others is not None:
                raise
            raise RefusedError(f"The run was stopped: {_first_of(expected)}") from None
        finally:
            progress.stop()
            restore_signals()
        return dataclasses.replace(
            result,
            url=self._endpoint.url,
            model=self._model_shown(),
            options=self._shown,
            client_cpu_s=heartbeat.cpu_s,
            client_lag_s=tuple(heartbeat.lag_s),
            notes=[*self._notes, *result.notes],
        )

    def _heed_signals(self, runner: Runner) -> Any:
        """The first Ctrl-C (or SIGTERM) ends the run and lets it be reported; the second ends the process."""
        loop = asyncio.get_running_loop()
        seen = 0

        def stop() -> None:
            nonlocal seen
            seen += 1
            if seen > 1:
                os._exit(INTERRUPTED)  # every finished record is in its file already
            click.echo("\nStopping; the report of what finished follows. Ctrl-C again ends at once.", err=True)
            runner.cancel(_CTRL_C)

        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, stop)
        return lambda: [loop.remove_signal_handler(number) for number in numbers]

    def _model_shown(self) -> str:
        """The model of the command line or the endpoint, else those that the file names."""
        if self._options.model:
            return self._options.model
        turns = [turn for session in self._workload.sessions.values() for turn in session.turns]
        names = [turn.model or (turn.payload or {}).get("model") for turn in turns]
        return ", ".join(dict.fromkeys(str(name) for name in names if name)) or "unnamed"


def _first_of(group: BaseExceptionGroup[Exception]) -> Exception:
    """The first exception that is no group itself: conversations nest, and so do the groups of their errors."""
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


def _expected_requests(workload: Workload, options: RunOptions) -> int | None:
    """How many requests the run will send if nothing fails; None when only time limits it."""
    count = options.num_conversations
    if count is None and options.request_count is None and options.benchmark_duration_s is not None:
        return None
    by_root = list(requests_by_root(workload).values())
    once = by_root[: len(by_root) - workload.skipped]
    expected = sum(once) if count is None else sum(itertools.islice(itertools.cycle(by_root), count))
    if options.request_count is not None:
        return options.request_count if count is None else min(options.request_count, expected)
    return expected


def _folder_name(model: str, options: RunOptions) -> str:
    if options.fixed_schedule:
        load = "fixed_schedule"
    elif options.request_rate_per_s is not None:
        load = f"request_rate{options.request_rate_per_s:g}"
    else:
        load = f"concurrency{options.concurrency}"
    name = re.sub(r"[^\w.-]+", "_", model)
    return f"{name}-openai-{options.endpoint_type or 'chat'}-{load}"
