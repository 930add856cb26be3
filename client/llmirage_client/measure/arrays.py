"""Array types of the measurements: one dimension, one entry a row unless a docstring says otherwise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def ratio(upper: Floats | float, lower: Floats) -> Floats:
    """Return upper / lower, entry by entry; NaN where lower is not above 0."""
    shares: Floats = np.divide(upper, lower, out=np.full(lower.size, np.nan), where=lower > 0)
    return shares


def first_known(*choices: Floats | None) -> Floats:
    """Return for each row the first value that is not NaN. At least one of the arrays is given."""
    given = [values for values in choices if values is not None]
    found = given[0]
    for values in given[1:]:
        missing = np.isnan(found)
        if not missing.any():
            break
        found = np.where(missing, values, found)
    return found
