"""`llmirage convert`: a workload file in another format."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.format_flags import format_options, given_options

if TYPE_CHECKING:
    from llmirage_client.workload.convert import Converted
    from llmirage_client.workload.session import Workload


@click.command()
@click.argument("file")
@click.option("--to", "format_name", required=True, metavar="FORMAT", help="Format to write.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="File to write; packed when it ends in .gz.  [default: standard output]",
)
@click.option(
    "--format",
    "--custom-dataset-type",
    "from_format",
    metavar="FORMAT",
    help="Format of the file ('llmirage catalog formats' lists them).  [default: detected]",
)
@format_options
@click.option(
    "--tokenizer",
    metavar="NAME",
    help="Folder or hub name of the tokenizer in which texts that are given by their length are written out, where the "
    "other format has no lengths.  [default: the one in the package]",
)
@click.option("--random-seed", type=int, default=0, show_default=True, help="Of these texts.")
def convert(
    file: str, format_name: str, output: str | None, from_format: str | None, tokenizer: str | None, random_seed: int,
    **settings: Any,
) -> None:  # fmt: skip
    """Write FILE, or bundled:NAME, in another format, if its meaning survives.

    What goes out, when and in which order stays the same; what is written is loaded again to make sure. Where the other
    format cannot say everything, nothing is written: exit status 2, and what would be lost. Formats that can be written
    are dag_jsonl, multi_turn, single_turn, mooncake_trace, agentic_jsonl, inputs_json, raw_payload, custom_multi_turn
    and share_gpt.
    """
    from llmirage_client.commands.output import write_output
    from llmirage_client.workload.convert import WRITERS, ConversionError
    from llmirage_client.workload.registry import ALIASES, load
    from llmirage_client.workload.session import WorkloadError
    from llmirage_shared.tokens import TokenizerError

    if ALIASES.get(format_name, format_name) not in WRITERS:
        raise click.BadParameter(f"{format_name!r} cannot be written; choose one of {', '.join(WRITERS)}", param_hint="--to")
    try:
        offered = {"tokenizer": tokenizer, "seed": random_seed}
        workload = load(file, from_format, *given_options(settings, offered))
        converted = _converted(workload, format_name, tokenizer, random_seed)
    except ConversionError as error:
        click.echo(f"{file}: {error}", err=True)
        sys.exit(2)
    except (WorkloadError, TokenizerError) as error:
        click.echo(error, err=True)
        sys.exit(2)
    write_output(converted.data, output)
    click.echo(f"{output or 'standard output'}: {len(workload.roots):,} conversations as {converted.format}", err=True)
    for note in _notes(converted):
        click.echo(f"note: {note}", err=True)


def _converted(workload: Workload, format_name: str, tokenizer: str | None, seed: int) -> Converted:
    """As it is, or else with the texts written out that the file gives by their length."""
    from llmirage_client.load.written_out import written_out
    from llmirage_client.workload.convert import ConversionError, convert

    try:
        return convert(workload, format_name)
    except ConversionError:
        if all(turn.synthetic is None for session in workload.sessions.values() for turn in session.turns):
            raise
    return convert(written_out(workload, tokenizer, seed), format_name)


def _notes(converted: Converted) -> list[str]:
    options = " ".join(f"--format-option {key}={_option(value)}" for key, value in converted.options.items())
    return [*converted.notes, *([f"to load it, give --format {converted.format} {options}"] if options else [])]


def _option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
