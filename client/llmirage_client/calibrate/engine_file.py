"""Engine files: the result of a calibration, for `--engine FILE` of serve, simulate, sweep, size and step."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from llmirage_client.calibrate.measured_run import MeasuredRun, figures_of
from llmirage_client.measure.arrays import Floats
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.simulator.replay import replay, with_engine

_NOT_OURS = ("name", "base", "version")  # what a version does to a GPU's host times is in them already


def engine_text(base: str, values: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """Return the YAML of an engine that differs from a named one in these fields."""
    lines = [*(f"# {comment}".rstrip() for comment in comments), f"base: {base}"]
    return "\n".join([*lines, *(f"{name}: {_scalar(value)}" for name, value in values.items())]) + "\n"


def changed_fields(profile: Mapping[str, Any], named: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """Return the fields of an engine file: where the profile differs from the named one it is based on, and the factors."""
    own = {name: value for name, value in profile.items() if name not in _NOT_OURS and value != named[name]}
    return own | {name: _rounded(value) for name, value in values.items() if _rounded(value) != named[name] or name in own}


class Replays:
    """Serves the requests of measured runs on a cluster with changed factors. A context, as it writes engine files."""

    def __init__(
        self, config: ClusterConfig, profile: Mapping[str, Any], named: Mapping[str, Any], runs: Sequence[MeasuredRun]
    ):
        self._config, self._profile, self._named, self._runs = config, profile, named, runs
        self._made = 0

    def __enter__(self) -> Replays:
        self._folder = tempfile.TemporaryDirectory(prefix="llmirage-")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._folder.cleanup()

    def __call__(self, values: Mapping[str, float]) -> list[dict[str, Floats]]:
        """Return for each run TTFT, TPOT and latency of its requests, s."""
        self._made += 1  # a name of its own, as plans are cached by the names in a configuration
        file = Path(self._folder.name) / f"{self._made}.yaml"
        exact = {name: float(value) for name, value in values.items()}
        fields = changed_fields(self._profile, self._named, {}) | exact
        file.write_text(engine_text(self._profile["base"], fields), encoding="utf-8")
        config = with_engine(self._config, str(file), self._profile["block_size"])
        return [_figures(config, run) for run in self._runs]


def _figures(config: ClusterConfig, run: MeasuredRun) -> dict[str, Floats]:
    times = replay(config, run.requests)
    return figures_of(times.start_s, times.first_s, times.end_s, run.requests.output)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _scalar(value: Any) -> str:
    """Return JSON as YAML; the keys of tiers are numbers."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key:g}: {entry}" for key, entry in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
