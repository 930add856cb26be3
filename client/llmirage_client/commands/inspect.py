"""`llmirage inspect`: the shape of a workload, without sending anything."""

from __future__ import annotations

from llmirage_client.settings.workload import FileSettings
from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import at_call, setting, switch


class InspectSettings(FileSettings):
    tokenizer: str | None = setting(
        None, OPTIONS, "Folder or Hugging Face name of the tokenizer that counts.", unset="the built-in one"
    )
    reply_tokens: int = setting(200, OPTIONS, "Reply length if the file does not give one.", least=0)
    json: bool = switch(OPTIONS, "Print JSON.")


inspect = command(
    "inspect",
    "llmirage_client.commands.actions.inspect:inspect",
    [argument("file", names=at_call("llmirage_client.workload.names:workload_names")), *options(InspectSettings)],
    """Show statistics of a workload file, or bundled:NAME: turns, branches, lengths, arrivals and prefix reuse.

    Prefix reuse is the share of prompt tokens that an unlimited prefix cache finds when requests run one after another. It
    is an upper bound for any server. Exit status: 2 if the file is not valid.
    """,
    examples=(
        "llmirage inspect bundled:rag",
        "llmirage inspect requests.jsonl --json",
    ),
)
