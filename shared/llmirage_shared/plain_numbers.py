"""Numbers of the types that a settings class declares, whatever kind of number its caller has.

Callers loop over numpy arrays, and write 3 where a time is meant or 1e6 where a count is. Checks and JSON know only
Python's own numbers, and the compiled build (compiled.py) takes nothing else for an int.
"""

from __future__ import annotations

import dataclasses
from typing import Any

_TYPES = {"int": int, "int | None": int, "float": float, "float | None": float, "bool": bool}
_EXACT = 2**53  # ints below are floats without loss


def make_plain(settings: Any) -> None:
    """Replace numpy scalars in the fields of a dataclass by Python's numbers, and numbers by equal ones of the field's type.

    A number that has no equal of that type stays: 1.5 where an int is declared.
    """
    for field in dataclasses.fields(settings):
        value = given = getattr(settings, field.name)
        if getattr(value, "ndim", None) == 0:
            value = value.item()
        declared = _TYPES.get(field.type) if isinstance(field.type, str) else None
        if declared is not None and type(value) in (int, float) and abs(value) < _EXACT and declared(value) == value:
            value = declared(value)
        if value is not given:
            object.__setattr__(settings, field.name, value)  # frozen ones too
