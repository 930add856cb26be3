"""Times of one run against what the baseline's server would have taken for the same requests under the same load.

Runs of one server differ because requests arrive at other moments and have other lengths. The client knows both: how many
requests were in flight beside each, with how many tokens. A linear regression over the baseline's requests says what its
server takes under a load; the mean of that over the loads that the run's requests met is what the run is compared with
(W. G. Cochran, Analysis of covariance: its nature and uses, Biometrics 13, 1957).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmirage_client.measure.columns import Columns
from llmirage_shared.plural import plural
from llmirage_shared.statistics import Floats, Ints

_SLACK = 0.02  # of the baseline's least and largest load: loads that hardly vary are alike, not equal
FEWEST_REQUESTS = 50


@dataclass(slots=True, frozen=True)
class Loaded:
    """A metric of some requests, in their order, with the part of the run that each began in.

    loads: what each met, shape (requests, measures); the first measure is 1 for all.
    """

    values: Floats
    part: Ints
    loads: Floats


def loaded(columns: Columns, metrics: Mapping[str, Floats], part: Ints) -> dict[str, Loaded]:
    """Return TTFT and time per output token, by tag, of the streamed requests that succeeded; empty where there is none."""
    if "time_to_first_token" not in metrics:
        return {}
    chosen = ~np.isnan(metrics["time_to_first_token"]) & ~np.isnan(metrics["input_sequence_length"])
    start, first, last = (v[chosen] for v in (columns.start_s, columns.first_s, columns.last_s))
    isl, osl, part = metrics["input_sequence_length"][chosen], metrics["output_sequence_length"][chosen], part[chosen]
    cached = metrics.get("usage_prompt_cache_read_tokens")
    new = isl if cached is None else isl - np.nan_to_num(cached[chosen])
    ones = np.ones(isl.size)
    waiting, decoding, held = _Level(start, first, new), _Level(first, last, ones), _Level(first, last, isl + osl / 2)
    queued = waiting.before(start)
    ttft = [ones, new, queued, (queued > 0) * ones, decoding.before(start), held.before(start)]
    found = {"time_to_first_token": Loaded(metrics["time_to_first_token"][chosen], part, np.stack(ttft, axis=1))}
    if "inter_token_latency" in metrics:
        several = ~np.isnan(metrics["inter_token_latency"][chosen])
        begin, end, steps = first[several], last[several], osl[several] - 1
        order = np.argsort(first)  # prompts are computed until their first token: those of one reply's time delay it
        between = [np.searchsorted(first[order], begin, side="right"), np.searchsorted(first[order], end, side="left")]
        tokens = np.concatenate(([0.0], np.cumsum(new[order])))
        prompts = [(tokens[between[1]] - tokens[between[0]]) / steps, (between[1] - between[0]) / steps]
        tpot = [ones[several], decoding.mean(begin, end), held.mean(begin, end), *prompts]
        values = metrics["inter_token_latency"][chosen][several]
        found["inter_token_latency"] = Loaded(values, part[several], np.stack(tpot, axis=1))
    return found


class _Level:
    """The sum of what intervals add while they last. begin, end, height: one entry an interval."""

    def __init__(self, begin: Floats, end: Floats, height: Floats) -> None:
        moments = np.concatenate((begin, end))
        order = np.argsort(moments, kind="stable")
        self._at = moments[order]
        self._height = np.concatenate(([0.0], np.cumsum(np.concatenate((height, -height))[order])))
        self._area = np.concatenate(([0.0, 0.0], np.cumsum(self._height[1:-1] * np.diff(self._at))))

    def before(self, moments: Floats) -> Floats:
        """Return the height just before each moment."""
        found: Floats = self._height[np.searchsorted(self._at, moments, side="left")]
        return np.maximum(found, 0.0)  # what rounding leaves

    def mean(self, begin: Floats, end: Floats) -> Floats:
        """Return the mean height between moments."""
        area = [
            self._area[i] + self._height[i] * (t - self._at[np.maximum(i, 1) - 1]) for i, t in map(self._place, (begin, end))
        ]
        height: Floats = np.divide(area[1] - area[0], end - begin, out=self.before(end), where=end > begin)
        return height

    def _place(self, moments: Floats) -> tuple[Ints, Floats]:
        return np.searchsorted(self._at, moments, side="right"), moments


@dataclass(slots=True, frozen=True)
class EqualLoad:
    """expected, value: means of the metric: of the baseline's server under the run's loads, and of the run.

    apart: their differences in each replicate of each way to draw parts.
    """

    expected: float
    value: float
    apart: tuple[Floats, ...]


def at_equal_load(one: Loaded, two: Loaded, drawn: tuple[npt.NDArray[np.int32], ...]) -> EqualLoad | str:
    """Compare two runs at equal load; return the reason as text if they cannot be.

    one: of the baseline. drawn: how often each part is drawn, shape (replicates, parts) each.
    """
    fewest = min(one.values.size, two.values.size)
    if fewest < FEWEST_REQUESTS:
        return f"only {plural(fewest, 'request')}"
    low, high, met = one.loads.min(axis=0), one.loads.max(axis=0), two.loads.mean(axis=0)
    if ((met < low - _SLACK * abs(low)) | (met > high + _SLACK * abs(high))).any():
        return "the runs had different loads"
    scale = np.maximum(np.abs(one.loads).max(axis=0), 1e-12)  # so that no measure is lost among larger ones
    first, second = one.loads / scale, two.loads / scale

    def replicated(counts: Floats, whole: Ints, other: Ints) -> tuple[Floats, Floats]:
        """Return expected and found means with parts drawn. whole, other: the part of each request of the two runs."""
        parts = counts.shape[1]
        products = np.stack([first[whole == p].T @ first[whole == p] for p in range(parts)])
        right = np.stack([first[whole == p].T @ one.values[whole == p] for p in range(parts)])
        ours = np.stack([np.append(first[whole == p].sum(axis=0), one.values[whole == p].sum()) for p in range(parts)])
        theirs = np.stack([np.append(second[other == p].sum(axis=0), two.values[other == p].sum()) for p in range(parts)])
        slopes = np.linalg.pinv(np.tensordot(counts, products, 1), rcond=1e-10, hermitian=True) @ (counts @ right)[..., None]
        before, after = counts @ ours, counts @ theirs
        before, after = before / before[:, :1], after / after[:, :1]  # the first measure counts requests
        change = ((after - before)[:, :-1] * slopes[..., 0]).sum(axis=1)
        return before[:, -1] + change, after[:, -1]

    expected, value = replicated(np.ones((1, drawn[0].shape[1])), one.part, two.part)
    apart = []
    for counts in drawn:
        parts, finest = counts.shape[1], drawn[0].shape[1]
        both = replicated(counts.astype(np.float64), one.part * parts // finest, two.part * parts // finest)
        apart.append(both[1] - both[0])
    return EqualLoad(float(expected[0]), float(value[0]), tuple(apart))
