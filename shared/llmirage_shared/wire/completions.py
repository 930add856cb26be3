"""POST /v1/completions: from the JSON object to a checked request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_shared.wire import errors
from llmirage_shared.wire.fields import Fields
from llmirage_shared.wire.sampling import Sampling, read_sampling

DEFAULT_MAX_TOKENS = 16
_MAX_TOKEN_ID = 2**31 - 1

Prompt = str | npt.NDArray[np.int32]


@dataclass(slots=True, frozen=True)
class CompletionRequest:
    """A checked completion request. prompts: text, or int32 token ids of any vocabulary, shape (prompt_tokens,)."""

    model: str
    prompts: list[Prompt]
    echo: bool
    sampling: Sampling


def parse_completion(body: Mapping[str, Any]) -> CompletionRequest:
    """Check a completion body. Raises ApiError naming the first field that is wrong."""
    fields = Fields(body)
    model = fields.required_string("model")
    if "prompt" not in body:
        raise errors.missing("prompt")
    prompts = _read_prompts(body["prompt"])
    if fields.integer("logprobs", 0, 5) is not None:
        raise errors.unsupported(
            "logprobs", "Log probabilities are not supported: this server has no probabilities to report."
        )
    if fields.string("suffix"):
        raise errors.unsupported("suffix", "A suffix is not supported.")
    max_tokens = fields.integer("max_tokens", 1)
    sampling = read_sampling(fields, DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens)
    best_of = fields.integer("best_of", 1, 20)
    if best_of is not None and best_of != sampling.n:
        raise errors.unsupported("best_of", f"best_of ({best_of}) other than n ({sampling.n}) is not supported.")
    return CompletionRequest(model, prompts, fields.boolean("echo"), sampling)


def _read_prompts(prompt: Any) -> list[Prompt]:
    if isinstance(prompt, str):
        return [_checked_text(prompt, "prompt")]
    if not isinstance(prompt, list):
        raise errors.wrong_type("prompt", "a string, an array of strings or an array of token ids", prompt)
    if not prompt:
        raise errors.empty_array("prompt")
    if isinstance(prompt[0], str | list):
        return [_read_one(item, f"prompt[{index}]") for index, item in enumerate(prompt)]
    return [_read_ids(prompt, "prompt")]


def _read_one(prompt: Any, path: str) -> Prompt:
    if isinstance(prompt, str):
        return _checked_text(prompt, path)
    if isinstance(prompt, list):
        if not prompt:
            raise errors.empty_array(path)
        return _read_ids(prompt, path)
    raise errors.wrong_type(path, "a string or an array of token ids", prompt)


def _checked_text(text: str, path: str) -> str:
    if not text:
        raise errors.invalid_value(path, "the prompt is empty; a model needs at least one token.")
    return text


def _read_ids(ids: list[Any], path: str) -> npt.NDArray[np.int32]:
    if set(map(type, ids)) != {int}:  # in C: bool, float, None and strings all show as another type
        index, item = next((index, item) for index, item in enumerate(ids) if type(item) is not int)
        raise errors.wrong_type(f"{path}[{index}]", "a token id", item)
    lowest, highest = min(ids), max(ids)
    if lowest < 0:
        raise errors.below_minimum(f"{path}[{ids.index(lowest)}]", "integer", 0, lowest)
    if highest > _MAX_TOKEN_ID:
        raise errors.above_maximum(f"{path}[{ids.index(highest)}]", "integer", _MAX_TOKEN_ID, highest)
    return np.array(ids, dtype=np.int32)
