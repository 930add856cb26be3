"""The actions of `llmirage check`, `inspect`, `convert`, `generate` and `tokenizer`: workload files and their content."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

import click
import yaml

from llmirage_client.operations import workload_files as operation
from llmirage_client.operations.workload import load_workload, readable
from llmirage_client.operations.workload_files import GeneratedWorkload, WorkloadFacts, changes_of, check_writable
from llmirage_client.report.output_files import check_json, write_output
from llmirage_client.report.progress import StatusLine, bar, minutes
from llmirage_client.report.screen import print_table
from llmirage_client.settings.workload import ConvertSettings, FileSettings, GenerateSettings, InspectSettings
from llmirage_client.simulate.progress import QUIET_S
from llmirage_client.workload.convert import Converted
from llmirage_client.workload.session import Workload, WorkloadError
from llmirage_client.workload.shape import WorkloadShape, shape
from llmirage_client.workload.summary import WorkloadSummary, summarise
from llmirage_client.workload.synthesis.conversations import as_yaml, compare, gaps
from llmirage_client.workload.synthesis.parameters import read_profile, read_values
from llmirage_shared import tokenizer_loader
from llmirage_shared.plural import plural, rounded
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.settings import ConfigError, InputRefused, instance_of
from llmirage_shared.tokenizer_loader import load


def check(file: str, json: bool, tokenizer: str | None, **given: Any) -> None:
    """Run `llmirage check`."""
    try:
        workload = load_workload(file, instance_of(FileSettings, given), tokenizer=tokenizer)
    except WorkloadError as error:
        if json:
            click.echo(dumps({"file": file, "valid": False, "problems": [asdict(problem) for problem in error.problems]}))
            sys.exit(2)
        click.echo(error, err=True)
        if len(error.problems) > 1:
            click.echo(f"{file} is not valid: {len(error.problems)} problems", err=True)
        sys.exit(2)
    summary = summarise(workload)
    if json:
        about = {"file": file, "valid": True, "format": workload.format, "notes": list(workload.notes)}
        click.echo(dumps(about | asdict(summary)))
        return
    click.echo(f"{file} is valid")
    for name, text in _rows(workload, summary):
        click.echo(f"  {name:<16}{text}")
    for note in workload.notes:
        click.echo(f"  note: {note}")


def _rows(workload: Workload, summary: WorkloadSummary) -> list[tuple[str, str]]:
    rows = [
        ("format", workload.format),
        ("sessions", f"{summary.sessions:,}, {_count(summary.roots, 'root')}"),
        ("turns", f"{summary.turns:,}"),
    ]
    if workload.branching:
        forks, spawns = _count(summary.forks, "forked child", "ren"), _count(summary.spawns, "spawned child", "ren")
        rows.append(("branches", f"{forks}, {spawns}, {_count(summary.joins, 'join')}"))
        rows.append(("depth", f"{summary.depth}"))
    rows.append(("wire requests", f"{summary.requests:,} when every root runs once"))
    if summary.tokens:
        tokens = summary.tokens
        mean = tokens.input_tokens / tokens.calls
        longest = f"mean {mean:,.0f} and longest {tokens.longest_input_tokens:,} a call"
        rows.append(("prompt tokens", f"{tokens.input_tokens:,}, {longest}"))
        rows.append(("reply tokens", f"{tokens.output_tokens:,}, mean {tokens.output_tokens / tokens.calls:,.0f} a call"))
        rows.append(("token ids", f"in {tokens.calls_with_ids:,} of {tokens.calls:,} calls"))
        if tokens.repeated_tokens is not None:
            share = tokens.repeated_tokens / tokens.input_tokens
            rows.append(("prefix reuse", f"{share:.0%} of prompt tokens, with an unlimited cache"))
    if summary.arrivals_s:
        first, last = summary.arrivals_s
        rows.append(("arrivals", f"from {first:,.3f} s to {last:,.3f} s"))
    return rows


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{plural if number != 1 else ''}"


def convert(file: str, output: str | None, json: bool, **given: Any) -> None:
    """Run `llmirage convert`."""
    settings = instance_of(ConvertSettings, given)
    check_writable(settings.to)
    check_json(json, output)
    with readable():
        workload = load_workload(file, settings, tokenizer=settings.tokenizer, seed=settings.random_seed)
        converted = operation.convert(workload, settings.to, settings.tokenizer, settings.random_seed)
    write_output([converted.data], output)
    if json:
        told = {"file": output, "format": converted.format, "conversations": len(workload.roots), "notes": _notes(converted)}
        click.echo(dumps(told))
        return
    count = len(workload.roots)
    what = f"{plural(count, 'conversation')} as {converted.format}"
    click.echo(f"{output or 'standard output'}: {what}", err=True)
    for note in _notes(converted):
        click.echo(f"note: {note}", err=True)


def _notes(converted: Converted) -> list[str]:
    options = " ".join(f"--format-option {key}={_option(value)}" for key, value in converted.options.items())
    return [*converted.notes, *([f"to load it, give --format {converted.format} {options}"] if options else [])]


def _option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
        yield f"  {'arrivals':<36}{rounded(seen.arrivals_per_s)}/s, CV of gaps {seen.gap_variation:.2f} (Poisson: 1)"
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
            **{column: rounded(getattr(distribution.summary, key)) for column, key in _COLUMNS.items()},
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


def tokenizer(folder: str, json: bool) -> None:
    """Run `llmirage tokenizer`."""
    place = Path(folder)
    files = {place / name: text.encode() for name, text in tokenizer_loader.embedded_files().items()}
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path, data in files.items():
            if path.exists() and path.read_bytes() != data:
                raise InputRefused([f"{path} is of another tokenizer; name another folder"], "tokenizer")
        for path, data in files.items():
            write_output([data], str(path))
    except OSError as error:
        raise InputRefused([f"{folder}: cannot be written: {error.strerror}"], "tokenizer") from None
    if json:
        click.echo(dumps({"folder": folder, "files": [path.name for path in files]}))
        return
    click.echo(f"{folder}: {', '.join(path.name for path in files)}")


_MOST_REQUESTS_FOR_REUSE = 5_000
_KEPT_FOR_REUSE = 32e6  # bytes of the file


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
    made = GeneratedWorkload(preset, settings, _KEPT_FOR_REUSE)
    write_output(_Writing(made).parts(), output)
    seen = shape(made.workload, PromptEncoder(*load(settings.tokenizer)), 0, _MOST_REQUESTS_FOR_REUSE)
    if json:
        click.echo(dumps(_as_json(made, seen, output, settings.random_seed)))
        return
    _report(made, seen, output, settings.random_seed)


class _Writing(StatusLine):
    """Progress of a file, after the first seconds."""

    def __init__(self, made: GeneratedWorkload) -> None:
        super().__init__(quiet_s=QUIET_S)
        self._made = made

    def _line(self, elapsed_s: float) -> str:
        made, total = self._made, self._made.profile.conversations
        text = f"{made.roots:,} of {total:,} conversations, {made.written / 1e6:,.0f} MB, {minutes(elapsed_s)} elapsed"
        return f"{bar(made.roots / total)} {text}" if self._has_room_for_a_bar else text

    def parts(self) -> Iterator[bytes]:
        for part in self._made:
            self._draw_if_due()
            yield part
        self._end("\r\x1b[K")


def _as_json(made: GeneratedWorkload, seen: WorkloadShape, output: str | None, seed: int) -> dict[str, Any]:
    found = gaps(made.arrivals_s)
    return {
        "file": output,
        "format": made.profile.format,
        "seed": seed,
        "conversations": made.roots,
        "sessions": made.sessions,
        "requests": made.requests,
        "parameters": [asdict(line) for line in compare(made.profile, made.plan)],
        "arrivals": None if found is None else {"rate_per_s": found[0], "variation": found[1]},
        "prefix_reuse": {**asdict(seen.reuse), "share": seen.reuse.share, "requests": seen.counted_requests},
    }


def _report(made: GeneratedWorkload, seen: WorkloadShape, output: str | None, seed: int) -> None:
    rows: list[dict[str, Any]] = []
    for line in compare(made.profile, made.plan):
        row: dict[str, Any] = {"": line.name, "requested": line.asked_as}
        for title, asked, drawn in (
            ("mean", line.asked.mean, line.drawn.mean),
            ("p50", line.asked.p50, line.drawn.p50),
            ("p95", line.asked.p95, line.drawn.p95),
        ):
            row[f"{title} requested"] = rounded(asked)
            row[title] = rounded(drawn)
        rows.append(row | {"drawn": line.count})
    print_table(rows, stderr=True)
    trees = plural(made.roots, "conversation")
    if made.sessions > made.roots:
        trees = f"{plural(made.roots, 'tree')} of {plural(made.sessions, 'conversation')}"
    where, as_format = output or "standard output", made.profile.format
    click.echo(f"\n{where}: {trees}, {plural(made.requests, 'request')}, as {as_format}; synthetic, seed {seed}", err=True)
    for one, times_s in made.arrivals():
        found, wanted = gaps(times_s), one.arrivals
        if found is not None:
            of = "" if one.tenant is None else f" of {one.tenant.name}"
            title = "requested" if wanted.rates is None else "requested, in the mean of its time"
            per_s = f"{rounded(found[0])}/s ({title} {rounded(wanted.mean_rate_per_s)})"
            click.echo(f"arrivals{of}: {per_s}, CV of gaps {found[1]:.2f} (requested {wanted.variation:.2f})", err=True)
    some = f" (of the first {seen.counted_requests:,} requests)" if seen.counted_requests < made.requests else ""
    share = f"at most {seen.reuse.share:.1%} of them can come from a prefix cache"
    click.echo(f"prompt tokens: {seen.reuse.prompt_tokens:,}{some}; {share}", err=True)
