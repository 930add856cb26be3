"""`llmirage run`: replays a workload against an endpoint. This module is the command line; commands/execute.py does it."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.format_flags import format_options, given_options

if TYPE_CHECKING:
    from llmirage_client.load.options import RunOptions
    from llmirage_client.workload.session import Workload

_POSITIVE = click.IntRange(min=1)
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)
_NOT_NEGATIVE = click.FloatRange(min=0)


def header(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Each "Name: value" as a pair."""
    pairs = []
    for text in values:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter(f"{text!r} is not of the form 'Name: value'")
        pairs.append((name.strip(), value.strip()))
    return tuple(pairs)


def extra_inputs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Each key:value, or a JSON object, merged in order. A value that is JSON (a number, true, [..]) is taken as that."""
    merged: dict[str, Any] = {}
    for text in values:
        if text.lstrip().startswith("{"):
            try:
                merged |= json.loads(text)
            except ValueError as error:
                raise click.BadParameter(f"{text!r} is not a JSON object: {error}") from None
            continue
        key, colon, value = text.partition(":")
        if not colon or not key:
            raise click.BadParameter(f"{text!r} is neither key:value nor a JSON object")
        try:
            merged[key] = json.loads(value)
        except ValueError:
            merged[key] = value
    return merged


@click.command()
@click.argument("file")
@click.option(
    "--url",
    "-u",
    default="localhost:8000",
    show_default=True,
    metavar="URL",
    help="The endpoint: host:port or a full URL, with or without /v1.",
)
@click.option(
    "--model", "-m", metavar="NAME", help="Model for requests that name none.  [default: the only one the endpoint lists]"
)
@click.option("--api-key", metavar="KEY", help="Sent as 'Authorization: Bearer KEY'.")
@click.option(
    "--header",
    "-H",
    "headers",
    multiple=True,
    callback=header,
    metavar="NAME:VALUE",
    help="A header for every request; may be repeated.",
)
@click.option(
    "--extra-inputs",
    multiple=True,
    callback=extra_inputs,
    metavar="KEY:VALUE|JSON",
    help="Fields added to every request body, below the file's own `extra`; may be repeated.",
)
@click.option(
    "--format",
    "--custom-dataset-type",
    "format_name",
    metavar="FORMAT",
    help="Format of the file ('llmirage catalog formats' lists them).  [default: detected]",
)
@format_options
@click.option(
    "--endpoint-type",
    type=click.Choice(["chat", "completions"]),
    help="API to speak.  [default: chat; completions for token ids, where the endpoint is llmirage or vLLM]",
)
@click.option("--streaming/--no-streaming", default=True, show_default=True, help="Ask for streamed replies.")
@click.option(
    "--concurrency",
    "--parallel",
    type=_POSITIVE,
    metavar="N",
    help="Root conversations at a time, each with all its children.  [default: 1, unless a rate or schedule rules]",
)
@click.option("--request-rate", type=_ABOVE_ZERO, metavar="PER_S", help="Turns of root conversations per second.")
@click.option(
    "--arrival-pattern",
    "--request-rate-mode",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    show_default=True,
    help="Gaps between arrivals at --request-rate.",
)
@click.option(
    "--fixed-schedule/--no-fixed-schedule",
    default=None,
    help="Start conversations at the file's own arrival times.  [default: if it has them and nothing above is given]",
)
@click.option(
    "--request-count", type=_POSITIVE, metavar="N", help="Send at most N requests, those of forks and spawns included."
)
@click.option(
    "--num-conversations",
    "--number",
    type=_POSITIVE,
    metavar="N",
    help="Run N root conversations, from the top again when the file has fewer.  [default: each once]",
)
@click.option("--benchmark-duration", type=_ABOVE_ZERO, metavar="S", help="Send nothing more after S seconds.")
@click.option(
    "--benchmark-grace-period",
    type=_NOT_NEGATIVE,
    default=30.0,
    show_default=True,
    metavar="S",
    help="Wait so long after --benchmark-duration for replies under way.",
)
@click.option(
    "--warmup-request-count",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="First send N requests of root conversations that do not count.",
)
@click.option(
    "--request-timeout-seconds",
    type=_ABOVE_ZERO,
    default=600.0,
    show_default=True,
    metavar="S",
    help="Give a request up after so long; it is recorded as failed.",
)
@click.option(
    "--inter-turn-delay-cap-seconds", type=_NOT_NEGATIVE, metavar="S", help="The longest a think time or tool wait may be."
)
@click.option(
    "--speed",
    type=_ABOVE_ZERO,
    default=1.0,
    show_default=True,
    metavar="N",
    help="The server runs N times faster than life (`llmirage serve --speed N`): arrivals and waits are divided by N, "
    "measured times multiplied by it.",
)
@click.option(
    "--session-prefix",
    type=click.Choice(["extend", "none"]),
    default="extend",
    show_default=True,
    help="Calls given as token counts: each continues its session's last one, or shares nothing with it.",
)
@click.option(
    "--tokenizer",
    metavar="NAME",
    help="Folder or hub name of the endpoint's tokenizer, to write prompts of exact "
    "length.  [default: the one in the package, which `llmirage serve` uses]",
)
@click.option(
    "--session-header", metavar="NAME", help="Send the conversation's id under this name instead of X-Correlation-ID."
)
@click.option("--use-legacy-max-tokens", is_flag=True, help="Send max_tokens instead of max_completion_tokens.")
@click.option(
    "--fail-fast",
    is_flag=True,
    envvar="AIPERF_DAG_FAIL_FAST",
    help="Stop at the first failed request of a forked or spawned conversation.",
)
@click.option(
    "--artifact-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Where the files go.  [default: artifacts/MODEL-ENDPOINT-LOAD]",
)
@click.option("--random-seed", type=int, metavar="N", help="Same seed: same ids, arrivals and texts.  [default: drawn anew]")
def run(file: str, **settings: Any) -> None:
    """Run the workload FILE, bundled:NAME or generated by a format of that name, and report what was measured.

    Every root conversation of the file runs once unless an option says otherwise. Tables go to the terminal, files to the
    artifact directory. Exit status: 0 all requests succeeded, 1 some failed, 2 the input was refused, 130 stopped by Ctrl-C
    (the report of what finished is written all the same).
    """  # fmt: skip
    from llmirage_client.targets.address import normalise_url
    from llmirage_client.workload.registry import load
    from llmirage_client.workload.session import WorkloadError

    try:
        url = normalise_url(settings["url"])
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    offered = {
        "tokenizer": settings["tokenizer"],
        "seed": settings["random_seed"],
        "conversations": settings["num_conversations"],
    }
    try:
        workload = load(file, settings["format_name"], *given_options(settings, offered))
    except WorkloadError as error:
        click.echo(error, err=True)
        sys.exit(2)
    options = run_options(workload, settings)

    from llmirage_client.commands.execute import Endpoint, execute

    endpoint = Endpoint(url, settings["api_key"], settings["headers"], settings["request_timeout_seconds"])
    shown = {name: value for name, value in settings.items() if value not in (None, ())}
    shown |= {"concurrency": options.concurrency, "fixed_schedule": options.fixed_schedule}
    sys.exit(execute(workload, options, endpoint, settings["artifact_dir"], shown))


def run_options(workload: Workload, settings: dict[str, Any]) -> RunOptions:
    """The run's options from those of the command line. Raises click.UsageError for what makes no sense together."""
    from llmirage_client.load.options import RunOptions

    rate, concurrency, schedule = settings["request_rate"], settings["concurrency"], settings["fixed_schedule"]
    if schedule is None:
        schedule = workload.timed and rate is None and concurrency is None
    if schedule and not workload.timed:
        raise click.UsageError(f"--fixed-schedule: {workload.path} does not say when its conversations arrive")
    roots, wanted = len(workload.roots), settings["num_conversations"]
    if schedule and wanted is not None and wanted > roots:
        raise click.UsageError(
            f"--num-conversations {wanted}: the schedule of {workload.path} has {roots} conversations; "
            "with --no-fixed-schedule they are repeated"
        )
    if schedule and rate is not None:
        raise click.UsageError("--fixed-schedule and --request-rate both say when conversations start: give one of them")
    if settings["endpoint_type"] == "completions" and any(
        s.mode not in ("tokens", "verbatim") for s in workload.sessions.values()
    ):
        raise click.UsageError(
            f"--endpoint-type completions cannot carry the messages of a {workload.format} file: use chat"
        )
    if concurrency is None and rate is None and not schedule:
        concurrency = 1
    seed = settings["random_seed"]
    return RunOptions(
        model=settings["model"] or "",
        endpoint_type=settings["endpoint_type"],
        streaming=settings["streaming"],
        concurrency=concurrency,
        request_rate_per_s=rate,
        arrival_pattern=settings["arrival_pattern"],
        fixed_schedule=schedule,
        num_conversations=settings["num_conversations"],
        request_count=settings["request_count"],
        benchmark_duration_s=settings["benchmark_duration"],
        benchmark_grace_period_s=settings["benchmark_grace_period"],
        warmup_request_count=settings["warmup_request_count"],
        inter_turn_delay_cap_s=settings["inter_turn_delay_cap_seconds"],
        speed=settings["speed"],
        fail_fast=settings["fail_fast"],
        extra_inputs=settings["extra_inputs"],
        use_legacy_max_tokens=settings["use_legacy_max_tokens"],
        session_header=settings["session_header"],
        session_prefix=settings["session_prefix"],
        tokenizer=settings["tokenizer"],
        seed=int.from_bytes(os.urandom(6)) if seed is None else seed,
    )
