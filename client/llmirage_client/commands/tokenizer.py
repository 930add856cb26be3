"""`llmirage tokenizer`: the built-in tokenizer as a folder for other programs."""

from __future__ import annotations

from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import switch


class TokenizerOutput:
    """Output of `llmirage tokenizer`."""

    json: bool = switch(OPTIONS, "Print the names of the files, as JSON.")


tokenizer = command(
    "tokenizer",
    "llmirage_client.commands.actions.tokenizer:tokenizer",
    [argument("folder"), *options(TokenizerOutput)],
    """Write the built-in tokenizer and its chat template into a folder, in the form of Hugging Face.

    Load generators count tokens with it as the server does, and need no hub: they load the folder with AutoTokenizer
    (docs/tokenizer.md), as in `aiperf profile --tokenizer ./tokenizer`. A folder that holds another tokenizer is refused.
    """,
    examples=(
        "llmirage tokenizer ./tokenizer",
        "llmirage tokenizer ./tokenizer --json",
    ),
)
