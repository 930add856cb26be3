"""The highest load that meets a condition: doubling until it is missed, then bisection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class MaxSearch:
    """Asks for loads (`next_load`) and is told whether each met the condition (`tell`), until next_load is None.

    start: the first load tried. lower, upper: bounds, which may be tried themselves. whole: loads are whole numbers.
    precision: when the lowest miss is within this share above the highest hit, the search ends; whole loads also end when
    they are neighbours. best: the highest load that met the condition. worst: the lowest that missed it.
    """

    start: float
    lower: float
    upper: float
    whole: bool
    precision: float
    best: float | None = None
    worst: float | None = None

    def next_load(self) -> float | None:
        best, worst = self.best, self.worst
        if best is None and worst is None:
            return min(max(self.start, self.lower), self.upper)
        if worst is None:
            assert best is not None
            return min(best * 2, self.upper) if best < self.upper else None
        if best is None:
            return max(worst // 2 if self.whole else _rounded(worst / 2), self.lower) if worst > self.lower else None
        middle = (best + worst) // 2 if self.whole else _rounded((best + worst) / 2)
        close = worst - best <= self.precision * best
        return middle if best < middle < worst and not close else None

    def tell(self, load: float, met: bool) -> None:
        if met:
            self.best = load if self.best is None else max(self.best, load)
        else:
            self.worst = load if self.worst is None else min(self.worst, load)


def _rounded(load: float) -> float:
    """To three digits, so that a rate can be read and typed again."""
    return float(f"{load:.3g}")
