"""`llmirage sweep`: many clusters and loads, simulated and compared."""

from __future__ import annotations

from typing import Literal

from llmirage_client.settings.places import cannot_be_folder
from llmirage_client.settings.simulation import SimulationSettings
from llmirage_shared.command_line import argument, command, options
from llmirage_shared.settings import again, switch, under

WORK, OUTPUT = "Execution", "Output"
_work, _output = under(WORK), under(OUTPUT)


class SweepSettings:
    workers: int | None = _work(None, "Number of worker processes.", least=1, unset="one per core")
    executor: Literal["processes", "ray"] = _work(
        "processes", "Where points run: processes on this machine, or tasks of a Ray cluster (pip install 'llmirage[ray]')."
    )
    ray_address: str | None = _work(
        None, "Address of the Ray cluster.", metavar="ADDRESS", unset="a running cluster, else a local one"
    )
    max_time: float | None = again(
        SimulationSettings,
        "max_time",
        None,
        "Stop a point after S seconds of cluster time.",
        group=WORK,
        unset="no limit, or the study's max_time",
    )
    fresh: bool = switch(WORK, "Recompute every point, even those already in the results.")
    artifact_dir: str | None = _output(
        None,
        "Folder for results.",
        aliases=("output",),
        metavar="DIR",
        check=cannot_be_folder,
        unset="artifacts/sweep-NAME-OF-THE-FILE",
    )
    keep_runs: bool = switch(OUTPUT, "Write the files of every point's run, for `llmirage report`.")
    open: bool = switch(OUTPUT, "Open the page of the results in the browser.")
    json: bool = switch(OUTPUT, "Print only the results, as JSON lines.")


sweep = command(
    "sweep",
    "llmirage_client.commands.actions.sweep:sweep",
    [argument("study"), *options(SweepSettings)],
    """Simulate every point of a study and compare them (docs/studies.md, docs/what-if.md).

    STUDY is a YAML file of clusters and loads, or bundled:NAME. Each result is written when its point is done; the same
    command resumes an interrupted study. An impossible deployment is marked as refused, with the reason. Exit status: 0 if
    every point was done or refused, 1 if some failed or reached --max-time or none was done, 2 if the study was refused,
    130 after Ctrl-C.
    """,
    examples=(
        "llmirage sweep bundled:routers",
        "llmirage sweep bundled:pools --workers 4 --artifact-dir pools",
    ),
)
