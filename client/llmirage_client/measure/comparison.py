"""Two runs side by side: differences of figures and settings, and the noise that repeats of the runs would show.

Noise is estimated by drawing conversations anew with replacement (cluster bootstrap): requests of one conversation tree
share their context, their place in the cluster and its queue, so whole trees are drawn. Requests of one time share the
load of that time: `parts` of the run are drawn likewise (block bootstrap).
Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap, 1993, ch. 8, 13.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from llmirage_client.measure.catalogue import PER_REQUEST, WHOLE_RUN
from llmirage_client.measure.columns import Columns, columns_of
from llmirage_client.measure.equal_load import at_equal_load, loaded
from llmirage_client.measure.metrics import compute, compute_columns
from llmirage_client.measure.record import RunResult
from llmirage_client.measure.request_metrics import request_columns
from llmirage_shared.plural import plural
from llmirage_shared.statistics import Floats, Ints, ratio

REPLICATES = 500
_AT_ONCE = 4_000_000  # weights held in memory at a time


def parts(start_s: Floats, count: int) -> Ints:
    """Return for each request the part of the run in which it began, of `count` parts with as many requests each."""
    place = np.argsort(np.argsort(start_s, kind="stable"), kind="stable")
    return place * count // max(start_s.size, 1)


def student_t(probability: float, freedom: int) -> float:
    """Return quantile of Student's t distribution.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom**power for power, term in enumerate(terms, 1)))


Counts = npt.NDArray[np.int32]  # how often each cluster is drawn, shape (replicates, clusters)


def draws(clusters: int, rng: np.random.Generator, replicates: int = REPLICATES) -> Counts:
    """Return the draws of each cluster; every row sums to `clusters`."""
    chosen = rng.integers(0, max(clusters, 1), size=(replicates, clusters))
    counts = np.zeros((replicates, clusters), dtype=np.int32)
    np.add.at(counts, (np.arange(replicates)[:, None], chosen), 1)
    return counts


def means(values: Floats, cluster: Ints, counts: Counts) -> Floats:
    """Return the mean of the values in each replicate, NaN where none was drawn.

    values, cluster: one entry a row, without NaN.
    """
    return ratios(values, np.ones(values.size), cluster, counts)


def ratios(upper: Floats, lower: Floats, cluster: Ints, counts: Counts) -> Floats:
    """Sum of upper / sum of lower in each replicate, NaN where lower sums to 0."""
    clusters = counts.shape[1]
    sums = [np.bincount(cluster, weights=values, minlength=clusters) for values in (upper, lower)]
    above, below = (np.asarray(counts @ one, dtype=np.float64) for one in sums)
    return ratio(above, below)


