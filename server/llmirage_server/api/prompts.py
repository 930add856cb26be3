"""Prompts of requests: what they are made of, and what they must fit in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MOST_CHOICES = 1_024  # prompts times choices of each, in one request


@dataclass(slots=True, frozen=True)
class EncodedPrompt:
    """One prompt of a request. ids: int32, shape (prompt_tokens,). user_text: what the reply answers."""

    ids: npt.NDArray[np.int32]
    user_text: str
    echo: str = ""  # the prompt's text, if the response repeats it


class ContextWindow(NamedTuple):
    """What a prompt must fit in: the tokens of the context window, and the field that holds the prompt."""

    tokens: int
    param: str
