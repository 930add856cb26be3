"""`llmirage check`, `inspect`, `convert`, `generate` and `tokenizer`: workload files, with nothing sent."""

from __future__ import annotations

from llmirage_client.settings.workload import ConvertSettings, FileSettings, GenerateSettings, InspectSettings, MadeFile
from llmirage_shared.command_line import OPTIONS, argument, command, json_option, options
from llmirage_shared.settings import at_call, setting, switch


class CheckOutput:
    """Settings of `llmirage check` besides the file's."""

    tokenizer: str | None = setting(
        None, OPTIONS, "Folder or Hugging Face name of the tokenizer, for formats that count tokens."
    )
    json: bool = switch(OPTIONS, "Print JSON, with the problems of a file that is not valid.")


check = command(
    "check",
    "llmirage_client.commands.actions.workload_files:check",
    [
        argument("file", names=at_call("llmirage_client.workload.synthesis.generated:bundled_names")),
        *options(FileSettings),
        *options(CheckOutput),
    ],
    """Validate a workload file, or bundled:NAME, without sending anything.

    Exit status: 0 if the file is valid; 2 if it is not, with every problem and its line.
    """,
    examples=("llmirage check bundled:coding-agent-team", "llmirage check requests.jsonl --format single_turn"),
)


inspect = command(
    "inspect",
    "llmirage_client.commands.actions.workload_files:inspect",
    [
        argument("file", names=at_call("llmirage_client.workload.synthesis.generated:workload_names")),
        *options(InspectSettings),
        json_option("Print JSON."),
    ],
    """Show statistics of a workload file, or bundled:NAME: turns, branches, lengths, arrivals and prefix reuse.

    Prefix reuse is the share of prompt tokens that an unlimited prefix cache finds when requests run one after another. It
    is an upper bound for any server. Exit status: 2 if the file is not valid.
    """,
    examples=("llmirage inspect bundled:rag", "llmirage inspect requests.jsonl --json"),
)


convert = command(
    "convert",
    "llmirage_client.commands.actions.workload_files:convert",
    [
        argument("file", names=at_call("llmirage_client.workload.synthesis.generated:bundled_names")),
        *options(ConvertSettings),
        *options(MadeFile),
        json_option("Print what was written, as JSON; needs --output."),
    ],
    """Convert a workload file, or bundled:NAME, to another format.

    The converted file sends the same requests at the same times in the same order; the command loads it again to check that.
    If the format cannot represent something, nothing is written, the message says what would be lost, and the exit status
    is 2. Formats that can be written: dag_jsonl, multi_turn, single_turn, mooncake_trace, agentic_jsonl, inputs_json,
    raw_payload, custom_multi_turn and share_gpt.
    """,
    examples=(
        "llmirage convert requests.jsonl --to dag_jsonl -o requests.dag.jsonl",
        "llmirage convert bundled:chat --to multi_turn",
    ),
)


class GenerateOutput:
    """Output of `llmirage generate`."""

    json: bool = switch(OPTIONS, "Print the statistics, as JSON; needs --output. With --show: the parameters.")
    show: bool = switch(OPTIONS, "Print all parameters as YAML, for editing as FILE.yaml.")


generate = command(
    "generate",
    "llmirage_client.commands.actions.workload_files:generate",
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


tokenizer = command(
    "tokenizer",
    "llmirage_client.commands.actions.workload_files:tokenizer",
    [argument("folder"), json_option("Print the names of the files, as JSON.")],
    """Write the built-in tokenizer and its chat template into a folder, in the form of Hugging Face.

    Load generators count tokens with it as the server does, and need no hub: they load the folder with AutoTokenizer
    (docs/tokenizer.md), as in `aiperf profile --tokenizer ./tokenizer`. A folder that holds another tokenizer is refused.
    """,
    examples=("llmirage tokenizer ./tokenizer", "llmirage tokenizer ./tokenizer --json"),
)