def percentiles(values: Floats, cluster: Ints, counts: Counts, percents: Sequence[float]) -> Floats:
    """Return percentiles of the values in each replicate, NaN where none was drawn, shape (replicates, percents).

    A percentile is the smallest value that this percentage of values does not exceed.
    """
    order = np.argsort(values)
    values, cluster = values[order], cluster[order]
    found = np.full((counts.shape[0], len(percents)), np.nan)
    step = max(_AT_ONCE // max(values.size, 1), 1)
    shares = np.array(percents) / 100
    for begin in range(0, counts.shape[0], step):
        weights = np.cumsum(counts[begin : begin + step][:, cluster], axis=1, dtype=np.int64)
        drawn = weights[:, -1:]
        rows = np.flatnonzero(drawn)
        above = rows[:, None] * (drawn.max() + 1)  # one search for all rows: each lies above the one before
        places = np.searchsorted((weights[rows] + above).ravel(), np.ceil(shares * drawn[rows]).clip(1) + above)
        found[begin + rows] = values[places - np.arange(rows.size)[:, None] * values.size]
    return found


FEWEST_CLUSTERS = 8  # fewer conversations than this say nothing about how conversations vary
FEWEST_BEYOND = 5  # values above a percentile that its noise can be judged by
_SLICES = 30  # of a run, for rates
_PARTS = (10, 5)  # of a run, drawn for what its requests have in common at a time; 5 for loads that vary more slowly
_FALSE_ALARM = 0.02  # chance that any figure of two runs of one system counts as worse
_SEEN = 0.9  # chance with which a worsening of `seen` is found

Statistic = Literal["avg", "p50", "p90", "p99", "at_equal_load", ""]

_PER_REQUEST: tuple[tuple[str, tuple[Statistic, ...]], ...] = (
    ("time_to_first_token", ("avg", "p50", "p90", "p99")),
    ("first_turn_time_to_first_token", ("p50",)),
    ("subsequent_turn_time_to_first_token", ("p50",)),
    ("inter_token_latency", ("avg", "p50", "p90", "p99")),
    ("request_latency", ("avg", "p50", "p90", "p99")),
    ("effective_latency", ("p50", "p99")),
    ("input_sequence_length", ("avg",)),
    ("output_sequence_length", ("avg",)),
)
_LARGER_IS_BETTER = {"request_throughput", "output_token_throughput", "total_token_throughput"}
_SMALLER_IS_BETTER = {
    "time_to_first_token", "first_turn_time_to_first_token", "subsequent_turn_time_to_first_token", "inter_token_latency",
    "request_latency", "effective_latency", "request_error_rate",
}  # fmt: skip


@dataclass(slots=True, frozen=True)
class Difference:
    """One figure of two runs, in `unit`. low, high: between these the difference lies with the confidence asked for.

    error: one standard error of the difference. They are None when there is too little to tell, and `why_not` says what is
    too little.
    """

    tag: str
    title: str
    statistic: Statistic
    unit: str
    baseline: float
    value: float
    low: float | None = None
    high: float | None = None
    error: float | None = None
    why_not: str | None = None

    @property
    def difference(self) -> float:
        return self.value - self.baseline

    @property
    def percent(self) -> float | None:
        return 100 * self.difference / self.baseline if self.baseline else None

    @property
    def beyond_noise(self) -> bool | None:
        """True if the two differ by more than chance; None: cannot be told."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0

    @property
    def better(self) -> bool | None:
        """None where it differs by chance only, or where neither way is better."""
        return None if not self.beyond_noise or not self.worsening else self.worsening < 0

    @property
    def worsening(self) -> float | None:
        """By how much the run is worse than the baseline; None where neither way is better."""
        if self.tag not in _LARGER_IS_BETTER | _SMALLER_IS_BETTER:
            return None
        return -self.difference if self.tag in _LARGER_IS_BETTER else self.difference


@dataclass(slots=True, frozen=True)
class Comparison:
    """Differences of two runs.

    paired: the runs had the same conversations, and each was drawn together with its twin, which takes away what the
    conversations themselves vary by. conversations: trees of the baseline and of the other run.
    """

    differences: tuple[Difference, ...]
    paired: bool
    conversations: tuple[int, int]

    @property
    def judged(self) -> list[Difference]:
        """The figures that can be worse, and of which the runs have enough to tell."""
        return [one for one in self.differences if one.worsening is not None and one.error is not None]

    @property
    def _errors(self) -> float:
        """From how many standard errors on a worsening counts, so that all figures together are a false alarm rarely."""
        return student_t(1 - _FALSE_ALARM / max(len(self.judged), 1), _PARTS[0] - 1)

    def worse(self, tolerance: float = 0.0) -> list[Difference]:
        """Return the figures that are worse by more than chance and a share of the baseline's value."""
        least = self._errors
        return [
            one for one in self.judged if (one.worsening or 0.0) > tolerance * abs(one.baseline) + least * (one.error or 0.0)
        ]

    def seen(self, one: Difference, tolerance: float = 0.0) -> float | None:
        """Return the worsening, in percent of the baseline's value, that `worse` would find 9 times in 10.

        None: cannot be told.
        """
        if one.error is None or one.worsening is None or not one.baseline:
            return None
        return 100 * (tolerance + (self._errors + student_t(_SEEN, _PARTS[0] - 1)) * one.error / abs(one.baseline))


def compare(baseline: RunResult, other: RunResult, *, confidence: float = 0.95, seed: int = 0) -> Comparison:
    """Return every figure that both runs have. The same seed gives the same bounds."""
    one, two = _Side(baseline), _Side(other)
    rng = np.random.default_rng(seed)
    paired = one.trees == two.trees
    of_trees = draws(len(one.trees), rng)
    of_other_trees = of_trees if paired else draws(len(two.trees), rng)
    of_parts = [draws(count, rng) for count in _PARTS]
    one.resample(of_trees, of_parts)
    two.resample(of_other_trees, of_parts)
    pair = _Pair(one, two, confidence)
    found = [*pair.of_requests(), *pair.at_equal_load(), *pair.of_runs(rng)]
    return Comparison(tuple(found), paired, (len(one.trees), len(two.trees)))


class _Side:
    """A run's measured requests. trees: names of its conversation trees, sorted; cluster: each row's place among them.

    part: the part of the run in which each row began, of _PARTS[0]. resamplings: the cluster of each row with the draws of
    the clusters; of trees first, then of each number of parts.
    """

    def __init__(self, result: RunResult) -> None:
        records = [r for r in result.records if r.phase == "profiling"]
        self.columns: Columns = columns_of(records)
        self.speed = result.speed
        self.metrics = request_columns(self.columns, result.speed)
        self.whole_run = compute_columns(self.columns, result.speed, metrics=self.metrics).whole_run
        names: dict[str, tuple[str, int]] = {}
        seen: Counter[str] = Counter()
        for record in sorted(records, key=lambda r: (r.session_num, r.turn_index)):
            if record.root_correlation_id not in names:
                names[record.root_correlation_id] = (record.conversation_id, seen[record.conversation_id])
                seen[record.conversation_id] += 1
        self.trees = sorted(names.values())
        place = {tree: i for i, tree in enumerate(self.trees)}
        self.cluster: Ints = np.array([place[names[r.root_correlation_id]] for r in records], dtype=np.int64)
        self.part: Ints = parts(self.columns.start_s, _PARTS[0])
        self.resamplings: list[tuple[Ints, Counts]] = []

    def resample(self, of_trees: Counts, of_parts: Sequence[Counts]) -> None:
        parts = [(self.part * counts.shape[1] // _PARTS[0], counts) for counts in of_parts]
        self.resamplings = [(self.cluster, of_trees), *parts]

    def failures(self) -> tuple[Floats, Floats]:
        """Return for each row whether it failed, and whether it was completed."""
        completed = ~self.columns.cancelled
        return (completed & ~self.columns.ok).astype(np.float64), completed.astype(np.float64)

    def cached(self) -> tuple[Floats, Floats]:
        """Return the cached prompt tokens of each row, and its prompt tokens."""
        tags = ("usage_prompt_cache_read_tokens", "usage_prompt_tokens")
        cached, prompts = (np.nan_to_num(self.metrics[tag]) for tag in tags)
        return cached, prompts

    def rates(self, tag: str) -> Floats:
        """Return the rate in each of _SLICES equal parts of the run; tokens are booked when their request is over."""
        columns = self.columns
        amount = np.ones(len(columns))
        if tag != "request_throughput":
            amount = self.metrics["output_sequence_length"]
            if tag == "total_token_throughput":
                amount = amount + self.metrics["input_sequence_length"]
        ok = columns.ok & ~np.isnan(amount)
        if not ok.any():
            return np.zeros(_SLICES)
        begin, end = float(columns.start_s[ok].min()), float(columns.end_s[ok].max())
        if end <= begin:
            return np.zeros(_SLICES)
        sums, _ = np.histogram(columns.end_s[ok], bins=_SLICES, range=(begin, end), weights=amount[ok])
        rates: Floats = sums * (_SLICES / ((end - begin) * self.speed))
        return rates


class _Pair:
    """Both runs: the differences of their figures, with bounds of this confidence."""

    def __init__(self, one: _Side, two: _Side, confidence: float) -> None:
        self.sides = one, two
        self._tail = (1 - confidence) / 2
        fewest = min(len(one.trees), len(two.trees))
        self._few = f"only {plural(fewest, 'conversation')}" if fewest < FEWEST_CLUSTERS else None

    def of_requests(self) -> Iterator[Difference]:
        for tag, statistics in _PER_REQUEST:
            if any(tag not in side.metrics for side in self.sides):
                continue
            known = [~np.isnan(side.metrics[tag]) for side in self.sides]
            values = [side.metrics[tag][here] for side, here in zip(self.sides, known, strict=True)]
            drawn = [
                [_replicated(v, cluster[here], counts, statistics) for cluster, counts in side.resamplings]
                for side, here, v in zip(self.sides, known, values, strict=True)
                if self._few is None
            ]
            for place, statistic in enumerate(statistics):
                percent = 0.0 if statistic == "avg" else float(statistic[1:])
                requests = min(v.size for v in values)
                why_not = self._few
                if why_not is None and percent and requests * (1 - percent / 100) < FEWEST_BEYOND:
                    why_not = f"only {plural(requests, 'request')}"
                spec = PER_REQUEST[tag]
                one, two = (float(v.mean() if statistic == "avg" else np.percentile(v, percent)) for v in values)
                if why_not is None and percent:
                    sides = zip(self.sides, known, values, (one, two), strict=True)
                    here = min(np.unique(side.part[has][v > figure]).size for side, has, v, figure in sides)
                    if 0 < here < FEWEST_BEYOND:
                        why_not = (
                            f"the values above {spec.title} {statistic} are all from {here} of {_PARTS[0]} parts of a run"
                        )
                found = {}
                if why_not is None:
                    found = self._bounds(two - one, [b[:, place] - a[:, place] for a, b in zip(*drawn, strict=True)])
                yield Difference(tag, spec.title, statistic, spec.unit, one, two, **found, why_not=why_not)

    def at_equal_load(self) -> Iterator[Difference]:
        first, second = (loaded(side.columns, side.metrics, side.part) for side in self.sides)
        part_counts = tuple(counts for _, counts in self.sides[0].resamplings[1:])
        for tag in [tag for tag in first if tag in second]:
            spec = PER_REQUEST[tag]
            why_not: str | None
            found: dict[str, float] = {}
            expected, value = (float(side[tag].values.mean()) for side in (first, second))
            result = at_equal_load(first[tag], second[tag], part_counts)
            if isinstance(result, str):
                why_not = result
            elif (why_not := self._few) is None:
                expected, value = result.expected, result.value
                found = self._bounds(value - expected, [result.apart[0], *result.apart])
            yield Difference(tag, spec.title, "at_equal_load", spec.unit, expected, value, **found, why_not=why_not)

    def of_runs(self, rng: np.random.Generator) -> Iterator[Difference]:
        for tag, sums in (("request_error_rate", _Side.failures), ("overall_usage_prompt_cache_read_pct", _Side.cached)):
            if all(tag in side.whole_run for side in self.sides):
                drawn = [
                    [100 * ratios(*sums(side), *one) for one in side.resamplings] for side in self.sides if not self._few
                ]
                yield self._of_run(tag, [b - a for a, b in zip(*drawn, strict=True)], self._few)
        for tag in ("request_throughput", "output_token_throughput", "total_token_throughput"):
            if all(tag in side.whole_run for side in self.sides):
                slices = [side.rates(tag) for side in self.sides]
                if any((np.isfinite(s) & (s > 0)).sum() < _SLICES // 2 for s in slices):
                    yield self._of_run(tag, [], "too few requests for rates over time")
                else:
                    one, two = (s[rng.integers(0, _SLICES, size=(REPLICATES, _SLICES))].mean(axis=1) for s in slices)
                    yield self._of_run(tag, [two - one], None)

    def _of_run(self, tag: str, apart: Sequence[Floats], why_not: str | None) -> Difference:
        spec, (one, two) = WHOLE_RUN[tag], (side.whole_run[tag] for side in self.sides)
        found = {} if why_not else self._bounds(two - one, apart)
        return Difference(tag, spec.title, "", spec.unit, one, two, **found, why_not=why_not)

    def _bounds(self, difference: float, apart: Sequence[Floats]) -> dict[str, float]:
        """Return low, high and error of a difference, from that of replicates in each resampling: trees, numbers of parts.

        The resampling that scatters most counts: it is the one that draws what the requests have in common.
        """
        by_trees = apart[0][~np.isnan(apart[0])]
        if not by_trees.size:
            return {}
        low, high = np.percentile(by_trees, (100 * self._tail, 100 - 100 * self._tail))
        error = float(by_trees.std())
        for count, drawn in zip(_PARTS, apart[1:], strict=False):
            wider = float(np.nanstd(drawn)) * (count / (count - 1)) ** 0.5
            if wider > error:
                error, half = wider, wider * student_t(1 - self._tail, count - 1)
                low, high = difference - half, difference + half
        return {"low": float(low), "high": float(high), "error": error}


def _replicated(values: Floats, cluster: Ints, counts: Counts, statistics: Sequence[Statistic]) -> Floats:
    """Return each statistic in each replicate, shape (replicates, statistics)."""
    percents = [float(statistic[1:]) for statistic in statistics if statistic != "avg"]
    found = percentiles(values, cluster, counts, percents)
    return np.column_stack([means(values, cluster, counts), found]) if statistics[0] == "avg" else found


# Options that say where files go or where requests come from, not what was asked of the endpoint.
_NO_MATTER = {
    "artifact_dir", "overwrite", "records", "api_key", "url", "headers", "goodput", "slo", "junit", "slice_duration", "otel",
    "file",
}  # fmt: skip


def run_differences(baseline: RunResult, other: RunResult) -> list[str]:
    """Return one sentence each, about the workload, the settings and how the runs ended.

    Empty when there is nothing to say.
    """
    found = []
    settings: tuple[tuple[str, Any, Any], ...] = (
        ("model", baseline.model, other.model),
        ("API", baseline.endpoint, other.endpoint),
        ("workload", baseline.workload_path, other.workload_path),
        ("format of the workload", baseline.workload_format, other.workload_format),
        ("streaming", baseline.streaming, other.streaming),
        ("speed", baseline.speed, other.speed),
    )
    for word, one, two in settings:
        if one != two:
            found.append(f"The {word} differs: {_shown(one)} and {_shown(two)}.")
    settings_given = []
    for name in sorted((baseline.options.keys() | other.options.keys()) - _NO_MATTER - {"model", "streaming", "speed"}):
        one, two = _shown(baseline.options.get(name)), _shown(other.options.get(name))
        if one != two:
            settings_given.append(f"{name} ({one}, {two})")
    if settings_given:
        found.append(f"Settings differ: {', '.join(settings_given)}.")
    if _conversations(baseline) != _conversations(other):
        counts = " and ".join(str(len(_conversations(run))) for run in (baseline, other))
        found.append(f"The runs have different conversations ({counts} different ones).")
    for name, run in (("first", baseline), ("other", other)):
        if run.cancelled:
            found.append(f"The {name} run is not whole: {run.cancel_reason or 'it was stopped'}.")
        cost = compute(run).client
        if cost is not None and cost.was_bottleneck:
            state = "late" if cost.late else "busy"
            found.append(f"The client of the {name} run was {state}: its figures may be worse than the endpoint is.")
    return found


def _conversations(run: RunResult) -> Counter[str]:
    roots = {
        (r.root_correlation_id, r.conversation_id) for r in run.records if r.agent_depth == 0 and r.phase == "profiling"
    }
    return Counter(name for _, name in roots)


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if not value:  # switches that are off, lists without an entry, zeros: as if not given
        return "not given"
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
