"""What `llmirage inspect` does: the shape of a workload, without sending anything."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from llmirage_client.commands.actions.table import print_table
from llmirage_client.commands.actions.workload import load_workload, readable
from llmirage_client.workload.session import Workload
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
    seen = looked_at(workload, settings)
    if settings["json"]:
        click.echo(json.dumps(as_json(seen), indent=2))
        return
    click.echo(file)
    for line in facts_lines(seen):
        click.echo(line)
    click.echo()
    if rows := distribution_rows(seen):
        print_table(rows)
    for note in seen.notes:
        click.echo(f"note: {note}")


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """What the command shows: counts by name, the shape, notes."""

    facts: dict[str, Any]
    shape: WorkloadShape
    notes: list[str]


def looked_at(workload: Workload, settings: Mapping[str, Any]) -> WorkloadFacts:
    """Raises ConfigError for a tokenizer that is not there."""
    with readable():
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
    return WorkloadFacts(facts, seen, notes)


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


def as_json(found: WorkloadFacts) -> dict[str, Any]:
    seen, reuse = found.shape, found.shape.reuse
    return {
        **{name.replace(" ", "_"): value for name, value in found.facts.items()},
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
        "notes": found.notes,
    }


def facts_lines(found: WorkloadFacts) -> Iterator[str]:
    seen = found.shape
    for name, value in found.facts.items():
        if value or name in ("sessions", "roots", "turns"):
            yield f"  {name:<36}{value if isinstance(value, str) else f'{value:,}'}"
    if seen.arrivals_per_s is not None:
        yield f"  {'arrivals':<36}{seen.arrivals_per_s:,.4g}/s, CV of gaps {seen.gap_variation:.2f} (Poisson: 1)"
        yield f"  {'arrivals over time':<36}{_plot(seen.arrival_bars)}"
    reuse = seen.reuse
    if reuse.prompt_tokens:
        own, other = reuse.own_tokens / reuse.prompt_tokens, reuse.other_tokens / reuse.prompt_tokens
        parts = f"{own:.1%} from the same conversation, {other:.1%} from others"
        yield f"  {'highest prefix reuse':<36}{reuse.share:.1%} of prompt tokens: {parts}"


def distribution_rows(found: WorkloadFacts) -> list[dict[str, Any]]:
    """One for each distribution, as a table shows it."""
    return [
        {
            "": name,
            **{column: f"{getattr(distribution.summary, key):,.4g}" for column, key in _COLUMNS.items()},
            "of": distribution.summary.count,
            "from min to max": _plot(distribution.bars),
        }
        for name, distribution in found.shape.distributions.items()
    ]


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
