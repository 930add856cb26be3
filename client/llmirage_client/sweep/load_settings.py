"""Settings of a load in a study file: those of the command line that studies know, and the workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmirage_client.measure.slo import SloError, parse_slo
from llmirage_client.settings.load import LoadSettings
from llmirage_client.settings.simulation import SimulationSettings
from llmirage_client.settings.sizing import SizingSettings
from llmirage_client.settings.workload import FileSettings, LengthSettings
from llmirage_client.workload.distributions import DistributionError, read_distribution
from llmirage_shared.settings import About, instance_of, setting, settings_of


class StudySettings:
    workload: str | None = setting(None, "Study", "The file whose conversations are sent.", study=True)


_KINDS = (StudySettings, FileSettings, LengthSettings, LoadSettings, SizingSettings, SimulationSettings)
_LEAST = {"isl": 1, "osl": 1, "turns": 1, "think_time": 0}  # the least that a distribution may give

LOAD_SETTINGS: Mapping[str, About] = {
    about.study if isinstance(about.study, str) else about.name: about
    for kind in _KINDS
    for about in settings_of(kind).values()
    if about.study
}


def read_load_setting(key: str, value: Any) -> Any:
    """Return the value, checked by itself. Raises ValueError with the end of a sentence."""
    if value is None or value == math.inf:
        raise ValueError(
            "must have a value" if value is None else "must be a number, not inf; infinite loads are not allowed"
        )
    value = LOAD_SETTINGS[key].convert(value)
    try:
        if key in _LEAST:
            read_distribution(value, least=_LEAST[key])
        if key == "slo":
            parse_slo(value)
    except DistributionError as error:
        raise ValueError(str(error)) from None
    except SloError as error:
        raise ValueError("; ".join(error.problems)) from None
    return value


def load_settings(load: Mapping[str, Any]) -> LoadSettings:
    """Return the settings of a load by their names on the command line."""
    given = {LOAD_SETTINGS[key].name: value for key, value in load.items()}
    known = settings_of(LoadSettings)
    values = {name: (value,) if known[name].several else value for name, value in given.items() if name in known}
    return instance_of(LoadSettings, {"random_seed": 0} | values)
