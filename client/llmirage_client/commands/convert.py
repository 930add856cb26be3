"""`llmirage convert`: a workload file in another format."""

from __future__ import annotations

from dataclasses import MISSING

from llmirage_client.settings.places import cannot_be_file
from llmirage_client.settings.workload import FileSettings
from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import setting


class ConvertSettings(FileSettings):
    to: str = setting(MISSING, OPTIONS, "Format to write.", metavar="FORMAT")
    output: str | None = setting(
        None,
        OPTIONS,
        "File to write; packed when it ends in .gz.",
        short="o",
        metavar="FILE",
        check=cannot_be_file,
        unset="standard output",
    )
    tokenizer: str | None = setting(
        None,
        OPTIONS,
        "Folder or hub name of the tokenizer in which texts that are given by their length are written out, where the other "
        "format has no lengths.",
        unset="the one in the package",
    )
    random_seed: int = setting(0, OPTIONS, "Of these texts.")


convert = command(
    "convert",
    "llmirage_client.commands.actions.convert:convert",
    [argument("file"), *options(ConvertSettings)],
    """Write FILE, or bundled:NAME, in another format, if its meaning survives.

    What goes out, when and in which order stays the same; what is written is loaded again to make sure. Where the other
    format cannot say everything, nothing is written: exit status 2, and what would be lost. Formats that can be written
    are dag_jsonl, multi_turn, single_turn, mooncake_trace, agentic_jsonl, inputs_json, raw_payload, custom_multi_turn
    and share_gpt.
    """,
)
