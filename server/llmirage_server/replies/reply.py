"""The plan of a reply: what will be said, token by token, before anything is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

FinishReason = Literal["stop", "length"]


@dataclass(slots=True, frozen=True)
class Reply:
    """One choice of a response, finished before its first token is due.

    ids: int32, shape (tokens,), at least one: everything the model generates, including the end-of-turn token when
        finish_reason is "stop" by the model's own will, and the tokens of a stop string it ran into.
    pieces: one text per id; "".join(pieces) is exactly the visible text. A piece is empty where a token shows nothing
        (an end token, the inside of a multi-byte character, text cut off by a stop string).
    """

    ids: npt.NDArray[np.int32]
    pieces: Sequence[str]
    finish_reason: FinishReason
    stop_reason: str | None = None  # the stop string that ended it, if one did

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True, frozen=True)
class ReplyRequest:
    """What a reply source may know of a request.

    max_tokens None means: the model stops by itself. Without a seed, conversations that a client tells apart get different
    replies to the same words, as a model that samples would give them: else every run would find its replies in the cache.
    """

    prompt_ids: npt.NDArray[np.int32]
    last_user_text: str  # the text of the last user message (chat) or the prompt (completions)
    max_tokens: int | None
    limit_tokens: int  # never more than this many tokens: what is left of the context window
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    include_stop_str: bool = False
    seed: int | None = None
    conversation: str | None = None  # the client's own name for the conversation, where it has one
    choice: int = 0  # index among n choices


class ReplySource(Protocol):
    """Something that knows what to say."""

    def reply(self, request: ReplyRequest) -> Reply:
        """Return the plan for one choice; deterministic by the source's seed and the request."""
        ...
