"""`llmirage sweep`: many clusters and loads, simulated and compared."""

from __future__ import annotations

from llmirage_client.settings.simulation import SweepOutput, SweepSettings
from llmirage_shared.command_line import argument, command, options

sweep = command(
    "sweep",
    "llmirage_client.commands.actions.sweep:sweep",
    [argument("study"), *options(SweepSettings), *options(SweepOutput)],
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
