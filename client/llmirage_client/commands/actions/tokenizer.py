"""What `llmirage tokenizer` does."""

from __future__ import annotations

from json import dumps
from pathlib import Path

import click

from llmirage_client.commands.actions.output import write_output
from llmirage_shared import embedded_tokenizer
from llmirage_shared.settings import InputRefused


def tokenizer(folder: str, json: bool) -> None:
    """Run `llmirage tokenizer`."""
    place = Path(folder)
    files = {place / name: text.encode() for name, text in embedded_tokenizer.folder_files().items()}
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path, data in files.items():
            if path.exists() and path.read_bytes() != data:
                raise InputRefused([f"{path} is of another tokenizer; name another folder"], "tokenizer")
        for path, data in files.items():
            write_output(data, str(path))
    except OSError as error:
        raise InputRefused([f"{folder}: cannot be written: {error.strerror}"], "tokenizer") from None
    if json:
        click.echo(dumps({"folder": folder, "files": [path.name for path in files]}))
        return
    click.echo(f"{folder}: {', '.join(path.name for path in files)}")
