"""`llmirage generate`: writes a synthetic workload from a preset or a YAML file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from llmirage_client.workload.session import Workload
    from llmirage_client.workload.synthesis.plan import Plan
    from llmirage_client.workload.synthesis.profile import Profile

_MOST_REQUESTS_FOR_REUSE = 5_000


@click.command()
@click.argument("preset", metavar="[PRESET|FILE.yaml]", default="agent-chain")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="File to write; packed when it ends in .gz.  [default: standard output]",
)
@click.option("--to", "format_name", metavar="FORMAT", help="Format to write.  [default: as the preset says]")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a parameter: turns.mean=12, output=40:160, 'input=lognormal(p50=200, p95=1500)'; may be repeated.",
)
@click.option("--conversations", "--sessions", type=click.IntRange(1), metavar="N", help="Short for --set conversations=N.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    metavar="PER_S",
    help="Short for --set arrivals.rate_per_s; Poisson where the preset has no arrivals.",
)
@click.option(
    "--tokenizer",
    metavar="NAME",
    help="Folder or hub name of the tokenizer that lengths are of.  [default: the one in the package, which "
    "`llmirage serve` uses]",
)
@click.option(
    "--token-ids/--no-token-ids",
    default=True,
    show_default=True,
    help="For agentic_jsonl: write the token ids, with what conversations share; without them only counts.",
)
@click.option("--random-seed", type=int, default=0, show_default=True, help="The same seed and options write the same file.")
@click.option("--show", is_flag=True, help="Print all parameters as YAML, to be changed and given as FILE.yaml.")
def generate(
    preset: str, output: str | None, format_name: str | None, changes: tuple[str, ...], conversations: int | None,
    rate: float | None, tokenizer: str | None, token_ids: bool, random_seed: int, show: bool,
) -> None:  # fmt: skip
    """Write a synthetic workload, and tell what was generated beside what was asked for.

    Presets are chat, rag, coding-agent (a tree of sub-agents and branches), office-agent, batch and agent-chain (the
    default; bundled:coding-agent is made from it). Messages are readable text of exactly as many tokens as drawn. Every
    parameter can be changed; distributions are constant, uniform, normal, lognormal, exponential, gamma and empirical,
    all with min and max.
    """
    from llmirage_client.workload.session import WorkloadError
    from llmirage_shared.tokens import TokenizerError

    if output is None and sys.stdout.isatty() and not show:
        raise click.UsageError("this writes megabytes: name a file with -o FILE, or send standard output into one")
    given = [_change(text) for text in changes]
    if conversations is not None:
        given.append(("conversations", conversations))
    if format_name is not None:
        given.append(("format", format_name))
    try:
        if show:
            _show(preset, given, rate)
        else:
            _generate(preset, given, rate, output, tokenizer, token_ids, random_seed)
    except (WorkloadError, TokenizerError) as error:
        click.echo(error, err=True)
        sys.exit(2)


def _change(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"{text!r} is not NAME=VALUE, such as turns.mean=12", param_hint="--set")
    return name.strip().replace("-", "_"), value.strip()


def _show(preset: str, given: list[tuple[str, Any]], rate: float | None) -> None:
    from llmirage_client.workload.synthesis.profile import read_profile, read_values
    from llmirage_client.workload.synthesis.show import as_yaml

    read_profile(preset, given, rate)
    click.echo(as_yaml(read_values(preset, given, rate, [])[0]), nl=False)


def _generate(
    preset: str, given: list[tuple[str, Any]], rate: float | None, output: str | None, tokenizer: str | None,
    token_ids: bool, seed: int,
) -> None:  # fmt: skip
    from llmirage_client.commands.output import write_output
    from llmirage_client.workload.convert import ConversionError, convert
    from llmirage_client.workload.synthesis.plan import draw_plan
    from llmirage_client.workload.synthesis.profile import read_profile
    from llmirage_client.workload.synthesis.sessions import as_messages, as_tokens
    from llmirage_shared.prompt_encoder import PromptEncoder
    from llmirage_shared.synthetic_text import SyntheticText
    from llmirage_shared.tokenizer_loader import load

    profile = read_profile(preset, given, rate)
    vocabulary, template = load(tokenizer)
    text = SyntheticText(vocabulary, seed)
    plan = draw_plan(profile, seed)
    if profile.format == "agentic_jsonl":
        if profile.branching:
            raise _cannot(
                preset, "agentic_jsonl holds chains of calls: give sub_agents.share=0, forks.share=0 and forks.background=0"
            )
        workload = as_tokens(plan, text if token_ids else None)
    else:
        workload = as_messages(plan, text, profile.exact_replies)
    try:
        converted = convert(workload, profile.format)
    except ConversionError as error:
        raise _cannot(preset, str(error)) from None
    write_output(converted.data, output)
    _report(profile, plan, workload, output, seed)
    _reuse(workload, PromptEncoder(vocabulary, template))


def _cannot(preset: str, message: str) -> Exception:
    from llmirage_client.workload.session import Problem, WorkloadError

    return WorkloadError(preset, [Problem(message, field="format")])


def _report(profile: Profile, plan: Plan, workload: Workload, output: str | None, seed: int) -> None:
    from llmirage_client.commands.table import print_table
    from llmirage_client.workload.summary import summarise
    from llmirage_client.workload.synthesis.table import compare, gaps

    rows: list[dict[str, Any]] = []
    for line in compare(profile, plan):
        row: dict[str, Any] = {"": line.name, "asked": line.asked_as}
        for title, asked, drawn in (
            ("mean", line.asked.mean, line.drawn.mean),
            ("p50", line.asked.p50, line.drawn.p50),
            ("p95", line.asked.p95, line.drawn.p95),
        ):
            row[f"{title} asked"] = f"{asked:,.4g}"
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
        per_s = f"{found[0]:.4g}/s (asked {wanted.rate_per_s:.4g})"
        click.echo(f"arrivals: {per_s}, gaps vary by {found[1]:.2f} (asked {wanted.variation:.2f})", err=True)


def _reuse(workload: Workload, encoder: Any) -> None:
    """The share of prompt tokens that a cache without limits would have."""
    from llmirage_client.workload.shape import shape

    seen = shape(workload, encoder, 0, _MOST_REQUESTS_FOR_REUSE)
    some = f" (of the first {seen.counted_requests:,} requests)" if seen.counted_requests == _MOST_REQUESTS_FOR_REUSE else ""
    reuse = seen.reuse
    click.echo(
        f"prompt tokens: {reuse.prompt_tokens:,}{some}; at most {reuse.share:.1%} of them can come from a prefix cache",
        err=True,
    )
