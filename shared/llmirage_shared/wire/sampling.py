"""The fields that chat and completion requests share: how much to say, when to stop, how to send it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmirage_shared.wire import errors

if TYPE_CHECKING:
    from llmirage_shared.wire.schema.chat import SamplingFields


@dataclass(slots=True, frozen=True)
class Sampling:
    """What was asked of the generation. max_tokens None: until the model stops by itself.

    logprobs: how many likely tokens to report for each place besides the chosen one; None: no log probabilities.
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    natural_stop: bool = False  # max_tokens is a limit, not a wish
    stop: tuple[str, ...] = ()
    include_stop_str: bool = False
    stop_token_ids: tuple[int, ...] = ()
    shows_end: bool = False  # the token that ends the turn is text
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False
    usage_in_every_chunk: bool = False
    session_key: str | None = None  # prompt_cache_key, else user
    logprobs: int | None = None
    priority: int = 0
    return_token_ids: bool = False
    tokens_as_ids: bool = False  # log probabilities name tokens by their ids
    prompt_logprobs: int | None = None  # like logprobs, of the prompt's tokens
    truncate_prompt_tokens: int = 0  # of a longer prompt the last so many are kept; 0: all, -1: as many as fit

    @property
    def tells_of_prompt(self) -> bool:
        """Whether the answer tells of the prompt's tokens, too."""
        return self.prompt_logprobs is not None or self.return_token_ids


def read_sampling(body: SamplingFields, max_tokens: int | None, logprobs: int | None) -> Sampling:
    """Check what no single field shows; `max_tokens` is what the endpoint made of its own token limits.

    Fields that only shape probabilities (temperature, top_p, penalties) have no effect: replies are not sampled from any.
    Raises ApiError.
    """
    min_tokens = body.min_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise errors.invalid_value(
            "min_tokens", f"expected a value <= max_tokens ({max_tokens}), but got {min_tokens} instead."
        )
    options = body.stream_options
    if options is not None and not body.stream:
        raise errors.only_with("stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled.")
    if body.prompt_logprobs is not None and body.stream:
        raise errors.only_with("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.")
    return Sampling(
        n=body.n or 1,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(body.ignore_eos),
        stop=_stop_strings(body.stop),
        include_stop_str=bool(body.include_stop_str_in_output),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        shows_end=bool(body.include_stop_str_in_output) and body.skip_special_tokens is False,
        seed=body.seed,
        stream=bool(body.stream),
        include_usage=options is not None and bool(options.include_usage),
        usage_in_every_chunk=options is not None and bool(options.continuous_usage_stats),
        session_key=getattr(body, "prompt_cache_key", None) or body.user,
        logprobs=logprobs,
        priority=body.priority or 0,
        return_token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        prompt_logprobs=body.prompt_logprobs,
        truncate_prompt_tokens=body.truncate_prompt_tokens or 0,
    )


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    for index, string in enumerate(strings):
        if not string:
            name = "stop" if isinstance(stop, str) else f"stop[{index}]"
            raise errors.invalid_value(name, "a stop string cannot be empty.")
    return strings
