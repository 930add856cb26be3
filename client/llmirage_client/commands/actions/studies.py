"""The actions of `llmirage sweep`, `size` and `calibrate`: show the progress, write what was found, and print it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from json import dumps
from pathlib import Path
from typing import Any, NoReturn

import click

from llmirage_client.operations import calibrate as calibration
from llmirage_client.operations import size as sizing
from llmirage_client.operations.calibrate import CalibrateSettings, as_json, calibration_blocks
from llmirage_client.operations.size import SizeSettings
from llmirage_client.report.output_files import open_page, unused_folder
from llmirage_client.report.screen import print_blocks
from llmirage_client.settings.simulation import SweepSettings
from llmirage_client.simulate.simulation import own_process
from llmirage_client.simulator.cluster_settings import ClusterSettings, ShapelessClusterSettings
from llmirage_client.size.page import page_of as size_page
from llmirage_client.sweep import sweep as sweeping
from llmirage_client.sweep.file import Study, study_path
from llmirage_client.sweep.report import blocks, page_of, records, write_tables
from llmirage_client.sweep.sweep import RESULTS_FILE, Row, Sweep
from llmirage_shared.settings import InputRefused, cannot_be_folder, instance_of


def sweep(study: str, open: bool, json: bool, **given: Any) -> None:
    """Run `llmirage sweep`."""
    own_process()
    settings = instance_of(SweepSettings, given)
    read = sweeping.load_study(study)
    study = study_path(study)
    folder = Path(settings.artifact_dir or f"artifacts/sweep-{Path(study).stem}")
    if problem := cannot_be_folder(str(folder)):
        _refuse(f"{problem}; choose another folder with --artifact-dir")
    others = {path.resolve() for path in folder.iterdir()} - {Path(study).resolve()} if folder.is_dir() else set()
    if others and not (folder / RESULTS_FILE).exists():
        _refuse(f"{folder}: has files that are no results of a study; choose another folder with --artifact-dir")
    try:
        result = _carried_out(read, folder, settings)
        files = _write(result, Path(study), folder)
    except OSError as error:
        _refuse(f"{folder}: {error.strerror or error}")
    _show(result, folder, files, json)
    if open:
        open_page(folder / "study.html")
    sys.exit(0 if result.passed else 1)


def _carried_out(study: Study, folder: Path, settings: SweepSettings) -> Sweep:
    on_point, done = _progress(len(study.points))
    try:
        return sweeping.sweep(study, folder, settings, on_point)
    except KeyboardInterrupt:
        done()
        click.echo(f"Interrupted. Finished points are in {folder}; the same command continues from there.", err=True)
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
    files = [RESULTS_FILE, *(path.name for path in write_tables(result, folder)), "study.html", "study.yaml"]
    (folder / "study.html").write_text(page_of(result), encoding="utf-8")
    copy = folder / "study.yaml"
    if copy.resolve() != study.resolve():
        copy.write_bytes(study.read_bytes())
    return files


def _show(result: Sweep, folder: Path, files: list[str], json: bool) -> None:
    if json:
        for record in records(result):
            click.echo(dumps(record))
        return
    print_blocks(blocks(result, folder, files))


def _refuse(problem: str) -> NoReturn:
    raise InputRefused([problem], "sweep")


def size(workload: str | None, json: bool, html: str | None, open: bool, **given: Any) -> None:
    """Run `llmirage size`."""
    own_process()
    report = sizing.size(workload, instance_of(SizeSettings, given, cluster=ShapelessClusterSettings.of(given)))
    if html is not None or open:
        try:
            page = Path(html) if html else unused_folder("size") / "size.html"
            page.write_text(size_page(report), encoding="utf-8")
        except OSError as error:
            raise InputRefused(
                [f"--html {html}: {error.strerror}" if html else f"artifacts: {error.strerror}"], "size"
            ) from None
        if open:
            click.echo(f"HTML report written to {page}.", err=True)
            open_page(page)
    if json:
        click.echo(dumps(report.json()))
    else:
        print_blocks(report.blocks())
    sys.exit(0 if report.answered else 1)


def calibrate(runs: tuple[str, ...], output: str, json: bool, **given: Any) -> None:
    """Run `llmirage calibrate`."""
    settings = instance_of(CalibrateSettings, given, cluster=ClusterSettings.of(given))
    found = calibration.calibrate(runs, settings)
    try:
        Path(output).write_text(found.engine_file, encoding="utf-8")
    except OSError as error:
        raise InputRefused([f"the engine file could not be written: {error}"], "calibrate") from None
    if json:
        about = {"deployment": found.deployment, "output": output}
        click.echo(dumps(as_json(found.calibration) | about, indent=2))
        return
    print_blocks(calibration_blocks(found.calibration, found.deployment, len(found.runs)))
    click.echo(f"\nWritten to {output}; use it: llmirage simulate --engine {output} ...")
