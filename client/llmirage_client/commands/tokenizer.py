"""`llmirage tokenizer`: the built-in tokenizer as a folder for other programs."""

from __future__ import annotations

from llmirage_shared.command_line import argument, command

tokenizer = command(
    "tokenizer",
    "llmirage_client.commands.actions.tokenizer:tokenizer",
    [argument("folder")],
    """Write the built-in tokenizer and its chat template into a folder, in the form of Hugging Face.

    Load generators count tokens with it as the server does, and need no hub: they load the folder with AutoTokenizer
    (docs/tokenizer.md), as in `aiperf profile --tokenizer ./tokenizer`. A folder that holds another tokenizer is refused.
    """,
    examples=(
        "llmirage tokenizer ./tokenizer",
        "llmirage tokenizer tokenizers/built-in",
    ),
)
