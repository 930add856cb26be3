"""`llmirage step`: one forward pass, explained operation by operation."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import click

_MOST_TOKENS = 10_000_000


_Pairs = tuple[tuple[int, int], ...]


def _pairs(form: str, least: tuple[int, int]) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], _Pairs]:
    """A callback that reads values of the form A@B, two whole numbers of at least so much."""

    def read(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> _Pairs:
        return tuple(one(value) for value in values)

    def one(value: str) -> tuple[int, int]:
        found = re.fullmatch(r"(\d+)@(\d+)", value.strip().replace("_", "").replace(",", ""))
        if found is None:
            raise click.BadParameter(f"{value!r} is not of the form {form}, two whole numbers")
        first, second = int(found[1]), int(found[2])
        for number, smallest in zip((first, second), least, strict=True):
            if not smallest <= number <= _MOST_TOKENS:
                raise click.BadParameter(f"{value!r}: {number:,} is not between {smallest} and {_MOST_TOKENS:,}")
        return first, second

    return read


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_POSITIVE = click.IntRange(min=1)


@click.command(context_settings=_SETTINGS)
@click.option(
    "--model", required=True, metavar="NAME", help="A name of `llmirage catalog models`, or a config.json or YAML file."
)
@click.option("--gpu", required=True, metavar="NAME", help="A name of `llmirage catalog gpus`, or a YAML file.")
@click.option("--engine", default="vllm", show_default=True, metavar="NAME", help="vllm, sglang, trtllm, or a YAML file.")
@click.option("--tp", "--tensor-parallel-size", default=1, type=_POSITIVE, metavar="N", help="GPUs that share each layer.")
@click.option("--pp", "--pipeline-parallel-size", default=1, type=_POSITIVE, metavar="N", help="Pipeline stages.")
@click.option("--dp", "--data-parallel-size", default=1, type=_POSITIVE, metavar="N", help="Attention data-parallel ranks.")
@click.option("--ep", "--expert-parallel-size", default=1, type=_POSITIVE, metavar="N", help="Ranks of whole experts.")
@click.option(
    "--weights",
    default="auto",
    show_default=True,
    metavar="FORMAT",
    help="auto (as the model is published), bf16, fp8, fp8_block, int8, int4 (awq, gptq), mxfp4 or nvfp4.",
)
@click.option("--kv", "--kv-cache-dtype", default="auto", show_default=True, metavar="FORMAT", help="auto, bf16 or fp8.")
@click.option(
    "--decode",
    multiple=True,
    callback=_pairs("N@CONTEXT", (1, 1)),
    metavar="N@CONTEXT",
    help="N sequences that decode, each with so many tokens of context; may be repeated.",
)
@click.option(
    "--prefill",
    multiple=True,
    callback=_pairs("TOKENS@CONTEXT", (1, 0)),
    metavar="TOKENS@CONTEXT",
    help="A prompt chunk of new tokens after so many computed ones; may be repeated.",
)
@click.option("--speculate", type=_POSITIVE, metavar="K", help="Tokens drafted for each decoding sequence.")
@click.option("--draft-model", metavar="NAME", help="Who drafts; by default the model's own multi-token prediction layer.")
@click.option(
    "--max-num-seqs", type=_POSITIVE, metavar="N", help="Sequences at once, for the memory sum.  [default: the engine's]"
)
@click.option(
    "--max-num-batched-tokens",
    type=_POSITIVE,
    metavar="N",
    help="Tokens of a step at most, for the memory sum.  [default: the engine's]",
)
@click.option(
    "--gpu-memory-utilization", type=float, metavar="SHARE", help="As the engine counts it.  [default: the engine's]"
)
@click.option(
    "--perf-model",
    type=click.Choice(["roofline", "silicon"]),
    default="roofline",
    show_default=True,
    help="The built-in roofline, or the measured tables of the extra `silicon`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def step(
    decode: _Pairs,
    prefill: _Pairs,
    speculate: int | None,
    draft_model: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Explain one forward pass: the time of every operation, what bounds it, and the speed of light beside it.

    \b
    llmirage step --model Qwen/Qwen3-32B --gpu h100_sxm --tp 2 --weights fp8 --kv fp8 --decode 64@4096 --prefill 2048@0

    With --dp every attention rank gets this batch. Times and amounts are those of one GPU.
    """
    if not decode and not prefill:
        raise click.UsageError("give at least one --decode N@CONTEXT or --prefill TOKENS@CONTEXT")
    if draft_model is not None and speculate is None:
        raise click.UsageError("--draft-model needs --speculate K")
    from llmirage_server.commands.step_report import as_table, explain
    from llmirage_server.perf.deployment import Deployment
    from llmirage_server.perf.errors import DeploymentError
    from llmirage_server.perf.speculation import Speculative
    from llmirage_server.perf.steps.step_model import StepBatch

    speculative = None
    if speculate is not None:
        speculative = Speculative(speculate, "draft_model" if draft_model else "mtp", draft_model)
    batch = StepBatch(prefill, [context for sequences, context in decode for _ in range(sequences)])
    try:
        deployment = Deployment.create(**_renamed(flags), speculative=speculative)
        explained = explain(deployment, batch)
    except DeploymentError as error:
        for problem in error.problems:
            click.echo(f"llmirage step: {problem}", err=True)
        sys.exit(2)
    if as_json:
        import json

        click.echo(json.dumps(explained, indent=2))
    else:
        click.echo(as_table(deployment, explained))


def _renamed(flags: dict[str, Any]) -> dict[str, Any]:
    return {{"kv": "kv_cache_dtype"}.get(name, name): value for name, value in flags.items()}
