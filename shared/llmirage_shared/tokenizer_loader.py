"""Loading of tokenizers: the embedded one, or one of Hugging Face, from a folder or a hub name.

The embedded one is byte-level BPE, stored as its merges alone. `data/merges.txt` is written by `tools/build_tokenizer.py`,
which names the text it was trained on. Ids follow from the merges: the 256 bytes first, then one id for each merge in order
of rank, then the special tokens.

The libraries are imported when a tokenizer is first wanted: most commands, and workloads in token counts, do without the
library `tokenizers`; transformers takes seconds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmirage_shared.prompt_encoder import (
    END_OF_TURN,
    PAD,
    SPECIAL_TOKENS,
    ChatTemplate,
    ChatTemplateError,
    EmbeddedTemplate,
    JinjaTemplate,
    PlainTemplate,
)
from llmirage_shared.tokens import Tokenizer, TokenizerError, byte_alphabet

if TYPE_CHECKING:
    import tokenizers

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

# Pre-tokenizers that depend on nothing outside the given part of the text.
_LOCAL_PRE_TOKENIZERS = {
    "BertPreTokenizer", "ByteLevel", "Digits", "Metaspace", "Punctuation", "Sequence", "Split", "Whitespace",
    "WhitespaceSplit",
}  # fmt: skip
_MARK = "llmirage"  # the reply in the probe of how a template ends one
_PROBES = ("", "word", " word", "word ", "  two  words\n\n", "\n", "été 你好 😀", "don't x=1;\n\tif (a) {", "...", "12345")


@lru_cache(maxsize=1)
def embedded() -> Tokenizer:
    """Return the tokenizer that ships with the package, made once per process."""
    return Tokenizer(embedded_backend(_load_merges()), "llmirage", END_OF_TURN, segment_wise=True, cut=SAFE_CUT)


def embedded_backend(merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
    """Return the tokenizer defined by these merges, in order of rank."""
    _without_thread_pool()
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


def embedded_files() -> dict[str, str]:
    """Return the files of the embedded tokenizer and its chat template for transformers: name -> text."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": _NO_LIMIT,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "pad_token": PAD,
        "chat_template": (_DATA / "chat_template.jinja").read_text("utf-8").rstrip("\n"),
    }
    return {
        "tokenizer.json": embedded_backend(_load_merges()).to_str(),
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
    }


def _load_merges() -> list[tuple[str, str]]:
    """Return the shipped merges, one "left right" a line, best first."""
    parts = (_DATA / "merges.txt").read_text("utf-8").split()
    return list(zip(parts[::2], parts[1::2], strict=True))


def load(name_or_path: str | None) -> tuple[Tokenizer, ChatTemplate]:
    """Return a tokenizer and its chat template: the embedded ones for None, else those of a folder or a hub name.

    One without a template has a plain one. Raises TokenizerError with one clear message if it cannot be loaded.
    """
    if name_or_path is None:
        return embedded(), EmbeddedTemplate()
    hugging_face = _from_transformers(name_or_path)
    backend: tokenizers.Tokenizer | None = getattr(hugging_face, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(f"tokenizer {name_or_path}: has no tokenizer.json, and only that form can be used")
    eos: str | None = hugging_face.eos_token
    template: ChatTemplate = PlainTemplate(eos or "")
    if hugging_face.chat_template:
        template = JinjaTemplate(hugging_face)
        eos = _end_of_turn(template, backend) or eos
    return Tokenizer(backend, name_or_path, eos, segment_wise=encodes_by_segments(backend)), template


def encodes_by_segments(backend: tokenizers.Tokenizer) -> bool:
    """Return whether the ids of a text are the concatenated ids of its parts between special tokens.

    They are not if an added token takes white space or whole words around it, if a space is put before the first word only
    (Metaspace with prepend_scheme "first"), and with dropout. A few texts are tried, too.
    """
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip or token.single_word for token in added):
        return False
    if getattr(backend.model, "dropout", None):
        return False
    for part in _components(backend.pre_tokenizer):
        if part["type"] not in _LOCAL_PRE_TOKENIZERS or part.get("prepend_scheme") == "first":
            return False
    for special in [token.content for token in added if not token.normalized][:20]:
        for i, before in enumerate(_PROBES):
            after = _PROBES[(i + 3) % len(_PROBES)]
            whole = _ids(backend, before + special + after)
            if whole != _ids(backend, before) + _ids(backend, special) + _ids(backend, after):
                return False
    return True


