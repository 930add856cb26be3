"""`llmirage convert`: a workload file in another format."""

from __future__ import annotations

from llmirage_client.settings.workload import ConvertSettings, MadeFile
from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import at_call, switch


class ConvertOutput:
    """Output of `llmirage convert`."""

    json: bool = switch(OPTIONS, "Print what was written, as JSON; needs --output.")


convert = command(
    "convert",
    "llmirage_client.commands.actions.convert:convert",
    [
        argument("file", names=at_call("llmirage_client.workload.synthesis.generated:bundled_names")),
        *options(ConvertSettings),
        *options(MadeFile),
        *options(ConvertOutput),
    ],
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
