"""Reply sources by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from llmirage_server.replies.compose import ComposedReplies
from llmirage_server.replies.echo import EchoReplies
from llmirage_server.replies.lengths import ReplyLengths
from llmirage_server.replies.prose import ProseReplies
from llmirage_server.replies.reply import ReplySource
from llmirage_shared.tokens import TokenIds, Tokenizer

ReplyKind = Literal["prose", "echo"]
REPLY_KINDS: tuple[ReplyKind, ...] = ("prose", "echo")


def make_reply_source(
    kind: ReplyKind,
    tokenizer: Tokenizer,
    seed: int = 0,
    *,
    exact_length: bool = False,
    lengths: ReplyLengths | None = None,
    remember: Callable[[str, TokenIds], None] = lambda text, ids: None,
) -> ReplySource:
    """The source of that name. Raises ValueError listing the choices for any other.

    exact_length is theirs; lengths and remember are those of prose.
    """
    if kind == "prose":
        prose = ProseReplies(tokenizer, seed, exact_length=exact_length, lengths=lengths, remember=remember)
        return ComposedReplies(tokenizer, prose, seed)
    if kind == "echo":
        return ComposedReplies(tokenizer, EchoReplies(tokenizer, exact_length=exact_length), seed, converses=False)
    raise ValueError(f"unknown reply source {kind!r}; choose from {', '.join(REPLY_KINDS)}")
