"""`llmirage generate`: writes a synthetic workload from a preset or a YAML file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llmirage_client.settings.places import cannot_be_file
from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import at_call, setting, switch

Changes = tuple[tuple[str, Any], ...]


def _changes(texts: Iterable[str]) -> Changes:
    changes = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{text!r} is not NAME=VALUE, such as turns.mean=12")
        changes.append((name.strip().replace("-", "_"), value.strip()))
    return tuple(changes)


class GenerateSettings:
    output: str | None = setting(
        None,
        OPTIONS,
        "File to write; compressed if it ends in .gz.",
        short="o",
        metavar="FILE",
        check=cannot_be_file,
        unset="standard output",
    )
    to: str | None = setting(None, OPTIONS, "Format to write.", metavar="FORMAT", unset="the preset's")
    set: Changes = setting(
        (),
        OPTIONS,
        "Change a parameter: turns.mean=12, output=40:160, 'input=lognormal(p50=200, p95=1500)'; may be repeated.",
        metavar="NAME=VALUE",
        read=_changes,
    )
    conversations: int | None = setting(None, OPTIONS, "Short for --set conversations=N.", aliases=("sessions",), least=1)
    rate: float | None = setting(
        None,
        OPTIONS,
        "Short for --set arrivals.rate_per_s; Poisson arrivals if the preset has none.",
        metavar="PER_S",
        above=0,
    )
    tokenizer: str | None = setting(
        None,
        OPTIONS,
        "Folder or Hugging Face name of the tokenizer that lengths refer to.",
        unset="the built-in one, which `llmirage serve` uses",
    )
    token_ids: bool = setting(
        True, OPTIONS, "For agentic_jsonl: write token ids, so that shared prefixes stay shared; otherwise only counts."
    )
    random_seed: int = setting(0, OPTIONS, "Seed; the same seed and options write the same file.")
    json: bool = switch(OPTIONS, "Print the statistics, as JSON; needs --output. With --show: the parameters.")
    show: bool = switch(OPTIONS, "Print all parameters as YAML, for editing as FILE.yaml.")


generate = command(
    "generate",
    "llmirage_client.commands.actions.generate:generate",
    [
        argument(
            "preset",
            "[PRESET|FILE.yaml]",
            default="agent-chain",
            names=at_call("llmirage_client.workload.names:preset_names"),
        ),
        *options(GenerateSettings),
    ],
    """Write a synthetic workload, and print its statistics beside the requested ones.

    Presets: chat, rag, coding-agent (with sub-agents and branches), office-agent, batch and agent-chain (the default, from
    which bundled:coding-agent is made). Messages are prose of exactly the drawn number of tokens. Every parameter can be
    changed. Distributions: constant, uniform, normal, lognormal, exponential, gamma and empirical, all with min and max.
    """,
    examples=(
        "llmirage generate chat -o chat.jsonl",
        "llmirage generate coding-agent --conversations 20 --set turns.mean=12 -o agents.jsonl.gz",
    ),
)