def _ids(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    return backend.encode(text, add_special_tokens=False).ids


def _components(pre_tokenizer: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the descriptions of a pre-tokenizer and its parts, as in tokenizer.json."""
    if pre_tokenizer is not None:
        waiting = [json.loads(pre_tokenizer.__getstate__())]
        while waiting:
            part = waiting.pop()
            waiting += part.get("pretokenizers", [])
            yield part


def _end_of_turn(template: ChatTemplate, backend: tokenizers.Tokenizer) -> str | None:
    """Return the special token that the template writes after an assistant's message, None without one."""
    conversation = [
        {"role": role, "content": content} for role, content in (("user", "x"), ("assistant", _MARK), ("user", "x"))
    ]
    try:
        rendered = template.render(conversation)
    except ChatTemplateError:
        return None
    after = rendered.rpartition(_MARK)[2]
    specials = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
    found = [(after.find(content), -len(content), content) for content in specials if content and content in after]
    return min(found)[2] if found else None


def _from_transformers(name_or_path: str) -> Any:
    _refuse_no_folder(name_or_path)  # before the import
    _without_thread_pool()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # else its import warns that PyTorch is missing
    try:
        from transformers import AutoTokenizer  # here, because it takes seconds
    except ImportError as error:
        raise TokenizerError(f"tokenizer {name_or_path}: needs the package transformers: {error}") from error
    try:
        # First from this machine, with the hub's cache: no network unless it is needed.
        return AutoTokenizer.from_pretrained(name_or_path, local_files_only=True)
    except Exception as error:  # transformers and the hub client raise errors of any kind
        _refuse_folder(name_or_path, error)
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if not _reachable(hub):
        raise TokenizerError(
            f"tokenizer {name_or_path}: there is no such folder, the name is not in the local hub cache, and {hub} cannot be"
            " reached; give a folder that holds tokenizer.json"
        )
    try:
        return AutoTokenizer.from_pretrained(name_or_path)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TokenizerError(
            f"tokenizer {name_or_path}: there is no such folder, and {hub} does not give it: {reason}"
        ) from error


def _refuse_no_folder(name_or_path: str) -> None:
    """Raise TokenizerError if the name can only be a path, and there is no folder."""
    path = Path(name_or_path)
    if path.is_file():
        raise TokenizerError(f"tokenizer {name_or_path}: is a file; give the folder that holds tokenizer.json")
    if not path.exists() and (path.is_absolute() or name_or_path.startswith(".")):
        raise TokenizerError(f"tokenizer {name_or_path}: there is no such folder")


def _refuse_folder(name_or_path: str, error: Exception) -> None:
    """Raise TokenizerError if the name is that of a folder."""
    path = Path(name_or_path)
    if path.is_dir():
        if not (path / "tokenizer.json").exists():
            raise TokenizerError(f"tokenizer {name_or_path}: the folder holds no tokenizer.json") from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TokenizerError(f"tokenizer {name_or_path}: transformers cannot load the folder: {reason}") from error


def _reachable(url: str) -> bool:
    """Return whether the hub is reachable: its client retries for most of a minute before it fails."""
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return False
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(url).hostname, 443)
    except OSError:
        return False
    return True


def _without_thread_pool() -> None:
    """Disable the threads of `tokenizers`: texts are encoded one at a time."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
