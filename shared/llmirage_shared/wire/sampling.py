"""The generation settings of a request: length, end, and form of the reply."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Sampling:
    """The settings of a generation, the same for all APIs. max_tokens: at most, exactly with ignore_eos; None: no limit.

    logprobs: number of likely tokens to report with each token; None: no log probabilities.
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    include_stop_str: bool = False
    stop_token_ids: tuple[int, ...] = ()
    shows_end: bool = False  # show the token that ends the turn as text
    seed: int | None = None
    greedy: bool = False  # temperature 0
    stream: bool = False
    include_usage: bool = False
    usage_in_every_chunk: bool = False
    session_key: str | None = None  # prompt_cache_key, else user
    logprobs: int | None = None
    priority: int = 0
    return_token_ids: bool = False
    tokens_as_ids: bool = False  # name tokens by their ids in log probabilities
    prompt_logprobs: int | None = None  # like logprobs, of the prompt's tokens
    truncate_prompt_tokens: int = 0  # keep the last so many; 0: all, -1: as many as fit

    @property
    def about_prompt(self) -> bool:
        """True if the answer has fields about the prompt's tokens."""
        return self.prompt_logprobs is not None or self.return_token_ids
