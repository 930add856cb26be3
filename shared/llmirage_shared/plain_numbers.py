"""Numbers of the types that a settings class declares, whatever kind of number its caller has.

Callers loop over numpy arrays and write 3 where a time is meant. Checks and JSON know only Python's own numbers, and the
compiled build (compiled.py) takes nothing else for an int.
"""

from __future__ import annotations

import dataclasses
from typing import Any


def make_plain(settings: Any) -> None:
    """Replace numpy scalars in the fields of a dataclass by Python's numbers, and ints by floats in fields of type float."""
    for field in dataclasses.fields(settings):
        value = given = getattr(settings, field.name)
        if getattr(value, "ndim", None) == 0:
            value = value.item()
        if type(value) is int and field.type in ("float", "float | None"):
            value = float(value)
        if value is not given:
            object.__setattr__(settings, field.name, value)  # frozen ones too
