"""`llmirage sweep`: many clusters and loads, simulated and compared."""

from __future__ import annotations

from typing import Literal

from llmirage_client.settings.places import cannot_be_folder
from llmirage_client.settings.simulation import SimulationSettings
from llmirage_shared.command_line import argument, command, options
from llmirage_shared.settings import again, switch, under

WORK, OUTPUT = "How it is worked out", "Output"
_work, _output = under(WORK), under(OUTPUT)


class SweepSettings:
    workers: int | None = _work(None, "Processes at a time.", least=1, unset="one a core")
    executor: Literal["processes", "ray"] = _work(
        "processes", "Processes of this machine, or tasks of a Ray cluster (pip install 'llmirage[ray]')."
    )
    ray_address: str | None = _work(
        None, "Of the Ray cluster.", metavar="ADDRESS", unset="the one there is, else a local one"
    )
    max_time: float | None = again(
        SimulationSettings,
        "max_time",
        None,
        "Stop a point after so many seconds of its cluster's time.",
        group=WORK,
        unset="no limit, or the study's max_time",
    )
    fresh: bool = switch(WORK, "Work every point out anew, also those that an earlier start finished.")
    artifact_dir: str | None = _output(
        None,
        "Folder for results.",
        aliases=("output",),
        metavar="DIR",
        check=cannot_be_folder,
        unset="artifacts/sweep-NAME-OF-THE-FILE",
    )
    keep_runs: bool = switch(OUTPUT, "Write the files of every point's whole run, too, for `llmirage report`.")
    json: bool = switch(OUTPUT, "Print the results as JSON lines, and nothing else.")


sweep = command(
    "sweep",
    "llmirage_client.commands.actions.sweep:sweep",
    [argument("study"), *options(SweepSettings)],
    """Simulate every point of STUDY, a YAML file of clusters and loads or bundled:NAME, and compare them
    (docs/studies.md, docs/what-if.md).

    Results are written as they come: the same command carries on where it was stopped. An impossible deployment is marked
    as refused, with its reason. Exit status: 0 every point was done or refused, 1 some failed, ran into --max-time or none
    was done, 2 the study was refused, 130 interrupted.
    """,
)
