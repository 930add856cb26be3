"""Sizing: the cheapest deployment that meets objectives, or the traffic that a deployment sustains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NoReturn

from llmirage_client.measure.slo import Objective, SloError, parse_slo
from llmirage_client.operations.workload import (
    load_of,
    load_workload,
    readable,
    resolved_scenario,
    spread,
    without_file_problem,
)
from llmirage_client.settings.endpoint import PromptSettings
from llmirage_client.settings.load import ScenarioSettings, TrafficSettings
from llmirage_client.settings.run import run_options
from llmirage_client.settings.scenario import default_seed
from llmirage_client.settings.simulation import SizingSettings
from llmirage_client.settings.workload import LengthSettings, WorkloadSettings
from llmirage_client.simulate.bill import catalogue_prices, read_prices
from llmirage_client.simulate.progress import SimulationProgress
from llmirage_client.simulate.saturation import in_step
from llmirage_client.simulate.simulation import SimulationError
from llmirage_client.simulator.cluster_settings import (
    ClusterSettings,
    ShapelessClusterSettings,
    check_effect,
    cluster_configs,
    effect_notes,
)
from llmirage_client.simulator.deployments import (
    OF_SPLIT,
    InstanceShape,
    Refused,
    assumed,
    gpus_of,
    has_fixed_times,
    is_moe,
    shapes,
    steady,
)
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.day import DayReport, size_day
from llmirage_client.size.day_file import Day, read_day
from llmirage_client.size.max_rate import max_rates
from llmirage_client.size.max_rate_report import MaxRateReport
from llmirage_client.size.pools import size_pools
from llmirage_client.size.report import Question, SizeReport, first_of, reason_text
from llmirage_client.size.sizing import Goal, Terms
from llmirage_client.size.sizing import size as find_size
from llmirage_client.size.traffic import RequestSource, Traffic, file_source, prioritised, synthetic_source
from llmirage_client.size.trial import REQUESTS, Trials
from llmirage_client.workload.session import Workload, WorkloadError
from llmirage_shared.settings import ConfigError, InputRefused, settings_of


@dataclass(frozen=True, kw_only=True)
class SizeSettings(SizingSettings, LengthSettings, WorkloadSettings, PromptSettings, ScenarioSettings):
    """Settings of `llmirage size`. cluster: without the settings that are looked for."""

    cluster: ClusterSettings = field(default_factory=ShapelessClusterSettings)

    @property
    def seed(self) -> int:
        return self.random_seed or 0


def size(
    workload: str | Workload | None,
    settings: SizeSettings,
    *,
    progress: Callable[[], SimulationProgress] = SimulationProgress,
) -> SizeReport | MaxRateReport | DayReport:
    """Find the cheapest deployment under objectives; with max_rate the traffic that deployments sustain.

    With day, the deployments of its hours.

    progress: makes the progress that is shown. Raises ConfigError.
    """
    _check_scenario(settings)
    try:
        if settings.max_rate:
            if settings.day is not None:
                _refuse("--max-rate finds the rate that deployments carry, and --day says which they have to")
            return _max_rate(workload, settings, progress())
        if settings.instances is not None:
            _refuse("--instances: their number is what size looks for; with --max-rate it finds the traffic that they carry")
        if settings.day is not None:
            return _day(workload, settings, settings.day, progress())
        return _size(workload, settings, progress())
    except SimulationError as error:
        _refuse(str(error))


def _day(
    file: str | Workload | None, settings: SizeSettings, place: str, progress: SimulationProgress
) -> SizeReport | DayReport:
    """Size the highest hour, and plan the others. A trace is the workload, too, if there is no other."""
    if settings.concurrency is not None or settings.disaggregated:
        _refuse("--day is of rates and equal instances: omit --concurrency and --disaggregated")
    try:
        day = read_day(
            place,
            settings.request_rate,
            lambda: load_workload(place, settings, tokenizer=settings.tokenizer, seed=settings.seed),
        )
    except WorkloadError as error:
        _refuse(str(error))
    if file is None and settings.isl is None:
        file = day.trace
    return _size(file, replace(settings, request_rate=max(day.rates)), progress, day)


def _size(
    file: str | Workload | None, settings: SizeSettings, progress: SimulationProgress, day: Day | None = None
) -> SizeReport | DayReport:
    traffic = _traffic(file, settings)
    source = traffic.source
    objectives, base, shapes, refused, notes = _asked(settings, source)
    if day is not None and day.prioritised and base.schedule_policy != "priority":
        day = day.without_priorities()
        notes.append("Priorities have no effect: schedule_policy is not priority (--set schedule_policy=priority).")
    if problems := _decided_by_the_load(objectives, traffic):
        _refuse("\n".join(problems))
    notes += () if day is None else day.notes
    if traffic.scenario is not None:
        notes += _of_rules(traffic)
    elif day is None or day.trace is None:
        notes += _of_workload(source, settings.concurrency)
    prices, price_source = _prices([shape.gpu for shape in shapes], settings)
    unknown = ", ".join(sorted({shape.gpu for shape in shapes} - set(prices)))
    goal: Goal = settings.goal or ("gpus" if unknown else "cost")
    if goal == "cost" and unknown:
        _refuse(f"--goal cost: the price of {unknown} is not known: give it with --price, or ask for --goal gpus")
    if settings.goal is None and unknown:
        notes.append(f"Ranked by GPUs, not by cost: the price of {unknown} is not known (--price).")
    if settings.disaggregated and source.lengths is None:
        _refuse("--disaggregated needs requests in token counts: lengths, or a file of them")
    trials = Trials(traffic, objectives, settings.requests or REQUESTS, settings.max_time, progress)
    terms = Terms(prices, goal, settings.max_gpus, settings.runners_up)
    with progress:
        sizing = find_size(base, shapes, trials, terms)
        planned = None if day is None else size_day(day, sizing, base, trials, terms)
        pools = None
        if settings.disaggregated:
            asked = cluster_configs(settings.cluster, settings.seed, settings.tokenizer)
            pools = size_pools(steady(asked[0])[0], shapes, trials, terms)
    question = Question(base, traffic, objectives, price_source, notes, shapes, refused, trials.effort, settings.explain)
    return SizeReport(question, sizing, pools) if planned is None else DayReport(question, planned)


_OF_THE_RATE = (
    "request_throughput",
    "output_token_throughput",
    "total_token_throughput",
    "benchmark_duration",
    "request_count",
)
_OF_LENGTHS = ("input_sequence_length", "output_sequence_length", "total_isl", "total_osl")
_BETWEEN_TOKENS = ("inter_token_latency", "inter_chunk_latency", "time_to_second_token")
_REASONS_SHOWN = 3
_MANY = 2  # users, or more: --max-rate looks for their number
_LOOKED_AT = 50  # requests of the workload


def _decided_by_the_load(objectives: tuple[Objective, ...], traffic: Traffic) -> list[str]:
    """Return problems of objectives that no deployment changes: any one would be as good as the others, or none would do."""
    specs = [turn.tokens for session in traffic.source.workload(_LOOKED_AT).sessions.values() for turn in session.turns]
    single = all(spec is not None and spec.output_tokens == 1 for spec in specs)
    problems = []
    for one in objectives:
        tag = one.metric.tag
        if tag in _OF_LENGTHS or (tag in _OF_THE_RATE and traffic.kind == "request_rate"):
            problems.append(f"--slo: {one.text}: the load decides this, not the deployment")
        elif tag in _BETWEEN_TOKENS and single:
            problems.append(f"--slo: {one.text}: replies have one token, so that there is no time between tokens")
    return problems


def _max_rate(file: str | Workload | None, settings: SizeSettings, progress: SimulationProgress) -> MaxRateReport:
    if settings.request_rate is not None:
        _refuse(
            "--max-rate finds the request rate: omit --request-rate (or use --concurrency 1 to find the number of users)"
        )
    settings = replace(settings, request_rate=None if settings.concurrency else 1.0)
    traffic = _traffic(file, settings)
    source = traffic.source
    objectives, base, shapes, refused, notes = _asked(settings, source)
    if (users := settings.concurrency) is not None and users > 1:
        notes.append(f"--concurrency {users:,} asks for a number of users; with --max-rate the number itself says nothing.")
    notes += _of_workload(source, settings.concurrency and _MANY)
    trials = Trials(traffic, objectives, settings.requests or REQUESTS, settings.max_time, progress)
    gpus = gpus_of(base) if base.pools else [shape.gpu for shape in shapes]
    prices, price_source = _prices(gpus, settings)
    with progress:
        found = max_rates(base, shapes, trials, settings.instances or base.instances)
    question = Question(base, traffic, objectives, price_source, notes, shapes, refused, trials.effort, settings.explain)
    return MaxRateReport(question, found, prices)


def _asked(
    settings: SizeSettings, source: RequestSource
) -> tuple[tuple[Objective, ...], ClusterConfig, list[InstanceShape], list[Refused], list[str]]:
    """Return the objectives, the cluster without its shape, the shapes, and notes on what of the cluster is left out.

    Clusters of several pools have no shapes. Shapes have room for each request, unless an objective says how many may fail.
    Exits where something is wrong with any of that.
    """
    problems: list[str] = []
    objectives: tuple[Objective, ...] = ()
    try:
        objectives = parse_slo(settings.slo)
    except SloError as error:
        problems += [f"--slo: {problem}" for problem in error.problems]
    asked = cluster_configs(settings.cluster, settings.seed, settings.tokenizer)
    base, notes = steady(asked[0])
    if settings.disaggregated:
        base, wrong = _without_pools(base, settings)
        problems += wrong
    if has_fixed_times(base):
        problems.append("fixed times (ttft_ms, itl_ms) are the same on any number of any GPU: leave them out to find a size")
    possible: list[InstanceShape] = []
    refused: list[Refused] = []
    if base.pools:
        problems += _of_pools(base, settings)
    try:
        if not base.pools:
            of = (
                base,
                settings.gpus or (base.gpu,),
                settings.engines or (base.engine,),
                settings.weights or (base.weights,),
            )
            sizes = (settings.tps or (), settings.pps or (), settings.dps or (), settings.eps or ())
            may_fail = any(one.metric.tag == "request_error_rate" for one in objectives)
            lengths = None if may_fail else source.sizes
            longest = 0 if lengths is None else int((lengths.prompt + lengths.reply).max())
            possible, refused = shapes(*of, *sizes, longest=longest)
            if settings.disaggregated and not any(sizes) and is_moe(base.model):
                wide, too_wide = shapes(*of, tps=(1,), eps=_WIDE, longest=longest)
                possible += [shape for shape in wide if shape not in possible]
                refused += too_wide
    except ConfigError as error:
        problems += error.problems
    if not problems and not possible and not base.pools:
        problems = _none_possible(refused, settings.explain)
    if problems:
        _refuse("\n".join(problems))
    plans = [shape.config(base, base.instances) for shape in possible] or [base]
    several = (settings.instances or base.instances) if settings.max_rate else 2  # size looks for their number
    looked_at = [*asked, *(shape.config(base, several) for shape in possible), *([] if possible else plans)]
    check_effect(looked_at)
    notes += effect_notes(looked_at)
    number_given = not settings.max_rate or settings.instances is not None
    of_answer = () if base.pools else OF_SPLIT  # told with each
    varied = () if base.pools else ("tensor_parallel_size", *(["instances"] if number_given else []))
    given = [
        name for name, flag in (("gpu", "gpus"), ("weights", "weights"), ("engine", "engines")) if getattr(settings, flag)
    ]
    notes += [f"Assumed, as not given: {text}." for text in assumed(plans[0], *varied, *given, *of_answer)]
    return objectives, base, possible, refused, notes


def _none_possible(refused: Iterable[Refused], explain: bool) -> list[str]:
    rows = [(", ".join(names), reason_text(reason, explain)) for reason, names in _by_reason(refused).items()]
    lines = first_of(rows, None if explain else _REASONS_SHOWN, "others, which --explain tells")
    return ["no deployment is possible:", *(f"  {line}" for line in lines)]


def _by_reason(refused: Iterable[Refused]) -> dict[str, list[str]]:
    """Return the names of the refused shapes, by reason."""
    found: dict[str, list[str]] = {}
    for one in refused:
        found.setdefault(one.reason, []).append(one.shape.name)
    return found


def _without_pools(base: ClusterConfig, settings: SizeSettings) -> tuple[ClusterConfig, list[str]]:
    """Return the cluster without the pools for which --disaggregated looks, and problems."""
    if settings.max_rate:
        return base, ["--disaggregated finds numbers of instances, and --max-rate the load of those that are given"]
    roles = sorted(pool.role for pool in base.pools)
    if roles not in ([], ["decode", "prefill"]):
        return base, [
            "--disaggregated takes a cluster file without pools, or with one of role prefill and one of role decode"
        ]
    return replace(base, pools=(), kv_transfer=None), []


_WIDE = (16, 32)  # GPUs over which experts are spread, beyond a node
_OF_SHAPES = ("gpus", "engines", "weights", "tps", "pps", "dps", "eps", "instances")


def _of_pools(base: ClusterConfig, settings: SizeSettings) -> list[str]:
    """Return problems of sizing a cluster of several pools."""
    names = [pool.name for pool in base.pools]
    if not settings.max_rate:
        varied = f"`llmirage sweep` with `slo:` and a grid over {names[0]}.instances and {names[1]}.instances"
        return [
            f"size looks for the number of one kind of instance, and the cluster has the pools {', '.join(names)}: "
            f"{varied} compares their numbers, and --max-rate says what the cluster carries as it is"
        ]
    given = [f"--{name}" for name in _OF_SHAPES if getattr(settings, name)]
    if given:
        return [
            f"{', '.join(given)}: the cluster has the pools {', '.join(names)}, and --max-rate takes it as it is; "
            "`llmirage sweep` varies single pools"
        ]
    if len({pool.model for pool in base.pools}) > 1:
        return [
            "the pools serve several models, and this traffic would go to the first alone: give --max-rate a cluster of "
            "that model, or use `llmirage simulate` with a workload that names its models"
        ]
    return []


def _of_workload(source: RequestSource, users: int | None) -> list[str]:
    """Return notes where the workload's own times are not used, and where its users are all alike."""
    alike = in_step(source.workload(1), users)
    notes = [] if alike is None else [alike]
    if source.workload(1).timed:
        notes.append(
            "The workload says when its conversations arrive; here they arrive as the traffic asked for. `llmirage sweep` "
            "with `slo:` judges clusters under the file's own times."
        )
    return notes


