"""`llmirage generate`: writes a synthetic coding-agent workload."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from llmirage_client.workload.generate import Span


def span_from(minimum: int) -> Callable[[click.Context, click.Parameter, str], Span]:
    """An option callback for MIN:MAX, or one number for both, of whole numbers that are at least `minimum`."""

    def read(_: click.Context, __: click.Parameter, value: str) -> Span:
        from llmirage_client.workload.generate import Span

        low, _colon, high = value.partition(":")
        try:
            span = Span(int(low), int(high or low))
        except ValueError:
            raise click.BadParameter(f"{value!r} is not MIN:MAX, two whole numbers such as 8:15") from None
        if span.low < minimum:
            raise click.BadParameter(f"{value!r} begins below {minimum}, the least that makes sense here")
        if span.high < span.low:
            raise click.BadParameter(f"{value!r} ends before it begins")
        return span

    return read


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="File to write; packed when it ends in .gz.  [default: standard output]",
)
@click.option("--sessions", type=click.IntRange(1), default=50, show_default=True, help="Agent sessions.")
@click.option(
    "--calls", metavar="MIN:MAX", callback=span_from(1), default="8:15", show_default=True, help="LLM calls of a session."
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=0.2,
    show_default=True,
    help="Sessions that arrive per second (Poisson).",
)
@click.option(
    "--tool-wait-ms",
    metavar="MIN:MAX",
    callback=span_from(0),
    default="50:300",
    show_default=True,
    help="Wait between a reply and the next call, while a tool runs.",
)
@click.option(
    "--first-context",
    metavar="MIN:MAX",
    callback=span_from(10),
    default="1000:1400",
    show_default=True,
    help="Prompt tokens of a session's first call.",
)
@click.option(
    "--growth",
    metavar="MIN:MAX",
    callback=span_from(1),
    default="30:170",
    show_default=True,
    help="Tokens each tool result adds to the context, besides the reply.",
)
@click.option(
    "--output-tokens",
    metavar="MIN:MAX",
    callback=span_from(1),
    default="40:160",
    show_default=True,
    help="Tokens of a reply.",
)
@click.option(
    "--token-ids/--no-token-ids",
    default=True,
    show_default=True,
    help="Write the token ids, with the prefixes that agents share; without them only counts.",
)
@click.option("--random-seed", type=int, default=0, show_default=True, help="The same seed and options write the same file.")
def generate(
    output: str | None, sessions: int, calls: Span, rate: float, tool_wait_ms: Span, first_context: Span,
    growth: Span, output_tokens: Span, token_ids: bool, random_seed: int,
) -> None:  # fmt: skip
    """Write a synthetic coding-agent workload in agentic JSONL.

    Each session is a chain of calls: the prompt of a call is the previous prompt, the reply to it and a new tool
    result. All sessions share a system prompt, those of one repository share more. The defaults give what
    bundled:coding-agent holds.
    """
    from llmirage_client.workload.generate import AgentProfile
    from llmirage_client.workload.generate import generate as rows_of

    if output is None and sys.stdout.isatty():
        raise click.UsageError("this writes megabytes: name a file with -o FILE, or send standard output into one")
    profile = AgentProfile(sessions, calls, rate, tool_wait_ms, first_context, growth, output_tokens, token_ids, random_seed)
    call_count = input_tokens = generated_tokens = 0
    lines = []
    for row in rows_of(profile):
        call_count += len(row["sub_requests"])
        input_tokens += sum(call["input_toks"] for call in row["sub_requests"])
        generated_tokens += sum(call["output_toks"] for call in row["sub_requests"])
        lines.append(json.dumps(row, separators=(",", ":")) + "\n")
    _write("".join(lines).encode(), output)
    click.echo(
        f"{output or 'standard output'}: {sessions} sessions, {call_count:,} calls, {input_tokens:,} prompt tokens, "
        f"{generated_tokens:,} reply tokens; synthetic, seed {random_seed}",
        err=True,
    )


def _write(data: bytes, output: str | None) -> None:
    """Writes a file in one move, so that no reader ever sees half of it."""
    if output in (None, "-"):
        sys.stdout.buffer.write(data)
        return
    path = Path(str(output))
    if path.suffix == ".gz":
        data = gzip.compress(data, compresslevel=9, mtime=0)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise click.BadParameter(f"cannot write {path}: {error.strerror}", param_hint="--output") from None
