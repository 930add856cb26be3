"""What `llmirage inspect` does: the shape of a workload, without sending anything."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from llmirage_client.commands.actions.table import print_table
from llmirage_client.commands.actions.workload import load_workload, readable
from llmirage_client.workload.shape import WorkloadShape, shape
from llmirage_client.workload.summary import summarise
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.tokenizer_loader import load as load_tokenizer

_MOST_REQUESTS = 1_000_000
_HEIGHTS = "·▁▂▃▄▅▆▇█"
_ASCII_HEIGHTS = ".12345678"
_COLUMNS = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99", "min": "min", "max": "max"}


def inspect(file: str, **settings: Any) -> None:
    with readable():
        workload = load_workload(file, settings)
        encoder = PromptEncoder(*load_tokenizer(settings["tokenizer"]))
    counts = summarise(workload, with_reuse=False)
    seen = shape(workload, encoder, settings["reply_tokens"], _MOST_REQUESTS)
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
    notes = [*workload.notes, *_notes(seen, counts.requests, settings["reply_tokens"])]
    if settings["json"]:
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
        notes.append(f"lengths and reuse are of the first {seen.counted_requests:,} requests")
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
    click.echo(file)
    for name, value in facts.items():
        if value or name in ("sessions", "roots", "turns"):
            click.echo(f"  {name:<36}{value if isinstance(value, str) else f'{value:,}'}")
    if seen.arrivals_per_s is not None:
        click.echo(f"  {'arrivals':<36}{seen.arrivals_per_s:,.4g}/s, CV of gaps {seen.gap_variation:.2f} (Poisson: 1)")
        click.echo(f"  {'arrivals over time':<36}{_plot(seen.arrival_bars)}")
    reuse = seen.reuse
    if reuse.prompt_tokens:
        own, other = reuse.own_tokens / reuse.prompt_tokens, reuse.other_tokens / reuse.prompt_tokens
        parts = f"{own:.1%} from the same conversation, {other:.1%} from others"
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
