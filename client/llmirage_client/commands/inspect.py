"""`llmirage inspect`: the shape of a workload, without sending anything."""

from __future__ import annotations

from llmirage_client.settings.workload import FileSettings
from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import setting, switch


class InspectSettings(FileSettings):
    tokenizer: str | None = setting(
        None, OPTIONS, "Folder or hub name of the tokenizer that counts.", unset="the one in the package"
    )
    reply_tokens: int = setting(200, OPTIONS, "Length of a reply, where the file does not say.", least=0)
    json: bool = switch(OPTIONS, "Print JSON.")


inspect = command(
    "inspect",
    "llmirage_client.commands.actions.inspect:inspect",
    [argument("file"), *options(InspectSettings)],
    """Show the shape of FILE, or bundled:NAME: turns, fan-out, lengths, arrivals, and the highest prefix reuse possible.

    Prefix reuse is the share of prompt tokens that a server with a cache without limits would not have to compute, with all
    requests one after the other: no server can find more. Exit status 2 when the file is not valid.
    """,
)
