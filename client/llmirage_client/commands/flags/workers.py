"""Options that say which processes send the load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.flags.sections import flag, together

if TYPE_CHECKING:
    from llmirage_client.commands.spread import Spread

_SECTION = "Workers (docs/scaling.md)"

workers_flags = together(
    flag(
        _SECTION,
        "--executor",
        type=click.Choice(["process", "ray"]),
        help="Let several workers send the load, as one run: processes of this machine, or actors of a Ray cluster (pip "
        "install 'llmirage[ray]').  [default: this process alone]",
    ),
    flag(
        _SECTION,
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="How many, at most as many as have something to do.  [default: one a CPU here, one a machine of the cluster]",
    ),
    flag(
        _SECTION,
        "--ray-address",
        metavar="ADDRESS",
        help="The cluster, as ray.init has it; `local` starts one here for this run.  [default: RAY_ADDRESS, else the one "
        "that runs here, else local]",
    ),
)


def spread_of(settings: dict[str, Any]) -> Spread | None:
    """None for a run in this process. Raises click.UsageError for what makes no sense together."""
    executor, workers, address = settings["executor"], settings["workers"], settings["ray_address"]
    if executor is None and workers is not None:
        raise click.UsageError("--workers says how many, and --executor process or ray has to say of what")
    if address is not None and executor != "ray":
        raise click.UsageError("--ray-address is about --executor ray")
    if executor is None:
        return None
    from llmirage_client.commands.spread import Spread

    return Spread(executor, workers, address)