def _source(file: str | Workload | None, settings: SizeSettings) -> RequestSource:
    if problem := without_file_problem(file, replace(settings, requests=None)):  # here those of a simulation, files' too
        _refuse(problem)
    try:
        if file is not None:
            workload = load_workload(file, settings, tokenizer=settings.tokenizer, seed=settings.seed)
            source = file_source(workload)
        else:
            source = synthetic_source(
                str(spread(settings.isl, settings.isl_stddev)),
                str(spread(settings.osl, settings.osl_stddev)),
                str(settings.turns),
                str(settings.think_time),
                settings.shared_prefix,
                settings.seed,
            )
        if settings.priorities is not None:
            source = prioritised(source, settings.priorities, settings.seed)
        source.workload(1)
    except WorkloadError as error:
        _refuse(str(error))
    return source


def _traffic(file: str | Workload | None, settings: SizeSettings) -> Traffic:
    if settings.scenario is not None:
        return _traffic_of_scenario(file, settings)
    source = _source(file, settings)
    rate, users = settings.request_rate, settings.concurrency
    if (rate is None) is (users is None):
        timed = rate is None and source.workload(1).timed
        _refuse(
            "set the traffic with --request-rate or --concurrency"
            + ("; the file's own times are for `llmirage sweep`, with `slo:` and a grid over instances" if timed else "")
        )
    options = run_options(source.workload(1), _load(settings, settings.seed))
    if rate is not None:
        return Traffic(source, "request_rate", float(rate), options)
    return Traffic(source, "concurrency", float(users or 0), options)


