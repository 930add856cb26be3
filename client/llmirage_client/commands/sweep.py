"""`llmirage sweep`: many clusters and loads, simulated and compared."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from llmirage_client.commands.flags.sections import SectionedCommand, flag
from llmirage_client.commands.output import cannot_be_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llmirage_client.sweep.file import Study
    from llmirage_client.sweep.sweep import Row, Sweep

_WORK, _OUTPUT = "How it is worked out", "Output"


@click.command(cls=SectionedCommand, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("study", type=click.Path(dir_okay=False))
@flag(_WORK, "--workers", type=click.IntRange(min=1), metavar="N", help="Processes at a time.  [default: one a core]")
@flag(
    _WORK,
    "--executor",
    type=click.Choice(["processes", "ray"]),
    default="processes",
    show_default=True,
    help="Processes of this machine, or tasks of a Ray cluster (pip install 'llmirage[ray]').",
)
@flag(_WORK, "--ray-address", metavar="ADDRESS", help="Of the Ray cluster.  [default: the one there is, else a local one]")
@flag(
    _WORK,
    "--max-time",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Stop a point after so many seconds of its cluster's time.  [default: no limit, or the study's max_time]",
)
@flag(_WORK, "--fresh", is_flag=True, help="Work every point out anew, also those that an earlier start finished.")
@flag(
    _OUTPUT,
    "--artifact-dir",
    "--output",
    "folder",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Folder for results.  [default: artifacts/sweep-NAME-OF-THE-FILE]",
)
@flag(_OUTPUT, "--keep-runs", is_flag=True, help="Write the files of every point's whole run, too, for `llmirage report`.")
@flag(_OUTPUT, "--json", "as_json", is_flag=True, help="Print the results as JSON lines, and nothing else.")
def sweep(study: str, **settings: Any) -> None:
    """Simulate every point of STUDY, a YAML file of clusters and loads or bundled:NAME, and compare them
    (docs/studies.md, docs/what-if.md).

    Results are written as they come: the same command carries on where it was stopped. An impossible deployment is marked
    as refused, with its reason. Exit status: 0 every point was done or refused, 1 some failed, ran into --max-time or none
    was done, 2 the study was refused, 130 interrupted.
    """  # fmt: skip
    from pathlib import Path

    from llmirage_client.sweep.file import StudyError, read_study, study_path
    from llmirage_client.sweep.point import problems_of

    try:
        study = study_path(study)
        read = read_study(study)
    except StudyError as error:
        _refuse(str(error))
    if problems := problems_of(read.points):
        _refuse("\n".join(problems))
    folder = Path(settings["folder"] or f"artifacts/sweep-{Path(study).stem}")
    if problem := cannot_be_folder(str(folder)):
        _refuse(f"{problem}; --artifact-dir says where else" if settings["folder"] is None else problem)
    try:
        result = _carry_out(read, folder, settings)
        files = _write(result, Path(study), folder)
    except OSError as error:
        _refuse(f"{folder}: {error.strerror or error}")
    _show(result, folder, files, settings)
    statuses = {row.status for row in result.rows}
    sys.exit(0 if "ok" in statuses and not statuses & {"failed", "stopped"} else 1)


def _carry_out(study: Study, folder: Path, settings: dict[str, Any]) -> Sweep:
    from importlib.metadata import version

    from llmirage_client.sweep.executors import executor_named
    from llmirage_client.sweep.sweep import sweep as work_out
    from llmirage_client.workers.crew import CrewError

    try:
        executor = executor_named(settings["executor"], settings["workers"], settings["ray_address"])
    except CrewError as error:
        _refuse(str(error))
    told, done = _progress(len(study.points))
    try:
        return work_out(
            study,
            executor,
            folder,
            version("llmirage"),
            max_time_s=settings["max_time"],
            fresh=settings["fresh"],
            runs=settings["keep_runs"],
            told=told,
        )
    except KeyboardInterrupt:
        done()
        click.echo(f"Interrupted. What is done is in {folder}; the same command carries on from there.", err=True)
        sys.exit(130)
    finally:
        done()


def _progress(points: int) -> tuple[Callable[[Row, int, int], None], Callable[[], None]]:
    """On a terminal a bar that is drawn anew, elsewhere a line for each point."""
    if not sys.stderr.isatty():

        def tell(row: Row, done: int, total: int) -> None:
            why = f": {row.reason}" if row.reason else ""
            click.echo(f"[{done}/{total}] {row.point.name}: {row.status}{why}", err=True)

        return tell, lambda: None

    def draw(row: Row | None, done: int, total: int) -> None:
        width = 30
        filled = width * done // total
        columns = shutil.get_terminal_size().columns
        last = "" if row is None else f" {row.point.name}: {row.status}"
        text = f"[{'#' * filled}{'.' * (width - filled)}] {done}/{total}{last}"
        click.echo(f"\r\x1b[K{text[: columns - 1]}", err=True, nl=False)

    draw(None, 0, max(points, 1))
    return draw, lambda: click.echo("\r\x1b[K", err=True, nl=False)


def _write(result: Sweep, study: Path, folder: Path) -> list[str]:
    """Names of the files. Raises OSError."""
    from llmirage_client.sweep.page import page_of
    from llmirage_client.sweep.sweep import RESULTS_FILE
    from llmirage_client.sweep.table import write_tables

    files = [RESULTS_FILE, *(path.name for path in write_tables(result, folder)), "study.html", "study.yaml"]
    (folder / "study.html").write_text(page_of(result), encoding="utf-8")
    copy = folder / "study.yaml"
    if copy.resolve() != study.resolve():
        copy.write_bytes(study.read_bytes())
    return files


def _show(result: Sweep, folder: Path, files: list[str], settings: dict[str, Any]) -> None:
    if settings["as_json"]:
        import json

        from llmirage_client.sweep.table import records

        for record in records(result):
            click.echo(json.dumps(record))
        return
    from llmirage_client.report.screen import print_blocks
    from llmirage_client.sweep.table import blocks

    print_blocks(blocks(result, folder, files))


def _refuse(problem: str) -> NoReturn:
    click.echo(f"llmirage sweep: {problem}", err=True)
    sys.exit(2)
