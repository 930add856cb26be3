"""Prompts of requests: what they are made of, and what they must fit in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

MOST_CHOICES = 1_024  # prompts times choices of each, in one request
MOST_COUNTED = 300_000  # tokens of a text that is only counted: as many take a second or two to find


@dataclass(slots=True, frozen=True)
class EncodedPrompt:
    """One prompt of a request. ids: int32, shape (prompt_tokens,). user_text: what the reply answers."""

    ids: npt.NDArray[np.int32]
    user_text: str
    echo: str = ""  # the prompt's text, if the response repeats it


class ContextWindow(NamedTuple):
    """The limit of a prompt: the tokens of the context window, and the field that holds the prompt.

    counted_to: up to how many tokens a longer prompt is counted, for an error that says how long it is.
    """

    tokens: int
    param: str
    counted_to: int = 0

    def exceeded(self, found: int) -> ApiError:
        """Return the refusal of a prompt of at least `found` tokens, which was not tokenized to its end."""
        return errors.context_length_exceeded(self.tokens, found, None, self.param, counted=False)


class CountedTokens(ContextWindow):
    """The limit of a text whose tokens are only counted or shown: more than engines count at once."""

    @classmethod
    def of(cls, max_model_len: int, param: str) -> CountedTokens:
        return cls(max(max_model_len, MOST_COUNTED), param)

    def exceeded(self, found: int) -> ApiError:
        problem = f"Invalid '{self.param}': expected at most {self.tokens} tokens, but got at least {found} instead."
        return ApiError(problem, param=self.param, code="context_length_exceeded")
