"""Write the reference of the command line from the commands' own help texts.

Usage: python tools/command_docs.py docs/commands.md          (make docs)
       python tools/command_docs.py --check docs/commands.md  (exit 1 when the file is out of date)
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from llmirage_client.cli import main
from llmirage_shared.command_line import ALL


def help_of(command: click.Command, name: str, parent: click.Context | None) -> list[str]:
    """Return Markdown lines for a command and, for a group, all its subcommands."""
    context = click.Context(command, info_name=name, parent=parent, terminal_width=110, max_content_width=110)
    context.meta[ALL] = True
    lines = [f"## {context.command_path}", "", "```text", command.get_help(context).rstrip(), "```", ""]
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            subcommand = command.get_command(context, child)
            assert subcommand is not None
            lines += help_of(subcommand, child, context)
    return lines


def document() -> str:
    head = ["# Command reference", "", "Written by `make docs` from what the commands print with `--help-all`.", ""]
    return "\n".join(head + help_of(main, "llmirage", None)).rstrip() + "\n"


if __name__ == "__main__":
    check = "--check" in sys.argv
    path = Path(sys.argv[-1])
    if check:
        sys.exit(0 if path.read_text() == document() else f"{path} is out of date: make docs")
    path.write_text(document())
