"""`llmirage check`: validates a workload file without sending anything."""

from __future__ import annotations

from llmirage_client.settings.workload import FileSettings
from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import at_call, setting, switch


class CheckOutput:
    """Settings of `llmirage check` besides the file's."""

    tokenizer: str | None = setting(
        None, OPTIONS, "Folder or Hugging Face name of the tokenizer, for formats that count tokens."
    )
    json: bool = switch(OPTIONS, "Print JSON, with the problems of a file that is not valid.")


check = command(
    "check",
    "llmirage_client.commands.actions.check:check",
    [
        argument("file", names=at_call("llmirage_client.workload.synthesis.generated:bundled_names")),
        *options(FileSettings),
        *options(CheckOutput),
    ],
    """Validate a workload file, or bundled:NAME, without sending anything.

    Exit status: 0 if the file is valid; 2 if it is not, with every problem and its line.
    """,
    examples=(
        "llmirage check bundled:coding-agent-team",
        "llmirage check requests.jsonl --format single_turn",
    ),
)
