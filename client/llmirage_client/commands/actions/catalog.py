"""What `llmirage catalog` does. Of the lists, only the one that is asked for is imported."""

from __future__ import annotations

from json import dumps

import click

from llmirage_client.report.screen import Row, print_table
from llmirage_shared.command_line import SettingsCommand, remarks
from llmirage_shared.settings import at_call

# too wide for a table, or of interest to few
_ONLY_IN_JSON = frozenset(
    {
        *("source", "price_source", "node_link_source", "file", "confidence", "unverified", "notes", "aliases", "sm"),
        *("node_gb_per_s", "node_latency_us", "mtp_layers", "window_mib_per_sequence", "state_mib_per_sequence"),
        *("tdp_w", "kv_pool", "host_ms_per_step", "fetch", "options_in_full", "heading"),
    }
)
_PLACES = {
    **dict.fromkeys(("workloads", "studies", "formats"), "catalog_workloads"),
    **dict.fromkeys(("gpus", "models", "engines", "clusters", "routers"), "catalog_server"),
    "settings": "catalog",
}


def catalog(what: str, json: bool) -> None:
    """Run `llmirage catalog`."""
    rows = at_call(f"llmirage_client.commands.actions.{_PLACES[what]}:{what}")()
    if json:
        click.echo(dumps(rows, indent=2))
    else:
        print_table(rows, _ONLY_IN_JSON)


def settings() -> list[Row]:
    """Return the settings of the commands that take --set, in their order."""
    context = click.get_current_context().find_root()
    root = context.command
    assert isinstance(root, click.Group)
    found: dict[tuple[str, str], Row] = {}
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        if not isinstance(command, SettingsCommand) or not command.has_long_tail:
            continue
        for option in command.settings:
            about = option.about
            row = found.setdefault(
                (about.name, about.help),
                {
                    "name": about.name,
                    "also": [key for key in about.keys if key != about.name],
                    "of": [],
                    "flag": "",
                    "heading": about.group,
                    "meaning": about.help + remarks(about),
                },
            )
            row["of"].append(name)
            row["flag"] = row["flag"] or next((flag for flag in option.opts if flag.startswith("--")), "")
    return list(found.values())
