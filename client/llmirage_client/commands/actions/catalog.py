"""What `llmirage catalog` does. Of the lists, only the one that is asked for is imported."""

from __future__ import annotations

from json import dumps

import click

from llmirage_client.commands.actions.table import print_table
from llmirage_shared.settings import at_call

# too wide for a table, or of interest to few
_ONLY_IN_JSON = frozenset(
    {
        *("source", "price_source", "node_link_source", "file", "confidence", "unverified", "notes", "aliases", "sm"),
        *("node_gb_per_s", "node_latency_us", "mtp_layers", "window_mib_per_sequence", "state_mib_per_sequence"),
        *("tdp_w", "kv_pool", "host_ms_per_step", "fetch", "options_in_full"),
    }
)
_PLACES = {
    **dict.fromkeys(("workloads", "studies", "formats"), "catalog_workloads"),
    **dict.fromkeys(("gpus", "models", "engines", "clusters", "routers"), "catalog_server"),
}


def catalog(what: str, json: bool) -> None:
    rows = at_call(f"llmirage_client.commands.actions.{_PLACES[what]}:{what}")()
    if json:
        click.echo(dumps(rows, indent=2))
    else:
        print_table(rows, _ONLY_IN_JSON)
