"""The errors of whole runs as data, for programs that say how far to trust a figure: perf/catalogue/data/accuracy.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from accuracy.closed_loop import Prediction
from accuracy.errors import Spread, grouped

METRICS = ("latency", "tpot", "ttft")
SOURCE = "docs/accuracy.md: whole runs of real servers; errors in percent of the measured value; written by make accuracy"


def bands(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Number of runs and [median, 90th percentile, bias] of each metric: by deployment, by model, by GPU, and of all."""

    def group(members: Iterable[Prediction]) -> dict[str, Any]:
        runs = list(members)
        spreads = {metric: Spread.of(p.error(metric) for p in runs) for metric in METRICS}
        figures = {metric: [round(s.median, 1), round(s.p90, 1), round(s.bias, 1)] for metric, s in spreads.items()}
        return {"runs": len(runs), **figures}

    def by(key: Callable[[Prediction], tuple[str, ...]]) -> dict[str, Any]:
        return {" ".join(name): group(members) for name, members in grouped(predictions, key).items()}

    return {
        "source": SOURCE,
        "deployments": by(_deployment),
        "models": by(lambda p: (p.run.family,)),
        "gpus": by(lambda p: (p.run.gpu,)),
        "all": group(predictions),
    }


def _deployment(prediction: Prediction) -> tuple[str, ...]:
    """As the page names it: report.group_of."""
    from accuracy.report import group_of

    return group_of(prediction)


def write_bands(path: Path, predictions: Sequence[Prediction]) -> None:
    write_json(path, bands(predictions))


def write_json(path: Path, tree: dict[str, Any]) -> None:
    """A line for each group."""
    parts = []
    for key, value in tree.items():
        if isinstance(value, dict) and key != "all":
            rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(figures)}" for name, figures in value.items())
            parts.append(f"  {json.dumps(key)}: {{\n{rows}\n  }}")
        else:
            parts.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
