"""Hugging Face tokenizers: a local folder or a hub name, loaded through transformers."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import tokenizers

from llmirage_shared.chat_template import ChatTemplate, ChatTemplateError, JinjaTemplate, PlainTemplate
from llmirage_shared.tokens import Tokenizer, TokenizerError

# Pre-tokenizers that depend on nothing outside the given part of the text.
_LOCAL_PRE_TOKENIZERS = frozenset(
    [
        "BertPreTokenizer",
        "ByteLevel",
        "Digits",
        "Metaspace",
        "Punctuation",
        "Sequence",
        "Split",
        "Whitespace",
        "WhitespaceSplit",
    ]
)
_MARK = "llmirage"  # the reply in the probe of how a template ends one
_PROBES = ("", "word", " word", "word ", "  two  words\n\n", "\n", "été 你好 😀", "don't x=1;\n\tif (a) {", "...", "12345")


def load(name_or_path: str) -> tuple[Tokenizer, ChatTemplate]:
    """Return a tokenizer and its chat template, or a plain template if it has none. Raises TokenizerError."""
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
    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(url).hostname, 443)
    except OSError:
        return False
    return True
