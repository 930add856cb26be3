"""`llmirage convert`: a workload file in another format."""

from __future__ import annotations

from dataclasses import MISSING

from llmirage_client.settings.places import cannot_be_file
from llmirage_client.settings.workload import FileSettings
from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import at_call, setting, switch


class ConvertSettings(FileSettings):
    to: str = setting(MISSING, OPTIONS, "Format to write.", metavar="FORMAT")
    output: str | None = setting(
        None,
        OPTIONS,
        "File to write; compressed if it ends in .gz.",
        short="o",
        metavar="FILE",
        check=cannot_be_file,
        unset="standard output",
    )
    tokenizer: str | None = setting(
        None,
        OPTIONS,
        "Folder or Hugging Face name of the tokenizer for texts given by length, if the other format has no lengths.",
        unset="the built-in one",
    )
    random_seed: int = setting(0, OPTIONS, "Seed of texts generated from lengths.")
    json: bool = switch(OPTIONS, "Print what was written, as JSON; needs --output.")


convert = command(
    "convert",
    "llmirage_client.commands.actions.convert:convert",
    [argument("file", names=at_call("llmirage_client.workload.names:bundled_names")), *options(ConvertSettings)],
    """Convert a workload file, or bundled:NAME, to another format.

    The converted file sends the same requests at the same times in the same order; the command loads it again to check that.
    If the format cannot represent something, nothing is written, the message says what would be lost, and the exit status
    is 2. Formats that can be written: dag_jsonl, multi_turn, single_turn, mooncake_trace, agentic_jsonl, inputs_json,
    raw_payload, custom_multi_turn and share_gpt.
    """,
    examples=(
        "llmirage convert requests.jsonl --to dag_jsonl -o requests.dag.jsonl",
        "llmirage convert bundled:chat --to multi_turn",
    ),
)
