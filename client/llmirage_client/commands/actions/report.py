"""What `llmirage report` does: runs as one HTML page."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path

import click

from llmirage_client.commands.actions.open_page import open_page
from llmirage_client.commands.actions.refusal import refuse
from llmirage_client.commands.actions.run_description import read_runs
from llmirage_client.measure.cluster_series import ClusterLevels, ClusterSeriesError, read_cluster_series
from llmirage_client.measure.run_folder import NO_RUN, find_runs
from llmirage_client.report.html.run_page import run_page
from llmirage_client.report.html.run_view import names_of
from llmirage_client.report.points_files import read_sweep
from llmirage_shared.settings import ConfigError

PAGE_FILE = "report.html"
_MOST_RUNS = 100


def report(runs: tuple[str, ...], output: str | None, open: bool, json: bool) -> None:
    if json and output == "-":
        raise ConfigError(["--json and --output - exclude each other: standard output cannot have both"])
    places = _places(runs)
    found = read_runs(places)

    names = names_of([str(place.resolve()) for place in places])
    sweep = read_sweep(Path(runs[0])) if len(runs) == 1 else None
    page = run_page(list(zip(names, found, strict=True)), _clusters(places, names), sweep).encode("utf-8", "replace")
    if output == "-":
        sys.stdout.buffer.write(page)
        sys.stdout.buffer.flush()
        return
    path = Path(output) if output else _default(runs, places)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(page)
    except OSError as error:
        refuse([f"{path}: {error.strerror or error}"])
    if json:
        click.echo(dumps({"file": str(path), "bytes": len(page), "runs": names}))
    else:
        click.echo(f"Written to {path} ({len(page) / 1e3:,.0f} kB).")
    if open:
        open_page(path)


def _places(runs: tuple[str, ...]) -> list[Path]:
    """Every run named, or below a folder named, each once and in order."""
    places: list[Path] = []
    problems = []
    for name in runs:
        found = find_runs(name)
        if not found:
            problems.append(f"{name}: {NO_RUN if Path(name).exists() else 'there is no such file or folder'}")
        places += [place for place in found if place not in places]
    if problems:
        refuse(problems)
    if len(places) > _MOST_RUNS:
        refuse([f"These are {len(places)} runs; a page shows at most {_MOST_RUNS}. Name fewer of them."])
    return places


def _clusters(places: list[Path], names: list[str]) -> dict[str, ClusterLevels]:
    """What the clusters of simulated runs did; a broken file of one is said and left out."""
    found = {}
    for place, name in zip(places, names, strict=True):
        try:
            series = read_cluster_series(place if place.is_dir() else place.parent)
        except ClusterSeriesError as error:
            click.echo(f"{error}; the page is without it.", err=True)
        else:
            if series is not None:
                found[name] = series
    return found


def _default(runs: tuple[str, ...], places: list[Path]) -> Path:
    """In the folder named, when it is one; a file of records stands for the folder it is in."""
    if len(runs) > 1:
        return Path(PAGE_FILE)
    folder = Path(runs[0]) if Path(runs[0]).is_dir() else places[0].parent
    return folder / PAGE_FILE
