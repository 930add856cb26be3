"""Loading of tokenizers: the embedded one, or one of Hugging Face.

The modules behind them are imported here, when a tokenizer is first wanted: most commands, and workloads in token counts, do
without the library `tokenizers`; transformers takes seconds.
"""

from __future__ import annotations

import os
from functools import lru_cache

from llmirage_shared.chat_template import ChatTemplate, EmbeddedTemplate
from llmirage_shared.tokens import Tokenizer


@lru_cache(maxsize=1)
def embedded() -> Tokenizer:
    """Return the tokenizer that ships with the package, made once per process."""
    _without_thread_pool()
    from llmirage_shared import embedded_tokenizer

    return embedded_tokenizer.make()


def load(name_or_path: str | None) -> tuple[Tokenizer, ChatTemplate]:
    """Return a tokenizer and its chat template: the embedded ones for None, else those of a folder or a hub name.

    Raises TokenizerError with one clear message if it cannot be loaded.
    """
    if name_or_path is None:
        return embedded(), EmbeddedTemplate()
    _without_thread_pool()
    from llmirage_shared import foreign_tokenizer

    return foreign_tokenizer.load(name_or_path)


def _without_thread_pool() -> None:
    """Disable the threads of `tokenizers`: texts are encoded one at a time."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
