"""`llmirage size`: the cheapest deployment that meets objectives, or what a deployment carries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from llmirage_client.commands.flags.cluster import cluster_config, cluster_flags_but
from llmirage_client.commands.flags.sections import SectionedCommand
from llmirage_client.commands.flags.sizing import output_flags, sizing_flags
from llmirage_client.commands.flags.workload import load_workload, workload_fields, workload_flags
from llmirage_client.commands.output import cannot_be_file
from llmirage_client.commands.simulate import synthetic_flags

if TYPE_CHECKING:
    from llmirage_client.measure.slo import Objective
    from llmirage_client.simulate.progress import SimulationProgress
    from llmirage_client.simulator.deployments import InstanceShape, Refused
    from llmirage_client.simulator.engine import ClusterConfig
    from llmirage_client.size.traffic import RequestSource, Traffic

_IN_LISTS = (
    "gpu",
    "engine",
    "weights",
    "instances",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "expert_parallel_size",
)


@click.command(cls=SectionedCommand, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("workload", required=False)
@sizing_flags
@synthetic_flags
@output_flags
@cluster_flags_but(*_IN_LISTS)
@workload_flags
def size(workload: str | None, **settings: Any) -> None:
    """Find the cheapest deployment that meets objectives under the traffic of WORKLOAD (a file, bundled:NAME, or lengths by
    --isl and --osl), sent at --request-rate or by --concurrency users.

    Every way to split the model over the GPUs named is pruned with the roofline, the rest simulated, --requests requests
    (1000) each. Exit status: 0 an answer, 1 nothing meets the objectives, 2 the input was refused.
    """  # fmt: skip
    from llmirage_client.simulate.simulation import SimulationError
    from llmirage_client.simulator.engine import ConfigError

    if settings["html"] and (problem := cannot_be_file(settings["html"])):
        _refuse(f"--html {problem}")
    try:
        answered = _max_rate(workload, settings) if settings["max_rate"] else _size(workload, settings)
    except (SimulationError, ConfigError) as error:
        _refuse(str(error))
    sys.exit(0 if answered else 1)


def _size(file: str | None, settings: dict[str, Any]) -> bool:
    from llmirage_client.size.page import size_page
    from llmirage_client.size.report import SizeReport
    from llmirage_client.size.sizing import Goal, size
    from llmirage_client.size.trial import REQUESTS, Trials
    from llmirage_client.size.wording import Question

    objectives, base, shapes, refused, notes = _asked(settings)
    source = _source(file, settings)
    traffic = _traffic(source, settings)
    notes += _of_times(source)
    prices, price_source = _prices([shape.gpu for shape in shapes], settings)
    goal: Goal = settings["goal"] or ("cost" if all(shape.gpu in prices for shape in shapes) else "gpus")
    if goal == "cost" and (unknown := sorted({shape.gpu for shape in shapes} - set(prices))):
        _refuse(f"--goal cost: the price of {', '.join(unknown)} is not known: give it with --price, or ask for --goal gpus")
    progress, told = _progress()
    trials = Trials(traffic, objectives, settings["requests"] or REQUESTS, settings["max_time"], told)
    with progress:
        sizing = size(
            base,
            shapes,
            refused,
            trials,
            prices,
            goal=goal,
            max_gpus=settings["max_gpus"],
            runners_up=settings["runners_up"],
            progress=progress.begin,
        )
    report = SizeReport(Question(base, traffic, objectives, price_source, notes), sizing)
    _write(report, size_page, settings)
    return sizing.answer is not None


def _max_rate(file: str | None, settings: dict[str, Any]) -> bool:
    from llmirage_client.simulator.deployments import gpus_of
    from llmirage_client.size.max_rate import max_rates
    from llmirage_client.size.max_rate_report import MaxRateReport
    from llmirage_client.size.page import max_rate_page
    from llmirage_client.size.trial import REQUESTS, Trials
    from llmirage_client.size.wording import Question

    objectives, base, shapes, refused, notes = _asked(settings)
    if settings["request_rate"] is not None:
        _refuse("--max-rate finds the request rate: leave --request-rate out (or give --concurrency 1 to look for users)")
    source = _source(file, settings)
    notes += _of_times(source)
    settings["request_rate"] = None if settings["concurrency"] else 1.0
    progress, told = _progress()
    trials = Trials(_traffic(source, settings), objectives, settings["requests"] or REQUESTS, settings["max_time"], told)
    gpus = gpus_of(base) if base.pools else [shape.gpu for shape in shapes]
    prices, price_source = _prices(gpus, settings)
    with progress:
        found = max_rates(base, shapes, refused, trials, settings["instances"] or base.instances, progress.begin)
    report = MaxRateReport(Question(base, trials.traffic, objectives, price_source, notes), found, prices)
    _write(report, max_rate_page, settings)
    return bool(report.carried)


def _asked(
    settings: dict[str, Any],
) -> tuple[tuple[Objective, ...], ClusterConfig, list[InstanceShape], list[Refused], list[str]]:
    """The objectives, the cluster without its shape, the shapes, and notes on what of the cluster is left out.

    Clusters of several pools have no shapes. Exits where something is wrong with any of that.
    """
    from llmirage_client.measure.slo import SloError, parse_slo
    from llmirage_client.simulator.deployments import shapes, steady
    from llmirage_client.simulator.engine import ConfigError

    problems: list[str] = []
    objectives: tuple[Objective, ...] = ()
    try:
        objectives = parse_slo(settings["slo"])
    except SloError as error:
        problems += [f"--slo: {problem}" for problem in error.problems]
    base, notes = steady(cluster_config(settings | dict.fromkeys(_IN_LISTS), settings["random_seed"]))
    possible: list[InstanceShape] = []
    refused: list[Refused] = []
    if base.pools:
        problems += _of_pools(base, settings)
    try:
        if not base.pools:
            possible, refused = shapes(
                base,
                settings["gpus"] or (base.gpu,),
                settings["engines"] or (base.engine,),
                settings["weights"] or (base.weights,),
                *(settings[name] or () for name in ("tps", "pps", "dps", "eps")),
            )
    except ConfigError as error:
        problems += error.problems
    if not problems and not possible and not base.pools:
        problems = [
            "no deployment is possible:",
            *(f"  {', '.join(names)}: {reason}" for reason, names in _by_reason(refused).items()),
        ]
    if problems:
        _refuse("\n".join(problems))
    return objectives, base, possible, refused, notes


def _by_reason(refused: Iterable[Refused]) -> dict[str, list[str]]:
    """The names of the shapes that cannot be, by why."""
    found: dict[str, list[str]] = {}
    for one in refused:
        found.setdefault(one.reason, []).append(f"{one.shape.gpu} {one.shape.split}")
    return found


_OF_SHAPES = ("gpus", "engines", "weights", "tps", "pps", "dps", "eps", "instances")


def _of_pools(base: ClusterConfig, settings: dict[str, Any]) -> list[str]:
    """What is wrong with asking this of a cluster of several pools."""
    names = [pool.name for pool in base.pools]
    if not settings["max_rate"]:
        varied = f"`llmirage sweep` with `slo:` and a grid over {names[0]}.instances and {names[1]}.instances"
        return [
            f"size looks for the number of one kind of instance, and the cluster has the pools {', '.join(names)}: "
            f"{varied} compares their numbers, and --max-rate says what the cluster carries as it is"
        ]
    given = [f"--{name}" for name in _OF_SHAPES if settings[name]]
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


def _of_times(source: RequestSource) -> list[str]:
    """A note where the workload's own times are not used."""
    if not source.workload(1).timed:
        return []
    return [
        "The workload says when its conversations arrive; here they arrive as the traffic asked for. `llmirage sweep` with "
        "`slo:` judges clusters under the file's own times."
    ]


