"""`llmirage run`: replay a workload against an endpoint and report what it measured. Here are the flags; see run_session."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

POSITIVE = click.FloatRange(min=0, min_open=True)
COUNT = click.IntRange(min=1)


class FileCommand(click.Command):
    """Shows the options in the order of the groups below."""

    GROUPS = (
        ("Endpoint", "url model api_key headers endpoint_type streaming request_timeout_seconds"),
        ("Workload", "format num_conversations request_count inter_turn_delay_cap_seconds session_prefix tokenizer"),
        ("Load", "concurrency request_rate arrival_pattern fixed_schedule benchmark_duration benchmark_grace_period "
                 "warmup_request_count speed"),
        ("Requests", "extra_inputs use_legacy_max_tokens session_header random_seed fail_fast"),
        ("Report", "artifact_dir"),
    )  # fmt: skip

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        by_name = {option.name: option for option in self.get_params(ctx) if isinstance(option, click.Option)}
        for title, names in self.GROUPS:
            with formatter.section(title):
                rows = (by_name.pop(name).get_help_record(ctx) for name in names.split())
                formatter.write_dl([row for row in rows if row is not None])
        rest = [row for option in by_name.values() if (row := option.get_help_record(ctx)) is not None]
        if rest:
            with formatter.section("Other"):
                formatter.write_dl(rest)


@click.command(cls=FileCommand, context_settings={"max_content_width": 110})
@click.argument("file")
@click.option(
    "-u",
    "--url",
    default="http://localhost:8000",
    show_default=True,
    help="The endpoint: host:port or a full URL, with or without /v1.",
)
@click.option(
    "-m", "--model", default=None, help="Model of the turns that name none.  [default: the only one the endpoint lists]"
)
@click.option("--api-key", default=None, help="Sent as a bearer token.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header for every request; may be repeated."
)
@click.option(
    "--endpoint-type",
    type=click.Choice(["chat", "completions"]),
    default=None,
    help="Where turns go.  [default: completions for token ids and text prompts where possible, else chat]",
)
@click.option("--streaming/--no-streaming", default=True, show_default=True, help="Ask for streamed replies.")
@click.option(
    "--request-timeout-seconds",
    type=POSITIVE,
    default=600.0,
    show_default=True,
    help="Give up on a reply after so many seconds of real time.",
)
@click.option(
    "--format",
    "--custom-dataset-type",
    "format",
    metavar="FORMAT",
    default=None,
    help="Format of FILE; 'llmirage catalog formats' lists them.  [default: detected]",
)
@click.option(
    "--num-conversations",
    "--conversation-num",
    "num_conversations",
    type=COUNT,
    default=None,
    help="Run so many root conversations with all their children; the file starts again when it has fewer."
    "  [default: each once]",
)
@click.option(
    "--request-count",
    type=COUNT,
    default=None,
    help="Send at most so many requests, those of children included; conversations may be cut short.",
)
@click.option(
    "--inter-turn-delay-cap-seconds",
    type=click.FloatRange(min=0),
    default=None,
    help="No turn's delay or tool wait is longer than this.",
)
@click.option(
    "--session-prefix",
    type=click.Choice(["extend", "none"]),
    default=None,
    help="For calls given by token counts alone: each extends the one before, or they share nothing.  [default: extend]",
)
@click.option(
    "--tokenizer",
    default=None,
    help="Folder or hub name of the model's tokenizer, to write prompts of exact token counts for an endpoint "
    "that is not llmirage.",
)
@click.option(
    "--concurrency",
    type=COUNT,
    default=None,
    help="Root conversations at once; their children come on top.  [default: 1, no limit with a rate or schedule]",
)
@click.option(
    "--request-rate",
    type=POSITIVE,
    default=None,
    help="Turns of root conversations per second; further turns of running conversations go before new ones.",
)
@click.option(
    "--arrival-pattern",
    "--request-rate-mode",
    "arrival_pattern",
    type=click.Choice(["poisson", "constant"]),
    default=None,
    help="Spacing of a --request-rate.  [default: poisson]",
)
@click.option(
    "--fixed-schedule/--no-fixed-schedule",
    default=None,
    help="Start conversations at the file's own arrival times, or not.  [default: when the file has them and "
    "neither --concurrency nor --request-rate is given]",
)
@click.option(
    "--benchmark-duration",
    type=POSITIVE,
    default=None,
    help="Send nothing more after so many seconds; the file starts again until then.",
)
@click.option(
    "--benchmark-grace-period",
    type=click.FloatRange(min=0),
    default=None,
    help="Seconds after the duration in which replies may still come.  [default: 30]",
)
@click.option(
    "--warmup-request-count",
    "--num-warmup-requests",
    "warmup_request_count",
    type=click.IntRange(min=0),
    default=0,
    help="Send so many requests of root conversations first; they stay out of the figures.",
)
@click.option(
    "--speed",
    type=POSITIVE,
    default=1.0,
    show_default=True,
    help="The server runs N times faster than life: arrivals, delays, rates and durations are compressed by N, and "
    "reported times stretched by N.",
)
@click.option(
    "--extra-inputs",
    multiple=True,
    metavar="KEY:VALUE|JSON",
    help="Fields for every request body, as key:value or a JSON object; may be repeated. A turn's own win.",
)
@click.option("--use-legacy-max-tokens", is_flag=True, help="Write max_tokens instead of max_completion_tokens.")
@click.option(
    "--session-header",
    default=None,
    metavar="NAME",
    help="Name of the header that carries a conversation's id, instead of X-Correlation-ID.",
)
@click.option(
    "--random-seed", type=int, default=None, help="Makes ids, arrivals and synthetic prompts the same in every run."
)
@click.option(
    "--fail-fast/--no-fail-fast",
    default=None,
    help="Abort the run at the first failed request of a child.  [default: no, unless AIPERF_DAG_FAIL_FAST=1]",
)
@click.option(
    "--artifact-dir",
    "--output-artifact-dir",
    "artifact_dir",
    type=click.Path(file_okay=False),
    default=None,
    help="Where the report's files go.  [default: artifacts/MODEL-ENDPOINT-LOAD]",
)
@click.help_option("-h", "--help")
def run(**flags: Any) -> None:
    """Run the conversations of FILE, or of bundled:NAME, against an endpoint, and report what was measured.

    Each root conversation of the file runs once, one after the other, or at the times the file gives. Forks, spawns,
    joins, delays and tool waits are honoured.

    \b
    Exit status: 0  every request succeeded
                 1  a request failed, or --fail-fast ended the run
                 2  the file or a flag cannot be used; nothing was sent
               130  interrupted by Ctrl-C; what finished is reported (a second Ctrl-C ends at once)
    """
    from llmirage_client.commands.run_session import run_session

    if flags["fail_fast"] is None:
        flags["fail_fast"] = os.environ.get("AIPERF_DAG_FAIL_FAST", "").lower() in ("1", "true", "yes", "on")
    sys.exit(run_session(**flags))
