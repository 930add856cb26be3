"""`llmirage catalog`: lists what is built in."""

from __future__ import annotations

from llmirage_shared.command_line import argument, command, json_option

LISTS = ("workloads", "clusters", "studies", "gpus", "models", "engines", "routers", "formats", "settings")


catalog = command(
    "catalog",
    "llmirage_client.commands.actions.catalog:catalog",
    [
        argument("what", "LIST", choices=LISTS),
        json_option("Print JSON, one object per entry, with the source of every figure."),
    ],
    """List what is built in.

    LIST is workloads, clusters, studies, gpus, models, engines, routers, formats (of workload files), or settings (of
    commands, for --set and files).
    """,
    examples=("llmirage catalog gpus", "llmirage catalog models --json"),
)
