"""Activity of a simulated cluster's instances over a run, as a file beside its records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CLUSTER_FILE = "cluster_series.json"
_DECIMALS = 4


class ClusterSeriesError(ValueError):
    """The file is not what it should be; the message is for the user."""


@dataclass(slots=True, frozen=True)
class ClusterLevels:
    """Levels over equal or unequal stretches of time, one row an instance.

    instances: their names. edges_s: shape (stretches + 1,), cluster time since the first request.
    levels: by name, shape (instances, stretches); NaN where nothing is known. The report knows these names and their units:
        running (requests in the batch), waiting (requests queued), kv_used_pct, busy_pct (part of the time that a step ran),
        prefix_hit_pct (prompt tokens found cached), preemptions (how many). Others are drawn under their own names.
    step_time_s: where the time of all steps went, by part of a step.
    autoscaling: the decisions, as GET /llmirage/autoscaling has them.
    """

    instances: tuple[str, ...]
    edges_s: npt.NDArray[np.float64]
    levels: Mapping[str, npt.NDArray[np.float64]]
    step_time_s: Mapping[str, float] = field(default_factory=dict)
    autoscaling: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        """Check the shapes. Raises ClusterSeriesError."""
        shape = (len(self.instances), max(self.edges_s.size - 1, 0))
        for name, values in self.levels.items():
            if values.shape != shape:
                raise ClusterSeriesError(f"{name} has the shape {values.shape}, instances and edges say {shape}")

    def write(self, folder: Path) -> Path:
        path = folder / CLUSTER_FILE
        content = {
            "instances": list(self.instances),
            "edges_s": self.edges_s.round(6).tolist(),
            "levels": {name: _plain(values) for name, values in self.levels.items()},
            "step_time_s": dict(self.step_time_s),
            **({"autoscaling": list(self.autoscaling)} if self.autoscaling else {}),
        }
        path.write_text(json.dumps(content, separators=(",", ":")) + "\n")
        return path


def read_cluster_series(folder: Path) -> ClusterLevels | None:
    """Return the series of the run in `folder`; None when it has none. Raises ClusterSeriesError when the file is broken."""
    path = folder / CLUSTER_FILE
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ClusterSeriesError(f"{path}: {error}") from None
    try:
        return ClusterLevels(
            instances=tuple(str(name) for name in content["instances"]),
            edges_s=np.array(content["edges_s"], dtype=np.float64),
            levels={str(k): np.array(v, dtype=np.float64).reshape(len(v), -1) for k, v in content["levels"].items()},
            step_time_s={str(k): float(v) for k, v in content.get("step_time_s", {}).items()},
            autoscaling=tuple(content.get("autoscaling", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ClusterSeriesError(f"{path}: not the levels of instances over time: {error}") from None


def _plain(values: npt.NDArray[np.float64]) -> list[list[Any]]:
    """Return rows of numbers, null for NaN."""
    return [[None if v != v else v for v in row] for row in values.round(_DECIMALS).tolist()]
