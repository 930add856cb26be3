"""`llmirage size`: which deployments may be, under which traffic, and what counts."""

from __future__ import annotations

from dataclasses import MISSING
from functools import partial
from typing import Any, Literal

from llmirage_client.choices import ArrivalPattern
from llmirage_client.load.load_options import LoadOptions
from llmirage_client.settings.places import cannot_be_file, is_no_file
from llmirage_client.settings.simulation import SimulationSettings
from llmirage_shared.settings import again, switch, under

GOAL, SHAPES, TRAFFIC, OUTPUT = "What is wanted", "Which deployments may be", "Traffic", "Output"
_goal, _shapes, _output = under(GOAL), under(SHAPES), under(OUTPUT)
_traffic = partial(again, LoadOptions, group=TRAFFIC)


def _names(value: Any) -> tuple[str, ...]:
    """Words between commas."""
    names = tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else tuple(value)
    if not all(names):
        raise ValueError(f"{value!r} has an empty name (two commas?)")
    return names


_several_names = partial(_shapes, None, read=_names, metavar="NAME[,NAME...]")
_sizes = partial(_shapes, None, several=True, least=1, metavar="N[,N...]")


class SizingSettings:
    """gpus, engines, weights: words between commas, as a tuple."""

    slo: str = _goal(MISSING, 'What must be met: "ttft_p99<500ms, tpot_p95<30ms".', metavar="OBJECTIVES", study=True)
    max_rate: bool = switch(GOAL, "The other way round: how much traffic each deployment carries, of --instances each.")
    goal: Literal["cost", "gpus"] | None = _goal(
        None, "The cheapest, or the fewest GPUs.", unset="cost, if the price of every GPU is known"
    )
    price: str | None = _goal(
        None,
        "YAML file with lines `h100_sxm: 2.10`, USD for an hour of one GPU.",
        metavar="FILE",
        check=is_no_file,
        unset="the catalogue's",
    )
    gpus: tuple[str, ...] | None = _several_names(
        "GPUs, by the names of `llmirage catalog gpus`.", aliases=("gpu",), unset="the cluster's"
    )
    engines: tuple[str, ...] | None = _several_names("Serving engines.", aliases=("engine",))
    weights: tuple[str, ...] | None = _several_names(
        "Formats of the weights: auto (as the model is published), bf16, fp8, ...", metavar="FORMAT[,FORMAT...]"
    )
    tps: int | None = _sizes(
        "Tensor-parallel sizes.", aliases=("tp", "tensor_parallel_size"), unset="1, 2, 4, 8, as they fit"
    )
    pps: int | None = _sizes(
        "Pipeline sizes.", aliases=("pp", "pipeline_parallel_size"), unset="1; 2 where nothing else fits"
    )
    dps: int | None = _sizes("Attention data-parallel sizes, for mixtures of experts.", aliases=("dp", "data_parallel_size"))
    eps: int | None = _sizes("Expert-parallel sizes.", aliases=("ep", "expert_parallel_size"))
    instances: int | None = _shapes(None, "Instances of the cluster of --max-rate.", least=1, unset="the cluster's")
    max_gpus: int = _shapes(1024, "No more GPUs.", least=1)
    runners_up: int = _shapes(2, "How many others to name beside the answer.", least=0)
    request_rate_per_s: float | None = _traffic("request_rate_per_s", None, "Turns of root conversations per second.")
    concurrency: int | None = _traffic("concurrency", None, "Or root conversations at a time.")
    arrival_pattern: ArrivalPattern | None = _traffic(
        "arrival_pattern", None, "Gaps between arrivals at a rate.", unset="poisson; gamma with --arrival-smoothness"
    )
    arrival_smoothness: float | None = _traffic(
        "arrival_smoothness",
        None,
        "Shape of gamma gaps: below 1 bursts, 1 is poisson, above 1 more regular.",
        aliases=("burstiness",),
    )
    random_seed: int = _traffic("seed", 0, "Same seed, same answer.")


class SizingOutput:
    json: bool = switch(OUTPUT, "Print the answer as JSON, and nothing else.")
    html: str | None = _output(None, "Write a page about it.", metavar="FILE", check=cannot_be_file)
    max_time: float | None = again(
        SimulationSettings, "max_time", None, "Give a simulation up after so much cluster time.", group=OUTPUT
    )