_OTHER_LOADS = ("request_rate", "arrival_pattern", "arrival_smoothness", "day", "max_rate", "disaggregated")


def _check_scenario(settings: SizeSettings) -> None:
    """Exit where a scenario stands beside another load, or its duration without it."""
    if settings.scenario is None:
        if settings.benchmark_duration is not None:
            _refuse("--benchmark-duration needs --scenario: other loads last until the objectives are decided")
    elif others := [f"--{name.replace('_', '-')}" for name in _OTHER_LOADS if getattr(settings, name)]:
        _refuse(f"--scenario {settings.scenario} fixes the load: omit {', '.join(others)}")


def _traffic_of_scenario(file: str | Workload | None, settings: SizeSettings) -> Traffic:
    """Return the load that a scenario fixes, as `simulate` has it. A sizing is no submission. Raises ScenarioRefused."""
    seed = default_seed(settings.scenario) if settings.random_seed is None else settings.random_seed
    with readable():
        found = resolved_scenario(file, _load(settings, seed), submission=False)
        workload = load_of(file, found.settings, None)
    options = run_options(workload, found.settings, **found.fields)
    return Traffic(file_source(workload), "concurrency", float(options.concurrency or 1), options)


def _of_rules(traffic: Traffic) -> list[str]:
    """Return notes on the rules of a scenario."""
    violated = [f"Scenario {traffic.scenario}: violated: {one}" for one in traffic.options.violations]
    return ["Each deployment is simulated under the scenario's whole run; objectives are of its profile.", *violated]


def _load(settings: SizeSettings, seed: int | None) -> TrafficSettings:
    """Return the settings that a run has, too."""
    known = {name: about for name, about in settings_of(TrafficSettings).items() if hasattr(settings, name)}
    given = {name: getattr(settings, name) for name in known}
    several = {name: (value,) for name, value in given.items() if known[name].several and value is not None}
    return TrafficSettings(**(given | several | {"random_seed": seed}))


def _prices(of: Iterable[str], settings: SizeSettings) -> tuple[dict[str, float], str]:
    """USD per hour of each GPU whose price is known, and where the prices come from."""
    gpus = list(dict.fromkeys(of))
    if settings.price is None:
        return catalogue_prices(gpus)
    try:
        return read_prices(settings.price, gpus)
    except ConfigError as error:
        _refuse(str(error))


def _refuse(problem: str) -> NoReturn:
    raise InputRefused([problem], "size")
