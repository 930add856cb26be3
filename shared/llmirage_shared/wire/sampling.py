"""The fields that chat and completion requests share: how much to say, when to stop, how to send it."""

from __future__ import annotations

from dataclasses import dataclass

from llmirage_shared.wire import errors
from llmirage_shared.wire.fields import Fields

MAX_CHOICES = 128
MAX_STOP_STRINGS = 4
_INT64_MAX = 2**63 - 1


@dataclass(slots=True, frozen=True)
class Sampling:
    """What was asked of the generation. max_tokens None: until the model stops by itself."""

    n: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    include_stop_str: bool
    seed: int | None
    stream: bool
    include_usage: bool
    session_key: str | None  # prompt_cache_key, else user


def read_sampling(fields: Fields, max_tokens: int | None) -> Sampling:
    """Read and check the shared fields; `max_tokens` is what the endpoint made of its own token limits.

    Fields that only shape probabilities (temperature, top_p, penalties) are checked and otherwise have no effect: the
    server has no probabilities. Raises ApiError.
    """
    fields.number("temperature", 0, 2)
    fields.number("top_p", 0, 1)
    fields.number("presence_penalty", -2, 2)
    fields.number("frequency_penalty", -2, 2)
    fields.mapping("logit_bias")
    stream = fields.boolean("stream")
    min_tokens = fields.integer("min_tokens", 0) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise errors.invalid_value(
            "min_tokens", f"expected a value <= max_tokens ({max_tokens}), but got {min_tokens} instead."
        )
    return Sampling(
        n=fields.integer("n", 1, MAX_CHOICES) or 1,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=fields.boolean("ignore_eos"),
        stop=_read_stop(fields),
        include_stop_str=fields.boolean("include_stop_str_in_output"),
        seed=fields.integer("seed", -_INT64_MAX - 1, _INT64_MAX),
        stream=stream,
        include_usage=_read_include_usage(fields, stream),
        session_key=fields.string("prompt_cache_key") or fields.string("user"),
    )


def _read_include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.mapping("stream_options")
    if options is None:
        return False
    if not stream:
        raise errors.invalid_value("stream_options", "the option is only allowed when 'stream' is true.")
    if options.boolean("continuous_usage_stats"):
        raise errors.unsupported(
            "stream_options.continuous_usage_stats",
            "Usage in every chunk is not supported; use stream_options.include_usage.",
        )
    return options.boolean("include_usage")


def _read_stop(fields: Fields) -> tuple[str, ...]:
    value = fields.raw("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise errors.wrong_type("stop", "a string or an array of strings", value)
    if len(value) > MAX_STOP_STRINGS:
        raise errors.array_too_long("stop", MAX_STOP_STRINGS, len(value))
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise errors.wrong_type(f"stop[{index}]", "a string", item)
        if not item:
            raise errors.invalid_value(f"stop[{index}]", "a stop string cannot be empty.")
    return tuple(value)
