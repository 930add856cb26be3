"""The action of `llmirage inspect`: statistics of a workload as lines, a table or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from json import dumps
from typing import Any

import click

from llmirage_client.commands.actions.table import print_table
from llmirage_client.operations import inspect as operation
from llmirage_client.operations.inspect import WorkloadFacts
from llmirage_client.operations.workload import load_workload, readable
from llmirage_client.settings.workload import InspectSettings
from llmirage_shared.settings import instance_of

_HEIGHTS = "·▁▂▃▄▅▆▇█"
_ASCII_HEIGHTS = ".12345678"
_COLUMNS = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99", "min": "min", "max": "max"}


def inspect(file: str, json: bool, **given: Any) -> None:
    """Run `llmirage inspect`."""
    settings = instance_of(InspectSettings, given)
    with readable():
        workload = load_workload(file, settings, tokenizer=settings.tokenizer)
    seen = operation.inspect(workload, settings)
    if json:
        click.echo(dumps(seen.json(), indent=2))
        return
    click.echo(file)
    for line in facts_lines(seen):
        click.echo(line)
    click.echo()
    if rows := distribution_rows(seen):
        print_table(rows)
    for note in seen.notes:
        click.echo(f"note: {note}")


def facts_lines(found: WorkloadFacts) -> Iterator[str]:
    """Yield the lines of `llmirage inspect`."""
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
    """Return a histogram of one line: a height of 1 to 8 for each part, a dot for a part with no value."""
    most = max(bars)
    heights = _HEIGHTS if _shows(_HEIGHTS) else _ASCII_HEIGHTS
    return "".join(heights[-(-count * 8 // most)] for count in bars)


def _shows(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
