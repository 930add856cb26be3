"""One `llmirage run`: load the workload, look at the endpoint, run, write the files, print the report."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from llmirage_client.commands.run_flags import artifact_directory, headers, run_options
from llmirage_client.load.heartbeat import Heartbeat
from llmirage_client.load.options import RunOptions
from llmirage_client.load.runner import Runner
from llmirage_client.load.token_calls import prompt_as_ids, short_prompts
from llmirage_client.measure.record import RunResult
from llmirage_client.report.progress import Progress
from llmirage_client.report.records_file import RecordWriter, RunClock
from llmirage_client.targets.http import HttpTarget
from llmirage_client.targets.probe import EndpointInfo, probe
from llmirage_client.workload.registry import load
from llmirage_client.workload.session import Workload, WorkloadError

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def run_session(**flags: Any) -> int:
    """The exit status. Raises click.UsageError for flags that cannot be used."""
    try:
        workload = load(flags["file"], flags["format"])
        options = run_options(workload, flags)
        target = _target(flags)
        with _event_loop() as runner:
            session = runner.run(_run(workload, options, target, flags))
    except WorkloadError as error:
        click.echo(error, err=True)
        return 2
    return _report(*session)


def _target(flags: Mapping[str, Any]) -> HttpTarget:
    try:
        return HttpTarget(
            flags["url"], flags["api_key"], headers(flags["headers"]), timeout_s=flags["request_timeout_seconds"]
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _event_loop() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _run(
    workload: Workload, options: RunOptions, target: HttpTarget, flags: Mapping[str, Any]
) -> tuple[RunResult, Path, RecordWriter]:
    options, notes = await _with_endpoint(workload, options, target)
    _refuse_short_prompts(workload, options)
    shown_model = options.model or _first_model(workload)
    directory = Path(flags["artifact_dir"] or artifact_directory(options, shown_model))
    try:
        writer = RecordWriter(directory, RunClock(target.now(), time.time(), options.speed))
    except OSError as error:
        raise click.UsageError(f"cannot write to --artifact-dir {directory}: {error.strerror}") from None
    progress = Progress(_total_requests(workload, options))
    runner = Runner(workload, options, target, progress, writer.write)
    progress.start()
    try:
        async with Heartbeat(runner.show_progress) as heartbeat:
            with _interrupts(runner.cancel):
                result = await runner.run()
    finally:
        progress.stop()
        await target.close()
    result.url, result.model = target.base_url, shown_model
    result.options = {name: value for name, value in flags.items() if value not in (None, (), "")}
    result.client_lag_s, result.client_cpu_s = tuple(heartbeat.lag_s), heartbeat.cpu_s
    result.notes += notes
    return result, directory, writer


async def _with_endpoint(workload: Workload, options: RunOptions, target: HttpTarget) -> tuple[RunOptions, list[str]]:
    """The options completed by what the endpoint says of itself, which is asked only where it matters."""
    turns = [turn for session in workload.sessions.values() for turn in session.turns]
    needs_model = not options.model and any(turn.payload is None and turn.model is None for turn in turns)
    has_tokens = any(turn.tokens is not None for turn in turns)
    notes = []
    if options.extra_inputs and any(turn.payload is not None for turn in turns):
        notes.append("Payloads of the file were sent as they are: --extra-inputs does not apply to them.")
    if needs_model or has_tokens:
        info = await probe(target)
        options = dataclasses.replace(options, endpoint_kind=info.kind)
        if needs_model:
            options = dataclasses.replace(options, model=_only_model(info, target.base_url))
    written = any(turn.tokens is not None and not prompt_as_ids(turn.tokens, options) for turn in turns)
    if written and not options.counts_prompts:
        notes.append(
            "Prompts were written and counted with the embedded tokenizer, so the endpoint's own counts differ from the "
            "file's: give the model's with --tokenizer."
        )
    if has_tokens and not options.takes_token_ids:
        notes.append("Replies may be shorter than the file says: this endpoint is not known to accept ignore_eos.")
    return options, notes


def _only_model(info: EndpointInfo, url: str) -> str:
    if len(info.models) == 1:
        return info.models[0]
    if info.models:
        raise click.UsageError(f"{url} serves several models ({', '.join(info.models)}): choose one with --model")
    if info.error is None or info.error.startswith("HTTP"):
        why = f" ({info.error})" if info.error else ""
        raise click.UsageError(f"{url} does not list its models{why}: name one with --model")
    click.echo(f"{url} does not answer ({info.error}); the run goes on and records what becomes of each request.", err=True)
    return "unknown"


def _refuse_short_prompts(workload: Workload, options: RunOptions) -> None:
    from llmirage_shared.tokens import TokenizerError

    try:
        problems = short_prompts(workload, options)
    except TokenizerError as error:
        raise click.UsageError(str(error)) from None
    if problems:
        raise WorkloadError(workload.path, problems)


def _first_model(workload: Workload) -> str:
    turns = (turn for session in workload.sessions.values() for turn in session.turns)
    models = (turn.model or (turn.payload or {}).get("model") for turn in turns)
    return next((str(model) for model in models if model), "")


def _total_requests(workload: Workload, options: RunOptions) -> int | None:
    """How many requests the run will make, where that is plain."""
    from llmirage_client.workload.summary import summarise

    cap = options.request_count
    if options.benchmark_duration_s is not None:
        return None
    if options.num_conversations is None and cap is not None and not options.fixed_schedule:
        return cap + options.warmup_request_count
    laps, rest = divmod(options.num_conversations or len(workload.roots), len(workload.roots))
    total = laps * summarise(workload, with_reuse=False).requests
    if rest:
        part = dataclasses.replace(workload, roots=workload.roots[:rest])
        total += summarise(part, with_reuse=False).requests
    return min(total, cap or total) + options.warmup_request_count


@contextlib.contextmanager
def _interrupts(cancel: Callable[[str], None]) -> Iterator[None]:
    """The first Ctrl-C, or a polite kill, ends the run and keeps its report; the second ends the process at once."""
    loop = asyncio.get_running_loop()
    interrupted = False

    def interrupt(name: str) -> None:
        nonlocal interrupted
        if interrupted:
            os._exit(INTERRUPTED)  # every finished request is in the records file already
        interrupted = True
        click.echo(f"\n{name}: stopping; what has finished will be reported. Once more ends at once.", err=True)
        cancel(f"interrupted by {name}")

    signals = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
    for number, name in signals.items():
        loop.add_signal_handler(number, interrupt, name)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _report(result: RunResult, directory: Path, writer: RecordWriter) -> int:
    from llmirage_client.measure.metrics import compute
    from llmirage_client.report.console import render
    from llmirage_client.report.files import write_artifacts

    metrics = compute(result)
    files: list[Path] = []
    status = 0 if all(record.ok for record in result.records) else 1
    try:
        files = write_artifacts(result, directory, metrics=metrics, records=writer)
    except OSError as error:
        click.echo(f"cannot write the report's files to {directory}: {error.strerror or error}", err=True)
        status = 1
    sys.stdout.flush()
    render(result, metrics=metrics, files=files)
    if result.cancel_reason and result.cancel_reason.startswith("interrupted"):
        return INTERRUPTED
    return 1 if result.cancelled else status
