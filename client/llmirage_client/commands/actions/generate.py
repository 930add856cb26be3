"""The action of `llmirage generate`: write a synthetic workload, and print its statistics."""

from __future__ import annotations

import sys
from dataclasses import asdict
from json import dumps
from typing import Any

import click
import yaml

from llmirage_client.commands.actions.output import check_json, write_output
from llmirage_client.operations import workload_files as operation
from llmirage_client.operations.workload import readable
from llmirage_client.operations.workload_files import GeneratedWorkload, changes_of
from llmirage_client.report.screen import print_table
from llmirage_client.settings.workload import GenerateSettings
from llmirage_client.workload.session import Workload
from llmirage_client.workload.shape import shape
from llmirage_client.workload.summary import summarise
from llmirage_client.workload.synthesis.conversations import Plan
from llmirage_client.workload.synthesis.profile import Profile, read_profile, read_values
from llmirage_client.workload.synthesis.table import as_yaml, compare, gaps
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.settings import ConfigError, instance_of
from llmirage_shared.tokenizer_loader import load

_MOST_REQUESTS_FOR_REUSE = 5_000


def generate(preset: str, output: str | None, json: bool, show: bool, **given: Any) -> None:
    """Run `llmirage generate`."""
    settings = instance_of(GenerateSettings, given)
    if show:
        changes = changes_of(settings)
        with readable():
            read_profile(preset, changes, settings.rate)
            text = as_yaml(read_values(preset, changes, settings.rate, [])[0])
        click.echo(dumps(yaml.safe_load(text)) if json else text.rstrip("\n"))
        return
    check_json(json, output)
    if output is None and sys.stdout.isatty():
        raise ConfigError(["the output has megabytes: use -o FILE, or redirect standard output"])
    made = operation.generate(preset, settings)
    write_output(made.file, output)
    encoder = PromptEncoder(*load(settings.tokenizer))
    if json:
        click.echo(dumps(_as_json(made, output, settings.random_seed, encoder)))
        return
    _report(made.profile, made.plan, made.workload, output, settings.random_seed)
    _reuse(made.workload, encoder)


def _as_json(made: GeneratedWorkload, output: str | None, seed: int, encoder: PromptEncoder) -> dict[str, Any]:
    counts, found = summarise(made.workload, with_reuse=False), gaps(made.plan)
    seen = shape(made.workload, encoder, 0, _MOST_REQUESTS_FOR_REUSE)
    return {
        "file": output,
        "format": made.profile.format,
        "seed": seed,
        "conversations": counts.roots,
        "sessions": counts.sessions,
        "requests": counts.requests,
        "parameters": [asdict(line) for line in compare(made.profile, made.plan)],
        "arrivals": None if found is None else {"rate_per_s": found[0], "variation": found[1]},
        "prefix_reuse": {**asdict(seen.reuse), "share": seen.reuse.share, "requests": seen.counted_requests},
    }


def _report(profile: Profile, plan: Plan, workload: Workload, output: str | None, seed: int) -> None:
    rows: list[dict[str, Any]] = []
    for line in compare(profile, plan):
        row: dict[str, Any] = {"": line.name, "requested": line.asked_as}
        for title, asked, drawn in (
            ("mean", line.asked.mean, line.drawn.mean),
            ("p50", line.asked.p50, line.drawn.p50),
            ("p95", line.asked.p95, line.drawn.p95),
        ):
            row[f"{title} requested"] = f"{asked:,.4g}"
            row[title] = f"{drawn:,.4g}"
        rows.append(row | {"drawn": line.count})
    print_table(rows, stderr=True)
    counts = summarise(workload, with_reuse=False)
    trees = f"{counts.roots:,} conversations"
    if workload.branching:
        trees = f"{counts.roots:,} trees of {counts.sessions:,} conversations"
    where = output or "standard output"
    click.echo(f"\n{where}: {trees}, {counts.requests:,} requests, as {profile.format}; synthetic, seed {seed}", err=True)
    found = gaps(plan)
    if found is not None:
        wanted = profile.arrivals
        per_s = f"{found[0]:.4g}/s (requested {wanted.rate_per_s:.4g})"
        click.echo(f"arrivals: {per_s}, CV of gaps {found[1]:.2f} (requested {wanted.variation:.2f})", err=True)


def _reuse(workload: Workload, encoder: Any) -> None:
    """Return the share of prompt tokens that a cache without limits would have."""
    seen = shape(workload, encoder, 0, _MOST_REQUESTS_FOR_REUSE)
    some = f" (of the first {seen.counted_requests:,} requests)" if seen.counted_requests == _MOST_REQUESTS_FOR_REUSE else ""
    reuse = seen.reuse
    click.echo(
        f"prompt tokens: {reuse.prompt_tokens:,}{some}; at most {reuse.share:.1%} of them can come from a prefix cache",
        err=True,
    )
