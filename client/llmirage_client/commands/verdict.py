"""`llmirage verdict`: how the clients of a running server met its refusals, broken replies and connections."""

from __future__ import annotations

from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import setting, switch


class VerdictSettings:
    """Settings of `llmirage verdict`."""

    since: int | None = setting(
        None, OPTIONS, "Judge the requests after this number of the journal.", unset="all that it has", least=0
    )
    unused_s: float = setting(
        5.0,
        OPTIONS,
        "A connection is leaked if it was open and unused for so long when its client opened another one.",
        metavar="SECONDS",
        above=0,
        most=86_400,
    )
    api_key: str | None = setting(None, OPTIONS, "API key of the server.")
    json: bool = switch(OPTIONS, "Print the server's JSON instead of a table.")


verdict = command(
    "verdict",
    "llmirage_client.commands.actions.verdict:verdict",
    [argument("url", required=False, default="http://localhost:8000"), *options(VerdictSettings)],
    """Judge the clients of a running `llmirage serve` by the requests in its journal.

    docs/verdict.md has the rules. Exit status: 0 if none is broken, 1 if the server cannot be asked, 3 if one is broken.
    """,
    examples=(
        "llmirage verdict http://localhost:8000",
        "llmirage verdict http://localhost:8000 --since 100 --json",
    ),
)
