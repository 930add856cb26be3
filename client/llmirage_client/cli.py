"""The root command. It imports a command's module only when that command is called, so that --help stays instant."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from llmirage_shared import compiled

INTERRUPTED = 130  # what shells report for Ctrl-C


@contextlib.contextmanager
def errors_as_messages() -> Iterator[None]:
    """Turn Ctrl-C and I/O errors that a command does not handle itself into a message and an exit status."""
    _open_missing_streams()
    try:
        yield
        sys.stdout.flush()  # here, where a full disk can still be reported
    except KeyboardInterrupt:
        click.echo("\nInterrupted.", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader closed the pipe, as `| head` does: click exits without a message
            raise
        click.echo(f"llmirage: {error.filename or 'output'}: {error.strerror or error}", err=True)
        _discard_output()
        raise click.exceptions.Exit(1) from None


@contextlib.contextmanager
def red_errors() -> Iterator[None]:
    """Show what click refuses in red on a terminal with colours; elsewhere click shows it."""
    try:
        yield
    except click.ClickException as error:
        if not _has_colours():
            raise
        shown = io.StringIO()
        error.show(shown)
        usage, _, message = shown.getvalue().partition("Error: ")
        click.echo(usage + (click.style(f"Error: {message}", fg="red") if message else ""), err=True, nl=False, color=True)
        raise click.exceptions.Exit(error.exit_code) from None


def _has_colours() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and not _without_colours()


def _without_colours() -> bool:
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def _open_missing_streams() -> None:
    """Discard the output of standard streams that were closed before the start (`>&-`)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # until the process ends


def _discard_output() -> None:
    """Discard buffered output that cannot be written; Python would fail again when it flushes at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


COMMANDS = {
    "serve": ("llmirage_server.commands.serve:serve", "Start a simulated cluster behind an OpenAI-compatible API."),
    "script": ("llmirage_server.commands.script:script", "Check scripts of replies, or begin one."),
    "run": ("llmirage_client.commands.run:run", "Run a workload against an endpoint and report the metrics."),
    "check": ("llmirage_client.commands.workload_files:check", "Validate a workload file without sending anything."),
    "inspect": (
        "llmirage_client.commands.workload_files:inspect",
        "Show statistics of a workload: lengths, turns, arrivals, prefix reuse.",
    ),
    "convert": ("llmirage_client.commands.workload_files:convert", "Write a workload file in another format."),
    "tokenizer": ("llmirage_client.commands.workload_files:tokenizer", "Write the built-in tokenizer as a folder."),
    "generate": (
        "llmirage_client.commands.workload_files:generate",
        "Write a synthetic workload: chat, rag, agents, batch.",
    ),
    "demo": ("llmirage_client.commands.demo:demo", "Start a server, run two workloads against it and print the reports."),
    "simulate": ("llmirage_client.commands.studies:simulate", "Run a workload on a simulated cluster, in virtual time."),
    "sweep": ("llmirage_client.commands.studies:sweep", "Simulate a grid of clusters and loads, and compare them."),
    "size": ("llmirage_client.commands.studies:size", "Find the cheapest deployment that meets latency objectives."),
    "calibrate": ("llmirage_client.commands.studies:calibrate", "Fit an engine profile to measured runs."),
    "report": ("llmirage_client.commands.finished_runs:report", "Write an HTML report of one run or several."),
    "compare": ("llmirage_client.commands.finished_runs:compare", "Compare runs, with confidence intervals."),
    "faults": ("llmirage_server.commands.faults:faults", "List the faults that a server can be told to make."),
    "verdict": (
        "llmirage_client.commands.finished_runs:verdict",
        "Judge the clients of a running server: retries, connections.",
    ),
    "verify-client": (
        "llmirage_client.commands.finished_runs:verify_client",
        "Say how far a load client's times are off, by a server's stamps.",
    ),
    "route-score": (
        "llmirage_client.commands.studies:route_score",
        "Compare an outside router's run with llmirage's own routers.",
    ),
    "record": ("llmirage_server.commands.record:record", "Record what a server answers, for `serve --replay`."),
    "step": ("llmirage_server.commands.step:step", "Explain one forward pass of a model on a GPU, operation by operation."),
    "catalog": (
        "llmirage_client.commands.catalog:catalog",
        "List built-in workloads, clusters, GPUs, models, formats, settings.",
    ),
}


_WIDE = "--wide"
EXAMPLES = ("llmirage demo", "llmirage serve --model Qwen/Qwen3-32B --gpu h100_sxm", "llmirage run --help")


class LazyGroup(click.Group):
    """A group whose commands are found by name and loaded on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if said := compiled.complaint():
            raise click.UsageError(said)
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with red_errors():
            context = super().make_context(*args, **kwargs)
        if _without_colours():
            context.color = False
        return context

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if _WIDE in args:  # it may stand behind the command, too
            args = [_WIDE, *(word for word in args if word != _WIDE)]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = importlib.import_module("difflib").get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"there is no command {args[0]!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Of its commands, without loading them."""
        item = importlib.import_module("click.shell_completion").CompletionItem
        found = [item(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return found or click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        with errors_as_messages(), red_errors():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}\n" for line in EXAMPLES))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="llmirage", message=f"%(prog)s, version %(version)s{compiled.note()}")
@click.option(_WIDE, is_flag=True, help="Print tables with all their columns, however narrow the terminal is.")
@click.pass_context
def main(ctx: click.Context, wide: bool) -> None:
    """Simulate an LLM serving cluster, and load-test it or any other endpoint."""
    ctx.meta["llmirage.wide"] = wide  # report/screen.py reads it
