"""`llmirage script`: checks scripts of replies, writes a first one, makes one of fixtures, and prints their JSON Schema."""

from __future__ import annotations

from dataclasses import MISSING

import click

from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import setting, switch

_ACTIONS = "llmirage_server.commands.script_actions"


class InitSettings:
    force: bool = switch(OPTIONS, "Overwrite the file if there is one.")


class ScriptConvertSettings:
    out: str = setting(MISSING, OPTIONS, "File for the script.", metavar="FILE")


script = click.Group(
    "script",
    [
        command(
            "check",
            f"{_ACTIONS}:check",
            [argument("files", "FILE...", many=True)],
            """Check scripts as `llmirage serve --script` reads them, in this order.

            Exit status: 0 if they are valid; 2 if not, with every problem and its line.
            """,
        ),
        command(
            "init",
            f"{_ACTIONS}:init",
            [argument("file", required=False, default="replies.yaml"), *options(InitSettings)],
            """Write a commented example to FILE, or replies.yaml.

            \b
            llmirage script init replies.yaml
            llmirage serve --script replies.yaml
            """,
        ),
        command(
            "convert",
            f"{_ACTIONS}:convert",
            [argument("files", "FILE...", many=True), *options(ScriptConvertSettings), *options(InitSettings)],
            """Make a script of aimock's fixtures: of JSON files, or of folders of them.

            What has no counterpart is left out, and named.

            \b
            llmirage script convert fixtures --out replies.yaml
            """,
        ),
        command(
            "schema",
            f"{_ACTIONS}:schema",
            [],
            "Print the JSON Schema of scripts, by which editors complete and check them.",
        ),
    ],
    help="Scripts of replies for `llmirage serve --script FILE`: check them, begin one, convert, print their JSON Schema.",
)
