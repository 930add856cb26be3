"""The tokenizer that ships with llmirage: byte-level BPE, stored as its merges alone.

`data/merges.txt` is written by `tools/build_tokenizer.py`, which names the text it was trained on. Ids follow from the
merges: the 256 bytes first, then one id per merge in order of rank, then the special tokens.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

END_OF_TEXT = "<|end_of_text|>"
END_OF_TURN = "<|end_of_turn|>"
SYSTEM = "<|system|>"
DEVELOPER = "<|developer|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
TOOL = "<|tool|>"
TOOLS = "<|tools|>"
NAME = "<|name|>"
TOOL_CALL = "<|tool_call|>"
TOOL_ARGUMENTS = "<|tool_arguments|>"
END_OF_TOOL_CALL = "<|end_of_tool_call|>"
THINK = "<|think|>"
END_OF_THINK = "<|end_of_think|>"
IMAGE = "<|image|>"
AUDIO = "<|audio|>"
FILE = "<|file|>"
PAD = "<|pad|>"

SPECIAL_TOKENS = (
    END_OF_TEXT,
    END_OF_TURN,
    SYSTEM,
    DEVELOPER,
    USER,
    ASSISTANT,
    TOOL,
    TOOLS,
    NAME,
    TOOL_CALL,
    TOOL_ARGUMENTS,
    END_OF_TOOL_CALL,
    THINK,
    END_OF_THINK,
    IMAGE,
    AUDIO,
    FILE,
    PAD,
)

# How text is cut into words before BPE, in the manner of current models: contractions, words with the space before
# them, numbers three digits at a time, runs of punctuation, line ends, and indentation as one unit.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)

# Where SPLIT_PATTERN always begins a new word, whatever stands before and after: between a letter and a space that a
# letter follows, and between a line end and a visible character. No alternative of the pattern crosses these places or
# looks further than the next character.
SAFE_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])|(?<=\n)(?=[!-~])")


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE (GPT-2), in the order in which they get their ids."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(b) for b in printable] + [chr(0x100 + i) for i in range(256 - len(printable))]


def build(merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
    """The tokenizer that these merges, in order of rank, define."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    vocab = {character: i for i, character in enumerate(byte_alphabet())}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return backend


def load_merges() -> list[tuple[str, str]]:
    """The shipped merges, one "left right" a line, best first."""
    parts = (Path(__file__).parent / "data" / "merges.txt").read_text("utf-8").split()
    return list(zip(parts[::2], parts[1::2], strict=True))
