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

HEAD = """# Commands and options

Written by `make docs` from what the commands print with `--help-all`; `--help` shows the options that most people need.

- `--json`: every command prints its result as JSON, and nothing else on standard output ([artifacts.md](artifacts.md)).
- Exit status 2: the input was refused. Standard error names what is wrong, all of it at once.
- On a narrow terminal a table has the columns that fit and names the others; `--wide`, anywhere in the command, shows
  all. Pipes and files have all.
- Colours, and figures while `run` and `simulate` go on, are for terminals. `NO_COLOR=1` and `TERM=dumb` do without.

Shells complete commands, options, files, and the names of GPUs, models, engines, routers, presets and bundled workloads:

| shell | file | line to add |
|---|---|---|
| bash | `~/.bashrc` | `eval "$(_LLMIRAGE_COMPLETE=bash_source llmirage)"` |
| zsh | `~/.zshrc` | `eval "$(_LLMIRAGE_COMPLETE=zsh_source llmirage)"` |
| fish | `~/.config/fish/completions/llmirage.fish` | `_LLMIRAGE_COMPLETE=fish_source llmirage \\| source` |

bash begins a new word at a colon. With `COMP_WORDBREAKS=${COMP_WORDBREAKS//:}` after it, `bundled:` names are completed too.
"""


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
    return "\n".join([HEAD, *help_of(main, "llmirage", None)]).rstrip() + "\n"


if __name__ == "__main__":
    check = "--check" in sys.argv
    path = Path(sys.argv[-1])
    if check:
        sys.exit(0 if path.read_text() == document() else f"{path} is out of date: make docs")
    path.write_text(document())
