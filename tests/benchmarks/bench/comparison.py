"""Compares what was measured with a baseline, and says which is slower.

The baseline file holds, for each build (Python version, sources or compiled modules), the median ratio of every measurement
and its spread. A measurement is slower when its ratio exceeds the baseline's by more than its tolerance.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bench.measurement import Repetition

LEAST_TOLERANCE = 0.10
TOLERANCE_IN_SPREADS = 4.0
# Half the distance between the quartiles of a normal distribution is 0.67 standard deviations; four of them are 2.7. The
# median of nine repetitions deviates by so much once in some billions, so what exceeds it is drift of the machine or a
# change. Ten percent is what drift alone did not reach in repeated runs on a busy machine.


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement's result.

    ratio: median cost of a unit, in passes of the calibration loop. spread: half the distance between the quartiles of the
    ratios, as a share of the median. cost_us: median CPU microseconds of a unit, on the machine where it was measured.
    """

    ratio: float
    spread: float
    cost_us: float


def figure_of(repetitions: Sequence[Repetition]) -> Figure:
    ratios = [each.ratio for each in repetitions]
    median = statistics.median(ratios)
    spread = 0.0
    if len(ratios) > 1:
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        spread = (high - low) / 2 / median
    return Figure(median, spread, statistics.median(each.cost_s for each in repetitions) * 1e6)


Verdict = Literal["slower", "same", "faster", "new", "missing"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measurement against the baseline. new: the baseline lacks it; missing: it is only there."""

    name: str
    verdict: Verdict
    now: Figure | None
    then: Figure | None

    @property
    def change(self) -> float:
        """By which share the ratio grew; 0 where there is nothing to compare."""
        return self.now.ratio / self.then.ratio - 1 if self.now and self.then else 0.0

    @property
    def tolerance(self) -> float:
        return tolerance(self.now, self.then) if self.now and self.then else 0.0

    @property
    def fails(self) -> bool:
        return self.verdict in ("slower", "new", "missing")


def tolerance(now: Figure, then: Figure) -> float:
    """The share by which a ratio may exceed the baseline's: by the larger spread of the two."""
    return max(LEAST_TOLERANCE, TOLERANCE_IN_SPREADS * max(now.spread, then.spread))


def compare(found: Mapping[str, Figure], baseline: Mapping[str, Figure], whole: bool) -> list[Comparison]:
    """whole: everything was measured, so what the baseline has beyond it is missing."""
    compared = []
    for name, now in found.items():
        then = baseline.get(name)
        verdict: Verdict = "new"
        if then is not None:
            most = 1 + tolerance(now, then)
            verdict = "slower" if now.ratio > then.ratio * most else "faster" if now.ratio * most < then.ratio else "same"
        compared.append(Comparison(name, verdict, now, then))
    if whole:
        compared += [Comparison(name, "missing", None, then) for name, then in baseline.items() if name not in found]
    return compared


@dataclass(frozen=True, slots=True)
class Baseline:
    """The figures of one build, and the machine that they were measured on."""

    machine: str
    figures: dict[str, Figure]


def read_baseline(path: Path, build: str) -> Baseline | None:
    """None if the file has nothing of that build."""
    builds = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if build not in builds:
        return None
    kept = builds[build]
    return Baseline(kept["machine"], {name: Figure(**figure) for name, figure in kept["figures"].items()})


def write_baseline(path: Path, build: str, machine: str, found: Mapping[str, Figure], whole: bool) -> None:
    """Put figures into the file. whole: they replace all of the build; else those of other names stay."""
    builds: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept = {} if whole else builds.get(build, {}).get("figures", {})
    figures = kept | {name: {key: _short(value) for key, value in asdict(figure).items()} for name, figure in found.items()}
    builds[build] = {"machine": machine, "figures": dict(sorted(figures.items()))}
    path.write_text(json.dumps(dict(sorted(builds.items())), indent=1) + "\n", encoding="utf-8")


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def table(compared: Iterable[Comparison], units: Mapping[str, str]) -> list[str]:
    """Lines for people: what it costs here, in passes of the calibration loop, and then."""
    head = f"{'measurement':<26}{'CPU time here':>20}{'ratio':>11}{'spread':>8}"
    lines = [f"{head}{'baseline':>11}{'change':>9}{'allowed':>9}"]
    for each in compared:
        now, then = each.now, each.then
        cost = f"{_time(now.cost_us)} a {units.get(each.name, 'unit')}" if now else "-"
        ratio, spread = (f"{now.ratio:.4g}", f"{now.spread:.1%}") if now else ("-", "-")
        row = f"{each.name:<26}{cost:>20}{ratio:>11}{spread:>8}{f'{then.ratio:.4g}' if then else '-':>11}"
        change, allowed = (f"{each.change:+.1%}", f"{each.tolerance:+.0%}") if now and then else ("-", "-")
        lines.append(f"{row}{change:>9}{allowed:>9}  {each.verdict if each.verdict != 'same' else ''}".rstrip())
    return lines


def _time(us: float) -> str:
    return f"{us:.3g} us" if us < 999.5 else f"{us / 1e3:.3g} ms" if us < 999.5e3 else f"{us / 1e6:.3g} s"
