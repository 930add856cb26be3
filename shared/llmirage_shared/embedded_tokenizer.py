"""The tokenizer that ships with llmirage: byte-level BPE, stored as its merges alone.

`data/merges.txt` is written by `tools/build_tokenizer.py`, which names the text it was trained on. Ids follow from the
merges: the 256 bytes first, then one id for each merge in order of rank, then the special tokens.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from llmirage_shared.tokens import Tokenizer
from llmirage_shared.vocabulary import END_OF_TURN, PAD, SPECIAL_TOKENS, byte_alphabet

_DATA = Path(__file__).parent / "data"
# More than any context: libraries warn of longer texts, and some cut them.
_NO_LIMIT = 100_000_000

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


def make() -> Tokenizer:
    """Return the embedded tokenizer."""
    return Tokenizer(build(_load_merges()), "llmirage", END_OF_TURN, segment_wise=True, cut=SAFE_CUT)


def build(merges: list[tuple[str, str]]) -> Backend:
    """Return the tokenizer defined by these merges, in order of rank."""
    vocab = {character: i for i, character in enumerate(byte_alphabet())}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return backend


def folder_files() -> dict[str, str]:
    """Return the files of the embedded tokenizer and its chat template for transformers: name -> text."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": _NO_LIMIT,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "pad_token": PAD,
        "chat_template": (_DATA / "chat_template.jinja").read_text("utf-8").rstrip("\n"),
    }
    return {"tokenizer.json": build(_load_merges()).to_str(), "tokenizer_config.json": json.dumps(settings, indent=2) + "\n"}


def _load_merges() -> list[tuple[str, str]]:
    """Return the shipped merges, one "left right" a line, best first."""
    parts = (_DATA / "merges.txt").read_text("utf-8").split()
    return list(zip(parts[::2], parts[1::2], strict=True))
