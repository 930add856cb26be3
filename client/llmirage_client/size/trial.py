"""A simulation that says whether a cluster meets the objectives under a traffic."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmirage_client.measure.breakdowns import mean_in_flight
from llmirage_client.measure.columns import Columns
from llmirage_client.measure.metrics import Metrics, compute_columns
from llmirage_client.measure.slo import Objective, Verdict, judge
from llmirage_client.simulate.progress import SimulationProgress
from llmirage_client.simulate.saturation import LoadRates, mean_in_progress, rates_json, rates_of, steady_duration_s
from llmirage_client.simulate.simulation import Simulation, SimulationError, Window, simulate
from llmirage_client.simulate.summary import figures_of_run
from llmirage_client.simulator.bounds import Bounds
from llmirage_client.simulator.deployments import units
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.early_stopping import BATCHES, FEWEST_BATCHES, EarlyStopInTime, Interval, Looks, intervals_of
from llmirage_client.size.traffic import Kind, Traffic, amount_text, fill_up
from llmirage_shared.plural import plural
from llmirage_shared.statistics import Bools

REQUESTS = 1000  # that are measured: ten of them are beyond the 99th percentile
FEW_REQUESTS = 200  # a 99th percentile of fewer is the largest value or the second
_GROWTH = 1.15  # of the requests in flight, from the first half to the second: more means that they do not stay as many
_GROWTH_NOISE = 2.0  # standard deviations: of a Poisson count, and of the means of batches
_LONGER = 4
_LOOKS_OF_LONG = 3  # of a simulation that is to be long
_MORE = 8  # times the measured requests, where these leave a doubt
_BEYOND_DOUBT = 0.9  # of a limit
# Of conversations, whose number and whose cached tokens change only so fast. Clusters that lose more and more of what was
# cached look well for ten lifetimes: a short simulation shows that objectives are missed, and none that they are met.
_LIFETIMES, _MOST_LIFETIMES = 2, 12  # that are measured
_MOST_SESSIONS = 30  # times the measured requests, at most, for these
_MOST_SPREAD = 4.0  # times the measured requests, at most, for lengths that differ much


_RATES = ("request_per_s", "output_tok_per_s", "total_tok_per_s")


@dataclass(frozen=True, slots=True)
class Trial:
    """verdicts: of the objectives; empty where the run was stopped early. problem: what fails besides the objectives.

    requests: simulated, all of them. counted: measured. figures: Simulation.summary. intervals: of the objectives' figures.
    rates: offered and delivered; None for users at once.
    """

    config: ClusterConfig
    kind: Kind
    amount: float
    verdicts: tuple[Verdict, ...]
    problem: str | None
    requests: int
    counted: int
    figures: dict[str, Any]
    intervals: tuple[Interval | None, ...]
    rates: LoadRates | None

    @property
    def clear(self) -> bool:
        """True if the noise of the simulation leaves no doubt about `met`."""
        if not self.verdicts or (self.problem is not None and all(verdict.met for verdict in self.verdicts)):
            return True
        pairs = list(zip(self.verdicts, self.intervals, strict=True))
        if self.met:
            return all(interval is None or interval.clear(verdict.objective) for verdict, interval in pairs)
        return any(
            not verdict.met and (interval is None or interval.clear(verdict.objective) is False)
            for verdict, interval in pairs
        )

    @property
    def met(self) -> bool:
        return self.problem is None and all(verdict.met for verdict in self.verdicts)

    @property
    def met_by_latency(self) -> bool:
        """As `met`, without the objectives that want much traffic: less of it misses them."""
        return self.problem is None and all(verdict.met for verdict in self.verdicts if not wants_traffic(verdict.objective))

    @property
    def alone(self) -> bool:
        """One user at a time."""
        return self.kind == "concurrency" and self.amount == 1

    @property
    def beyond_doubt(self) -> bool:
        """True if it meets the objectives by so much that half its traffic does, too."""
        pairs = zip(self.verdicts, self._worst_loads, strict=True)
        return self.problem is None and all(wants_traffic(one.objective) or load < _BEYOND_DOUBT for one, load in pairs)

    @property
    def load(self) -> float:
        """The share of the limit that the tightest objective uses; infinite where that is not known."""
        return max((verdict.load for verdict in self.verdicts), default=math.inf)

    @property
    def worst_load(self) -> float:
        """As `load`, at the worse ends of the intervals."""
        return max(self._worst_loads, default=math.inf)

    @property
    def _worst_loads(self) -> list[float]:
        """The share of its limit that each objective uses, at the worse end of its interval if it has one."""
        pairs = zip(self.verdicts, self.intervals, strict=True)
        return [verdict.load if one is None else one.load(verdict.objective) for verdict, one in pairs]

    @property
    def tightest(self) -> Verdict | None:
        return max(self.verdicts, key=lambda verdict: verdict.load, default=None)

    @property
    def reason(self) -> str:
        """The reason why the trial misses the objectives; "" if it meets them."""
        if self.problem is not None:
            return self.problem
        return "; ".join(str(verdict) for verdict in self.verdicts if not verdict.met)

    @property
    def traffic(self) -> str:
        return amount_text(self.kind, self.amount)


@dataclass(frozen=True, slots=True)
class Effort:
    """The cost of an answer: simulations, their requests, CPU seconds of this process."""

    simulations: int
    requests: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """first: requests sent before those that are measured. looks: after how many measured ones it may be over.

    whole: requests that are sent. prepared: requests of the workload that is made for them. ramp_s: see Traffic.run_options.
    batch: requests of a batch that tells of the noise, at least. met_ends: see Looks. longer: it is not to be repeated.
    """

    first: int
    looks: tuple[int, ...]
    whole: int
    prepared: int
    ramp_s: float
    batch: int
    met_ends: bool
    longer: bool

    def batches(self, count: int) -> int:
        return min(BATCHES, max(FEWEST_BATCHES, count // self.batch))


class Trials:
    """Runs each trial once. requests: how many are measured in each, if there are that many.

    progress: shows which trials are run, and how far one is.
    """

    def __init__(
        self,
        traffic: Traffic,
        objectives: Sequence[Objective],
        requests: int = REQUESTS,
        max_time_s: float | None = None,
        progress: SimulationProgress | None = None,
    ) -> None:
        self.traffic = traffic
        self.objectives = tuple(objectives)
        self._wanted = requests
        self._max_time_s = max_time_s
        self._progress = progress
        self._failures_allowed = any(objective.metric.tag == "request_error_rate" for objective in objectives)
        self._known: dict[tuple[Any, ...], Trial] = {}
        self._bounds: dict[Any, Bounds] = {}
        self._begun_s = time.process_time()
        self._simulations = 0
        self._requests = 0

    @property
    def effort(self) -> Effort:
        """Until now."""
        return Effort(self._simulations, self._requests, time.process_time() - self._begun_s)

    def begin(self, of: str, place: int = 0, count: int = 1) -> None:
        """Begin trials of something, the next of several: see SimulationProgress."""
        if self._progress is not None:
            self._progress.begin(of, place, count)

    def bounds(self, config: ClusterConfig) -> Bounds:
        one = replace(config, instances=1)
        if one not in self._bounds:
            self._bounds[one] = Bounds(one)
        return self._bounds[one]

    def run(self, config: ClusterConfig, amount: float, to_the_end: bool = False) -> Trial:
        """Simulate a load.

        to_the_end: do not stop when the objectives can no longer be met. Raises ConfigError and SimulationError.
        """
        return self._once(config, self.traffic.of(amount), to_the_end)

    def run_brief(self, config: ClusterConfig, amount: float) -> Trial:
        """Simulate as `run` does, but with conversations, too, objectives are taken as met as soon as noise leaves no doubt.

        It is enough to search by, not to answer by. Raises the same.
        """
        return self._once(config, self.traffic.of(amount), False, brief=True)

    def run_long(self, config: ClusterConfig, amount: float) -> Trial:
        """Simulate as `run` does, but objectives are not taken as met before four times as many requests.

        Raises the same.
        """
        return self._once(config, self.traffic.of(amount), False, long=True)

    def alone(self, config: ClusterConfig) -> Trial:
        """Simulate one user at a time, a bound that no number of instances improves.

        Raises ConfigError and SimulationError.
        """
        return self._once(config, replace(self.traffic, kind="concurrency", amount=1), True)

    def _once(
        self, config: ClusterConfig, traffic: Traffic, to_the_end: bool, long: bool = False, brief: bool = False
    ) -> Trial:
        whole: tuple[Any, ...] = config, traffic.kind, traffic.amount, to_the_end, long
        key = (*whole, brief) if brief and whole not in self._known else whole
        if key not in self._known:
            single_turns = traffic.source.single_turns
            plan = self._plan(config, traffic, long and not single_turns)
            if long and single_turns:
                plan = replace(plan, looks=plan.looks[:_LOOKS_OF_LONG], met_ends=False)
            trial = self._run(config, traffic, to_the_end, replace(plan, met_ends=True) if brief else plan)
            self._known[key] = trial
            if not trial.met or trial.counted == plan.looks[-1]:  # a whole one would be the same
                self._known[whole] = trial
            self._simulations += 1
            self._requests += trial.requests
        return self._known[key]

    def _run(self, config: ClusterConfig, traffic: Traffic, to_the_end: bool, plan: TrialPlan) -> Trial:
        source, first, progress = traffic.source, plan.first, self._progress
        workload, options = source.workload(plan.prepared), traffic.run_options(plan.whole, plan.ramp_s)
        window, looks, early_stop = None, None, None
        objectives = () if to_the_end else self.objectives
        failures = not (self._failures_allowed or to_the_end)
        if traffic.scenario is not None and options.benchmark_duration_s is not None:
            early_stop = EarlyStopInTime(objectives, options.benchmark_duration_s, failures)
        elif source.in_tokens and traffic.scenario is None:
            looks = Looks(objectives, first, plan.looks, failures, self._floors(config), plan.batches, plan.met_ends)
            window = Window(first, plan.looks[-1], looks)
        try:
            simulation = simulate(
                config,
                workload,
                options,
                window=window,
                early_stop=early_stop,
                max_time_s=self._max_time_s,
                on_progress=None if progress is None else lambda over, now, _: progress.update_of(over, plan.whole, now),
            )
        except SimulationError as error:
            if traffic.scenario is None:
                raise
            return Trial(config, traffic.kind, traffic.amount, (), str(error), 0, 0, {}, (), None)
        columns, metrics = simulation.columns, simulation.metrics
        count = plan.looks[-1] if window is None else window.count
        if traffic.scenario is not None:
            count = int(columns.measured.sum())
        elif window is None:
            columns = replace(columns, measured=_of_rank(columns, first, count))
        rates = rates_of(columns, traffic.amount, source.clumping, True) if traffic.kind == "request_rate" else None
        users = mean_in_progress(columns)
        if traffic.kind == "concurrency" and not source.forks:
            users = min(users, traffic.amount)
        if traffic.scenario is None and window is None:
            metrics = compute_columns(columns, duration_s=steady_duration_s(columns, users, rates))
        verdicts = () if simulation.stopped else judge(self.objectives, metrics)
        unmeasured = [verdict.objective.text for verdict in verdicts if verdict.value is None]
        if unmeasured and not metrics.errors:
            raise SimulationError(f"--slo: {', '.join(unmeasured)}: no simulation of this load measures it")
        intervals = intervals_of(self.objectives, columns, plan.batches(count))
        problem = self._problem(simulation, metrics, count)
        if problem is None and rates is not None:
            problem = _growth(columns) or rates.shortfall
            if problem is not None and not plan.longer and all(verdict.met for verdict in verdicts):
                again = self._run(config, traffic, to_the_end, self._plan(config, traffic, True))
                return replace(again, requests=again.requests + len(columns))
        prompts = simulation.metrics.per_request.get("input_sequence_length")
        about = {"users": users, "isl": prompts and prompts.avg}
        figures = simulation.summary | rates_json(rates) | about
        if metrics is not simulation.metrics:
            figures |= _rates_of(metrics, figures)
        return Trial(config, traffic.kind, traffic.amount, verdicts, problem, len(columns), count, figures, intervals, rates)

    def _plan(self, config: ClusterConfig, traffic: Traffic, longer: bool = False) -> TrialPlan:
        """Return the plan of a trial. longer: of a cluster that may still fill up, or lose what was cached."""
        source = traffic.source
        if traffic.scenario is not None:
            return TrialPlan(0, (0,), 0, 0, 0.0, int(traffic.amount), False, False)
        wanted = math.ceil(self._wanted * min(source.spread, _MOST_SPREAD))
        fill = fill_up(traffic, self.bounds(config), units(config), self._wanted)
        first, waiting = fill.first, fill.waiting
        count = max(wanted, 2 * fill.busy)
        most, batch = max(count, _MORE * wanted), 1
        if not source.single_turns:
            batch, most = waiting, _MOST_SESSIONS * self._wanted
            count = max(count, min(_LIFETIMES * waiting, most))
            most = max(count, min(_MOST_LIFETIMES * waiting, most))
            if longer:
                most *= _LONGER
        if longer:
            first, count = first * _LONGER, min(count * _LONGER, most)
        looks = [count]
        lasts = source.tokens_alone or (source.in_tokens and source.single_turns)
        while lasts and looks[-1] < most:
            looks.append(min(looks[-1] * 2, most))
        if not source.tokens_alone and source.in_tokens and not source.single_turns:  # who misses by much need not go on
            looks = [count // 4, count // 2, count]
        whole = first + looks[-1] + 2 * fill.busy
        if source.limit is not None and source.limit < whole:
            whole = source.limit
            first = min(first, whole // 4)
            looks = sorted({min(look, whole - first) for look in looks})
        return TrialPlan(first, tuple(looks), whole, whole + waiting, fill.lifetime_s, batch, source.single_turns, longer)

    def _floors(self, config: ClusterConfig) -> dict[str, float]:
        """Return the least value of a metric in any request, ms."""
        sizes = self.traffic.source.sizes
        least_s = None if sizes is None else self.bounds(config).tpot_s(int(sizes.prompt.min()))
        many = sizes is not None and int(sizes.reply.min()) > 1  # a reply of one token has no gap
        return {"inter_token_latency": least_s * 1e3} if least_s is not None and many else {}

    def _problem(self, simulation: Simulation, metrics: Metrics, count: int) -> str | None:
        """Return a reason why the trial fails besides its objectives; that of an invalid run of a scenario, too."""
        whole, more = metrics.whole_run, f": {metrics.errors[0].error.message}" if metrics.errors else ""
        if simulation.stopped:
            return simulation.stopped if simulation.submission is None else f"{simulation.stopped}{more}"
        failed = int(whole.get("error_request_count", 0))
        if failed and not self._failures_allowed:
            return f"{failed:,} of {plural(count, 'request')} failed{more}"
        if not whole.get("request_count"):
            return "no request was answered"
        reasons = [] if simulation.submission is None else [*simulation.submission.reasons]
        return ", ".join(reason for reason in reasons if reason != "unsafe_override") or None


def wants_traffic(objective: Objective) -> bool:
    """Return whether the objective is a rate of the whole run that must be high."""
    return objective.statistic is None and objective.comparison[0] == ">"


def _of_rank(columns: Columns, first: int, count: int) -> Bools:
    """Return the measured rows among `count` requests from number `first` on, in the order they were sent."""
    order = np.argsort(columns.start_s, kind="stable")
    measured = np.zeros(len(columns), dtype=bool)
    measured[order[first : first + count]] = True
    return measured & columns.measured


def _growth(columns: Columns) -> str | None:
    """Return a sentence if the requests in flight grow while the measured ones are sent."""
    starts = columns.start_s[columns.measured]
    if starts.size < FEW_REQUESTS:
        return None
    batches = mean_in_flight(columns, np.linspace(starts.min(), starts.max(), BATCHES + 1))
    halves = batches.reshape(2, BATCHES // 2)
    before, after = halves.mean(axis=1).tolist()
    error = math.sqrt(before + halves.var(axis=1, ddof=1).mean() * 4 / BATCHES)
    if after <= _GROWTH * before + _GROWTH_NOISE * error:
        return None
    return f"the load is not sustained: {before:,.0f} requests are in progress in the first half, {after:,.0f} in the second"


def _rates_of(metrics: Metrics, whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rates of measured requests in the form of a simulation's summary. whole: that of all requests."""
    rates = {name: rate for name, rate in figures_of_run(metrics).items() if name in _RATES}
    if whole["usd_per_m_output_tokens"] is not None and rates["output_tok_per_s"]:
        slower = whole["output_tok_per_s"] / rates["output_tok_per_s"]
        rates["usd_per_m_output_tokens"] = tuple(usd * slower for usd in whole["usd_per_m_output_tokens"])
    return rates | {"output_tok_per_s_per_gpu": rates["output_tok_per_s"] / whole["gpus"]}
