"""`llmirage script`: checks scripts of replies, writes a first one, makes one of fixtures, and prints their JSON Schema."""

from __future__ import annotations

from dataclasses import MISSING

from llmirage_shared.command_line import OPTIONS, SettingsGroup, argument, command, json_option, options
from llmirage_shared.settings import setting, switch

_ACTIONS = "llmirage_server.commands.script_actions"


class InitSettings:
    """Settings of `llmirage script init`."""

    force: bool = switch(OPTIONS, "Overwrite the file if there is one.")
    json: bool = switch(OPTIONS, "Print what was written, as JSON.")


class ScriptConvertSettings:
    """Settings of `llmirage script convert`."""

    out: str = setting(MISSING, OPTIONS, "File for the script.", metavar="FILE")


script = SettingsGroup(
    "script",
    commands=[
        command(
            "check",
            f"{_ACTIONS}:check",
            [
                argument("files", "FILE...", many=True),
                json_option("Print JSON, with the problems of scripts that are not valid."),
            ],
            """Check scripts as `llmirage serve --script` reads them, in this order.

            Exit status: 0 if they are valid; 2 if not, with every problem and its line.
            """,
            examples=("llmirage script check replies.yaml", "llmirage script check replies.yaml more.yaml"),
        ),
        command(
            "init",
            f"{_ACTIONS}:init",
            [argument("file", required=False, default="replies.yaml"), *options(InitSettings)],
            """Write a commented example to FILE, or replies.yaml.
            """,
            examples=("llmirage script init", "llmirage script init tools.yaml --force"),
        ),
        command(
            "convert",
            f"{_ACTIONS}:convert",
            [argument("files", "FILE...", many=True), *options(ScriptConvertSettings), *options(InitSettings)],
            """Make a script of aimock's fixtures: of JSON files, or of folders of them.

            What has no counterpart is left out, and named.
            """,
            examples=(
                "llmirage script convert fixtures --out converted.yaml",
                "llmirage script convert fixtures/greeting.json --out converted.yaml --force",
            ),
        ),
        command(
            "schema",
            f"{_ACTIONS}:schema",
            [],
            "Print the JSON Schema of scripts, by which editors complete and check them.",
            examples=("llmirage script schema", "llmirage script schema > replies.schema.json"),
        ),
    ],
    help="Scripts of replies for `llmirage serve --script FILE`: check them, begin one, convert, print their JSON Schema.",
    examples=("llmirage script init replies.yaml", "llmirage script check replies.yaml"),
)
