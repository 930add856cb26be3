"""What `llmirage script` does."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from llmirage_server.faults.rule import read_rule
from llmirage_server.replies.scripts.keys import SCHEMA_FILE
from llmirage_server.replies.scripts.reader import read_scripts
from llmirage_shared.settings import ConfigError

EXAMPLE_FILE = SCHEMA_FILE.with_name("example.yaml")


def check(files: tuple[str, ...]) -> None:
    try:
        script = read_scripts(files, read_rule)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        sys.exit(2)
    rules = "1 rule" if len(script.rules) == 1 else f"{len(script.rules)} rules"
    click.echo(f"{', '.join(files)}: {rules}, fallback {script.fallback}")


def init(file: str, force: bool) -> None:
    path = Path(file)
    if path.exists() and not force:
        raise click.UsageError(f"{file} is there already: --force overwrites it")
    path.write_text(EXAMPLE_FILE.read_text(encoding="utf-8"), encoding="utf-8")
    click.echo(f"Wrote {file}. Next: llmirage serve --script {file}")


def schema() -> None:
    click.echo(SCHEMA_FILE.read_text(encoding="utf-8"), nl=False)
