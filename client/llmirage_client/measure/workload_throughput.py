"""Token rates of the whole workload: overall, over its last 30 seconds and without its first fifth (evalscope's figures).

Tokens are booked when their request is over, all at once, as evalscope does; so a rate over a window is of the requests
that ended in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llmirage_client.measure.arrays import Floats
from llmirage_client.measure.columns import Columns

LAST_WINDOW_S = 30.0
WARM_UP_FRACTION = 0.2
CachedSource = Literal["server", "estimated", "mixed"]


@dataclass(slots=True, frozen=True)
class Rates:
    """Tokens per second of cluster time. last_window is overall when the run was no longer than LAST_WINDOW_S."""

    overall: float
    last_window: float
    steady_state: float


@dataclass(slots=True, frozen=True)
class Timeline:
    """One point a successful request, in order of its end, shape (n,). t_s: since the first start, in cluster time.

    new_prompt, cached_prompt, completion: tokens up to and with that request.
    """

    wall_start_s: float
    t_s: Floats
    completion: Floats
    new_prompt: Floats
    cached_prompt: Floats

    @property
    def wall_time_s(self) -> float:
        return float(self.t_s[-1]) if self.t_s.size else 0.0

    def rates(self) -> Mapping[str, Rates]:
        """Return by what is counted: total_prompt, new_prompt, cached_prompt, completion. Empty when no time passed."""
        if self.wall_time_s <= 0:
            return {}
        counted = {
            "total_prompt": self.new_prompt + self.cached_prompt,
            "new_prompt": self.new_prompt,
            "cached_prompt": self.cached_prompt,
            "completion": self.completion,
        }
        return {name: self._rates(tokens) for name, tokens in counted.items()}

    def _rates(self, tokens: Floats) -> Rates:
        wall_s = self.wall_time_s
        overall = float(tokens[-1]) / wall_s
        last = overall if wall_s <= LAST_WINDOW_S else self._since(tokens, wall_s - LAST_WINDOW_S)
        steady = self._since(tokens, WARM_UP_FRACTION * wall_s)
        return Rates(overall, overall if last is None else last, overall if steady is None else steady)

    def _since(self, tokens: Floats, moment_s: float) -> float | None:
        """Return the rate from the last point not after the moment, or the first point, to the end.

        None when that is no time.
        """
        anchor = max(int(np.searchsorted(self.t_s, moment_s, side="right")) - 1, 0)
        span_s = self.wall_time_s - float(self.t_s[anchor])
        return float(tokens[-1] - tokens[anchor]) / span_s if span_s > 0 else None


def timeline(columns: Columns, prompt: Floats, completion: Floats, cached: Floats, speed: float = 1.0) -> Timeline:
    """Return the timeline of tokens.

    Prompt, completion, cached: tokens of each row; unknown (NaN) counts as none, and cached is at most the prompt.
    """
    rows = np.flatnonzero(columns.ok & ~np.isnan(columns.end_s))
    rows = rows[np.argsort(columns.end_s[rows], kind="stable")]
    start_s = float(columns.start_s[rows].min()) if rows.size else 0.0
    whole, part = np.nan_to_num(prompt[rows]), np.nan_to_num(cached[rows])
    part = np.minimum(part, whole)
    return Timeline(
        wall_start_s=start_s,
        t_s=(columns.end_s[rows] - start_s) * speed,
        completion=np.cumsum(np.nan_to_num(completion[rows])),
        new_prompt=np.cumsum(whole - part),
        cached_prompt=np.cumsum(part),
    )


def cached_or_estimated(
    columns: Columns, prompt: Floats, completion: Floats, cached: Floats | None
) -> tuple[Floats, CachedSource]:
    """Return cached prompt tokens of each row and their source: the server's counts, or evalscope's estimate.

    The estimate is what a cache that forgets nothing would have: the prompt and the reply of the turn before, at most the
    prompt itself; 0 for a first turn.
    """
    seen = np.where(columns.continues >= 0, (prompt + completion)[columns.continues], 0.0)
    estimate = np.where(columns.ok, np.minimum(np.nan_to_num(seen), prompt), np.nan)
    if cached is None:
        return estimate, "estimated"
    missing = columns.ok & np.isnan(cached)
    if not missing.any():
        return np.minimum(cached, prompt), "server"
    return np.where(missing, estimate, np.minimum(cached, prompt)), "mixed"
