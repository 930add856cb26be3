"""Options of `llmirage size`: which deployments may be, under which traffic, and what counts."""

from __future__ import annotations

import math
from typing import Any

import click

from llmirage_client.commands.flags.lists import NumberList
from llmirage_client.commands.flags.sections import flag, together

_GOAL, _MAY_BE, _LOAD = "What is wanted", "Which deployments may be", "Traffic"
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)


class Names(click.ParamType[tuple[str, ...]]):
    """Words between commas, as a tuple."""

    name = "NAME[,NAME...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if not isinstance(value, str):
            return tuple(value)
        names = tuple(part.strip() for part in value.split(","))
        if not all(names):
            self.fail(f"{value!r} has an empty name (two commas?)", param, ctx)
        return names


class Rate(click.ParamType[float]):
    """A number above 0, and no infinity: nothing carries that."""

    name = "R"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            rate = float(value)
        except ValueError:
            rate = math.nan
        if not 0 < rate < math.inf:
            self.fail(
                f"{value!r} is not a number of requests per second above 0 (a load without end has no answer)", param, ctx
            )
        return rate


def _sizes(flag_name: str, aliases: tuple[str, ...], of: str) -> Any:
    return flag(_MAY_BE, f"--{flag_name}", *aliases, type=NumberList(whole=True), metavar="N[,N...]", help=of)


sizing_flags = together(
    flag(_GOAL, "--slo", required=True, metavar="OBJECTIVES", help='What must be met: "ttft_p99<500ms, tpot_p95<30ms".'),
    flag(
        _GOAL,
        "--max-rate",
        is_flag=True,
        help="The other way round: how much traffic each deployment carries, of --instances each.",
    ),
    flag(
        _GOAL,
        "--goal",
        type=click.Choice(["cost", "gpus"]),
        help="The cheapest, or the fewest GPUs.  [default: cost, if the price of every GPU is known]",
    ),
    flag(
        _GOAL,
        "--price",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="YAML file with lines `h100_sxm: 2.10`, USD for an hour of one GPU.  [default: the catalogue's]",
    ),
    flag(
        _MAY_BE,
        "--gpus",
        "--gpu",
        type=Names(),
        metavar="NAME[,NAME...]",
        help="GPUs, by the names of `llmirage catalog gpus`.  [default: the cluster's]",
    ),
    flag(_MAY_BE, "--engines", "--engine", type=Names(), metavar="NAME[,NAME...]", help="Serving engines."),
    flag(
        _MAY_BE,
        "--weights",
        type=Names(),
        metavar="FORMAT[,FORMAT...]",
        help="Formats of the weights: auto (as the model is published), bf16, fp8, ...",
    ),
    _sizes("tps", ("--tp", "--tensor-parallel-size"), "Tensor-parallel sizes.  [default: 1, 2, 4, 8, as they fit]"),
    _sizes("pps", ("--pp", "--pipeline-parallel-size"), "Pipeline sizes.  [default: 1; 2 where nothing else fits]"),
    _sizes("dps", ("--dp", "--data-parallel-size"), "Attention data-parallel sizes, for mixtures of experts."),
    _sizes("eps", ("--ep", "--expert-parallel-size"), "Expert-parallel sizes."),
    flag(
        _MAY_BE,
        "--instances",
        type=click.IntRange(min=1),
        metavar="N",
        help="Instances of the cluster of --max-rate.  [default: the cluster's]",
    ),
    flag(
        _MAY_BE, "--max-gpus", type=click.IntRange(min=1), default=1024, show_default=True, metavar="N", help="No more GPUs."
    ),
    flag(
        _MAY_BE,
        "--runners-up",
        type=click.IntRange(min=0),
        default=2,
        show_default=True,
        metavar="N",
        help="How many others to name beside the answer.",
    ),
    flag(_LOAD, "--request-rate", type=Rate(), metavar="R", help="Turns of root conversations per second."),
    flag(_LOAD, "--concurrency", type=click.IntRange(min=1), metavar="N", help="Or root conversations at a time."),
    flag(
        _LOAD,
        "--arrival-pattern",
        type=click.Choice(["poisson", "constant", "gamma"]),
        help="Gaps between arrivals at a rate.  [default: poisson; gamma with --arrival-smoothness]",
    ),
    flag(
        _LOAD,
        "--arrival-smoothness",
        "--burstiness",
        type=_ABOVE_ZERO,
        metavar="K",
        help="Shape of gamma gaps: below 1 bursts, 1 is poisson, above 1 more regular.",
    ),
    flag(_LOAD, "--random-seed", type=int, default=0, show_default=True, metavar="N", help="Same seed, same answer."),
)

output_flags = together(
    flag("Output", "--json", "as_json", is_flag=True, help="Print the answer as JSON, and nothing else."),
    flag("Output", "--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write a page about it."),
    flag("Output", "--max-time", type=_ABOVE_ZERO, metavar="S", help="Give a simulation up after so much cluster time."),
)
