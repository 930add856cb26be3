"""`llmirage catalog`: lists what is built in."""

from __future__ import annotations

from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import switch

LISTS = ("workloads", "clusters", "studies", "gpus", "models", "engines", "routers", "formats")


class CatalogSettings:
    json: bool = switch(OPTIONS, "Print JSON, one object per entry, with the source of every figure.")


catalog = command(
    "catalog",
    "llmirage_client.commands.actions.catalog:catalog",
    [argument("what", choices=LISTS), *options(CatalogSettings)],
    "List built-in workloads, cluster files, studies, GPUs, models, engines, routers or workload formats.",
    examples=(
        "llmirage catalog gpus",
        "llmirage catalog models --json",
    ),
)
