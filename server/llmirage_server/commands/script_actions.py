"""What `llmirage script` does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from json import dumps
from pathlib import Path

import click

from llmirage_server.faults.rule import read_rule
from llmirage_server.replies.recordings.recording import readable_yaml
from llmirage_server.replies.scripts.aimock import script_of_fixtures
from llmirage_server.replies.scripts.reader import read_scripts
from llmirage_server.replies.scripts.rule import SCHEMA_FILE
from llmirage_shared.plural import plural
from llmirage_shared.settings import ConfigError

EXAMPLE_FILE = SCHEMA_FILE.with_name("example.yaml")


def check(files: tuple[str, ...], json: bool) -> None:
    """Run `llmirage script check`."""
    try:
        script = read_scripts(files, partial(read_rule, imports=True))
    except ConfigError as error:
        if json:
            click.echo(dumps({"files": files, "valid": False, "problems": error.problems}))
        else:
            for problem in error.problems:
                click.echo(problem, err=True)
        sys.exit(2)
    if json:
        told = {"files": files, "valid": True, "rules": len(script.rules), "fallback": script.fallback}
        click.echo(dumps(told))
        return
    click.echo(f"{', '.join(files)}: {_number(script.rules)}, fallback {script.fallback}")


def init(file: str, force: bool, json: bool) -> None:
    """Run `llmirage script init`."""
    _write(file, EXAMPLE_FILE.read_text(encoding="utf-8"), force)
    if json:
        click.echo(dumps({"file": file}))
        return
    click.echo(f"Wrote {file}. Next: llmirage serve --script {file}")


def convert(files: tuple[str, ...], out: str, force: bool, json: bool) -> None:
    """Write a script of recorded exchanges. Raises ConfigError for files that cannot be used, and without a rule."""
    converted = script_of_fixtures(files, read_rule)
    for note in [] if json else converted.left_out:
        click.echo(note, err=True)
    if not converted.rules:
        raise ConfigError(["no fixture in these files can be a rule of a script"])
    text = readable_yaml({"rules": converted.rules}).rstrip("\n")
    _write(out, f"# Made of aimock's fixtures: {', '.join(files)}\n{text}\n", force)
    if json:
        click.echo(dumps({"file": out, "rules": len(converted.rules), "left_out": list(converted.left_out)}))
        return
    click.echo(f"Wrote {out}: {_number(converted.rules)}. Next: llmirage serve --script {out}")


def schema() -> None:
    """Run `llmirage script schema`."""
    click.echo(SCHEMA_FILE.read_text(encoding="utf-8"), nl=False)


def _write(file: str, text: str, force: bool) -> None:
    """Write the file. Raises ConfigError."""
    path = Path(file)
    if path.exists() and not force:
        raise ConfigError([f"{file} is there already: --force overwrites it"])
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{file}: {error.strerror or error}"]) from None


def _number(rules: Sequence[object]) -> str:
    return plural(len(rules), "rule")
