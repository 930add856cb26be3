"""What `llmirage generate` does: writes a synthetic workload from a preset or a YAML file."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

import click
import yaml

from llmirage_client.commands.actions.output import check_json, write_output
from llmirage_client.commands.actions.table import print_table
from llmirage_client.commands.actions.workload import readable
from llmirage_client.commands.generate import Changes
from llmirage_client.workload.convert import ConversionError, convert
from llmirage_client.workload.session import Problem, Workload, WorkloadError
from llmirage_client.workload.shape import shape
from llmirage_client.workload.summary import summarise
from llmirage_client.workload.synthesis.generated import sessions_of
from llmirage_client.workload.synthesis.plan import Plan, draw_plan
from llmirage_client.workload.synthesis.profile import Profile, read_profile, read_values
from llmirage_client.workload.synthesis.table import as_yaml, compare, gaps
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.settings import ConfigError
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import load

_MOST_REQUESTS_FOR_REUSE = 5_000


@dataclass(frozen=True, slots=True)
class MadeWorkload:
    """profile: its parameters. plan: what was drawn. data: the file."""

    profile: Profile
    plan: Plan
    workload: Workload
    data: bytes


def generate(preset: str, output: str | None, **settings: Any) -> None:
    if not settings["show"]:
        check_json(settings, output)
    if output is None and sys.stdout.isatty() and not settings["show"]:
        raise ConfigError(["the output has megabytes: use -o FILE, or redirect standard output"])
    if settings["show"]:
        with readable():
            read_profile(preset, _given(settings), settings["rate"])
            text = as_yaml(read_values(preset, _given(settings), settings["rate"], [])[0])
        click.echo(json.dumps(yaml.safe_load(text)) if settings["json"] else text.rstrip("\n"))
        return
    made = made_of(preset, settings)
    write_output(made.data, output)
    vocabulary, template = load(settings["tokenizer"])
    encoder = PromptEncoder(vocabulary, template)
    if settings["json"]:
        click.echo(json.dumps(_as_json(made, output, settings["random_seed"], encoder)))
        return
    _report(made.profile, made.plan, made.workload, output, settings["random_seed"])
    _reuse(made.workload, encoder)


def made_of(preset: str, settings: dict[str, Any]) -> MadeWorkload:
    """What the command writes; nothing is shown or written. Raises ConfigError."""
    seed = settings["random_seed"]
    with readable():
        profile = read_profile(preset, _given(settings), settings["rate"])
        text = SyntheticText(load(settings["tokenizer"])[0], seed)
        plan = draw_plan(profile, seed)
        workload = sessions_of(profile, plan, text, settings["token_ids"])
        try:
            converted = convert(workload, profile.format)
        except ConversionError as error:
            raise WorkloadError(preset, [Problem(str(error), field="format")]) from None
    return MadeWorkload(profile, plan, workload, converted.data)


def _given(settings: dict[str, Any]) -> list[tuple[str, Any]]:
    """What changes the profile."""
    changes: Changes = settings["set"]
    given = list(changes)
    if settings["conversations"] is not None:
        given.append(("conversations", settings["conversations"]))
    if settings["to"] is not None:
        given.append(("format", settings["to"]))
    return given


def _as_json(made: MadeWorkload, output: str | None, seed: int, encoder: PromptEncoder) -> dict[str, Any]:
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
    """The share of prompt tokens that a cache without limits would have."""
    seen = shape(workload, encoder, 0, _MOST_REQUESTS_FOR_REUSE)
    some = f" (of the first {seen.counted_requests:,} requests)" if seen.counted_requests == _MOST_REQUESTS_FOR_REUSE else ""
    reuse = seen.reuse
    click.echo(
        f"prompt tokens: {reuse.prompt_tokens:,}{some}; at most {reuse.share:.1%} of them can come from a prefix cache",
        err=True,
    )
