"""Tokenizers that are not ours: a local folder or a hub name, loaded through transformers."""

from __future__ import annotations

from typing import Any

from llmirage_shared.chat_template import ChatTemplate, EmbeddedTemplate, JinjaTemplate
from llmirage_shared.tokens import Tokenizer, TokenizerError


def load(name_or_path: str) -> tuple[Tokenizer, ChatTemplate]:
    """A tokenizer with its own chat template. Raises TokenizerError."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise TokenizerError(f"tokenizer {name_or_path}: transformers is needed and cannot be imported: {error}") from error
    try:
        hugging_face: Any = AutoTokenizer.from_pretrained(name_or_path)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TokenizerError(f"tokenizer {name_or_path}: neither a tokenizer folder nor a hub name: {reason}") from error
    backend = getattr(hugging_face, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(f"tokenizer {name_or_path}: has no fast version (tokenizer.json)")
    tokenizer = Tokenizer(backend, name_or_path, str(hugging_face.eos_token))
    template: ChatTemplate = JinjaTemplate(hugging_face) if hugging_face.chat_template else EmbeddedTemplate()
    return tokenizer, template