def _source(file: str | None, settings: dict[str, Any]) -> RequestSource:
    from llmirage_client.size.traffic import file_source, synthetic_source
    from llmirage_client.workload.session import WorkloadError

    given = [f"--{name}" for name in ("isl", "osl") if settings[name] is not None]
    if file is not None and given:
        _refuse(f"{given[0]} is for a load without a file: give either it or WORKLOAD")
    if file is None and len(given) < 2:
        _refuse("give a WORKLOAD, or a load without a file by --isl and --osl")
    try:
        if file is not None:
            source = file_source(load_workload(file, settings, None))
        else:
            source = synthetic_source(
                settings["isl"],
                settings["osl"],
                settings["turns"],
                settings["think_time"],
                settings["shared_prefix"],
                settings["random_seed"],
            )
        source.workload(1)
    except WorkloadError as error:
        _refuse(str(error))
    return source


def _traffic(source: RequestSource, settings: dict[str, Any]) -> Traffic:
    from llmirage_client.load.options import RunOptions
    from llmirage_client.size.traffic import Traffic

    rate, users = settings["request_rate"], settings["concurrency"]
    if (rate is None) == (users is None):
        timed = rate is None and source.workload(1).timed
        _refuse(
            "say how much traffic there is, by --request-rate or by --concurrency"
            + ("; the file's own times are for `llmirage sweep`, with `slo:` and a grid over instances" if timed else "")
        )
    smoothness = settings["arrival_smoothness"]
    options = RunOptions(
        **workload_fields(settings),
        seed=settings["random_seed"],
        arrival_pattern=settings["arrival_pattern"] or ("poisson" if smoothness is None else "gamma"),
        arrival_smoothness=1.0 if smoothness is None else smoothness,
    )
    if rate is not None:
        return Traffic(source, "request_rate", float(rate), options)
    return Traffic(source, "concurrency", float(users), options)


def _prices(of: Iterable[str], settings: dict[str, Any]) -> tuple[dict[str, float], str]:
    """USD per hour of each GPU whose price is known, and where the prices come from."""
    from llmirage_client.simulate.prices import PriceError, catalogue_prices, read_prices

    gpus = list(dict.fromkeys(of))
    if settings["price"] is None:
        return catalogue_prices(gpus)
    try:
        return read_prices(settings["price"], gpus)
    except PriceError as error:
        _refuse(str(error))


def _progress() -> tuple[SimulationProgress, Callable[[int, int, float], None]]:
    """What shows which deployment is looked at, and how far its simulation is."""
    from llmirage_client.simulate.progress import SimulationProgress

    progress = SimulationProgress()

    def told(over: int, planned: int, reached_s: float) -> None:
        progress.plan(planned)
        progress.update(over, reached_s)

    return progress, told


def _write(report: Any, page: Callable[[Any], str], settings: dict[str, Any]) -> None:
    import json
    from pathlib import Path

    if settings["html"]:
        try:
            Path(settings["html"]).write_text(page(report), encoding="utf-8")
        except OSError as error:
            _refuse(f"--html {settings['html']}: {error.strerror}")
    if settings["as_json"]:
        click.echo(json.dumps(report.json()))
        return
    from llmirage_client.report.screen import print_blocks

    print_blocks(report.blocks())


def _refuse(problem: str) -> NoReturn:
    click.echo(f"llmirage size: {problem}", err=True)
    sys.exit(2)
