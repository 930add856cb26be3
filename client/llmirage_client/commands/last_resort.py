"""What becomes of a command that its user or the machine stops: a sentence and an exit status, never a traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

import click

INTERRUPTED = 130  # what shells report for Ctrl-C


@contextlib.contextmanager
def told_in_words() -> Iterator[None]:
    """Ctrl-C where a command does not heed it itself, and input or output that fails where it does not expect that."""
    _be_somewhere()
    try:
        yield
        sys.stdout.flush()  # here, where a full disk can still be told
    except KeyboardInterrupt:
        click.echo("\nInterrupted.", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader has seen enough, as `| head` has: click ends quietly
            raise
        click.echo(f"llmirage: {error.filename or 'output'}: {error.strerror or error}", err=True)
        _forget_output()
        raise click.exceptions.Exit(1) from None


def _be_somewhere() -> None:
    """A process whose standard streams were closed (`>&-`) has none: what it says goes nowhere then."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # until the process ends


def _forget_output() -> None:
    """What could not be written would fail once more when Python flushes it at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
