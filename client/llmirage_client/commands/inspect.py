"""`llmirage inspect`: the shape of a workload, without sending anything."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.format_flags import format_options, given_options

if TYPE_CHECKING:
    from llmirage_client.workload.shape import WorkloadShape

_MOST_REQUESTS = 1_000_000
_HEIGHTS = "·▁▂▃▄▅▆▇█"
_ASCII_HEIGHTS = ".12345678"
_COLUMNS = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99", "min": "min", "max": "max"}


@click.command()
@click.argument("file")
@click.option(
    "--format",
    "--custom-dataset-type",
    "format_name",
    metavar="FORMAT",
    help="Format of the file ('llmirage catalog formats' lists them).  [default: detected]",
)
@format_options
@click.option(
    "--tokenizer", metavar="NAME", help="Folder or hub name of the tokenizer that counts.  [default: the one in the package]"
)
@click.option(
    "--reply-tokens",
    type=click.IntRange(0),
    default=200,
    show_default=True,
    metavar="N",
    help="Length of a reply, where the file does not say.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(
    file: str, format_name: str | None, tokenizer: str | None, reply_tokens: int, as_json: bool, **settings: Any
) -> None:
    """Show the shape of FILE, or bundled:NAME: turns, fan-out, lengths, arrivals, and the highest prefix reuse possible.

    Prefix reuse is the share of prompt tokens that a server with a cache without limits would not have to compute, with all
    requests one after the other: no server can find more. Exit status 2 when the file is not valid.
    """
    from llmirage_client.workload.registry import load
    from llmirage_client.workload.session import WorkloadError
    from llmirage_client.workload.shape import shape
    from llmirage_client.workload.summary import summarise
    from llmirage_shared.prompt_encoder import PromptEncoder
    from llmirage_shared.tokenizer_loader import load as load_tokenizer
    from llmirage_shared.tokens import TokenizerError

    try:
        workload = load(file, format_name, *given_options(settings, {"tokenizer": tokenizer}))
        encoder = PromptEncoder(*load_tokenizer(tokenizer))
    except (WorkloadError, TokenizerError) as error:
        click.echo(error, err=True)
        sys.exit(2)
    counts = summarise(workload, with_reuse=False)
    seen = shape(workload, encoder, reply_tokens, _MOST_REQUESTS)
    facts: dict[str, Any] = {
        "format": workload.format,
        "sessions": counts.sessions,
        "roots": counts.roots,
        "turns": counts.turns,
        "forked children": counts.forks,
        "spawned children": counts.spawns,
        "joins": counts.joins,
        "depth": counts.depth,
        "requests when every root runs once": counts.requests,
    }
    notes = [*workload.notes, *_notes(seen, counts.requests, reply_tokens)]
    if as_json:
        click.echo(json.dumps(_as_json(facts, seen, notes), indent=2))
        return
    _print(file, facts, seen, notes)


def _notes(seen: WorkloadShape, requests: int, reply_tokens: int) -> list[str]:
    notes = []
    if seen.assumed_replies:
        notes.append(
            f"{seen.assumed_replies:,} replies are taken to be {reply_tokens:,} tokens long (--reply-tokens), "
            "as the file does not say"
        )
    if seen.counted_requests < requests:
        notes.append(f"lengths and reuse are those of the first {seen.counted_requests:,} requests")
    return notes


def _as_json(facts: dict[str, Any], seen: WorkloadShape, notes: list[str]) -> dict[str, Any]:
    reuse = seen.reuse
    return {
        **{name.replace(" ", "_"): value for name, value in facts.items()},
        "distributions": {
            name: {**distribution.summary.as_dict(), "bars": distribution.bars}
            for name, distribution in seen.distributions.items()
        },
        "arrivals_per_s": seen.arrivals_per_s,
        "gap_variation": seen.gap_variation,
        "arrival_bars": seen.arrival_bars,
        "prefix_reuse": {
            "share": reuse.share,
            "prompt_tokens": reuse.prompt_tokens,
            "own_conversation_tokens": reuse.own_tokens,
            "other_conversation_tokens": reuse.other_tokens,
        },
        "notes": notes,
    }


def _print(file: str, facts: dict[str, Any], seen: WorkloadShape, notes: list[str]) -> None:
    from llmirage_client.commands.table import print_table

    click.echo(file)
    for name, value in facts.items():
        if value or name in ("sessions", "roots", "turns"):
            click.echo(f"  {name:<36}{value if isinstance(value, str) else f'{value:,}'}")
    if seen.arrivals_per_s is not None:
        click.echo(f"  {'arrivals':<36}{seen.arrivals_per_s:,.4g}/s, gaps vary by {seen.gap_variation:.2f} (1: Poisson)")
        click.echo(f"  {'from the first to the last of them':<36}{_plot(seen.arrival_bars)}")
    reuse = seen.reuse
    if reuse.prompt_tokens:
        own, other = reuse.own_tokens / reuse.prompt_tokens, reuse.other_tokens / reuse.prompt_tokens
        parts = f"{own:.1%} from the own conversation, {other:.1%} from others"
        click.echo(f"  {'highest prefix reuse':<36}{reuse.share:.1%} of prompt tokens: {parts}")
    click.echo()
    rows = [
        {
            "": name,
            **{column: f"{getattr(distribution.summary, key):,.4g}" for column, key in _COLUMNS.items()},
            "of": distribution.summary.count,
            "from min to max": _plot(distribution.bars),
        }
        for name, distribution in seen.distributions.items()
    ]
    if rows:
        print_table(rows)
    for note in notes:
        click.echo(f"note: {note}")


def _plot(bars: tuple[int, ...]) -> str:
    """A histogram of one line: a height of 1 to 8 for each part, a dot for a part with no value."""
    most = max(bars)
    heights = _HEIGHTS if _shows(_HEIGHTS) else _ASCII_HEIGHTS
    return "".join(heights[-(-count * 8 // most)] for count in bars)


def _shows(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
