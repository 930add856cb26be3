"""A study: many clusters and loads, simulated and compared."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llmirage_client.settings.simulation import SweepSettings
from llmirage_client.sweep.file import Study, StudyError, read_study, study_path
from llmirage_client.sweep.point import problems_of
from llmirage_client.sweep.sweep import OnPoint, Sweep, executor_named
from llmirage_client.sweep.sweep import sweep as simulate_points
from llmirage_client.workers.job import CrewError
from llmirage_shared.settings import InputRefused


def load_study(given: str | Mapping[str, Any]) -> Study:
    """Read a study from a file or from data of the same form. Raises ConfigError."""
    try:
        study = read_study(study_path(given) if isinstance(given, str) else given)
    except StudyError as error:
        raise InputRefused([str(error)], "sweep") from None
    if problems := problems_of(study.points):
        raise InputRefused(["\n".join(problems)], "sweep")
    return study


def sweep(study: Study, folder: Path, settings: SweepSettings, on_point: OnPoint) -> Sweep:
    """Simulate all points that have no result in the folder yet. Raises ConfigError, OSError."""
    try:
        executor = executor_named(settings.executor, settings.workers, settings.ray_address)
    except CrewError as error:
        raise InputRefused([str(error)], "sweep") from None
    return simulate_points(
        study,
        executor,
        folder,
        version("llmirage"),
        max_time_s=settings.max_time,
        fresh=settings.fresh,
        runs=settings.keep_runs,
        on_point=on_point,
    )
