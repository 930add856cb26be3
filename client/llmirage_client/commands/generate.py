"""`llmirage generate`: writes a synthetic workload from a preset or a YAML file."""

from __future__ import annotations

from llmirage_client.settings.workload import GenerateSettings, MadeFile
from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import at_call, switch


class GenerateOutput:
    """Output of `llmirage generate`."""

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
            names=at_call("llmirage_client.workload.synthesis.generated:preset_names"),
        ),
        *options(MadeFile),
        *options(GenerateSettings),
        *options(GenerateOutput),
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
