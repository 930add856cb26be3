"""POST /v1/completions on the wire: from the JSON object to a checked request, and the completion object."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.output import FinishedChoice, ResponseHead
from llmirage_shared.wire.sampling import Sampling

DEFAULT_MAX_TOKENS = 16
_MAX_TOKEN_ID = 2**31 - 1

Prompt = str | npt.NDArray[np.int32]


@dataclass(slots=True, frozen=True)
class TextRequest:
    """A checked completion request.

    body: the validated fields. prompts: text, or token ids of any vocabulary, int32, shape (prompt_tokens,).
    silent: no tokens were asked for (with echo, to score the prompt).
    """

    body: schema.chat.CompletionRequest
    prompts: list[Prompt]
    sampling: Sampling
    silent: bool


def parse_completion(body: Mapping[str, Any], documented_only: bool = True, most_prompts: int | None = None) -> TextRequest:
    """Check a completion body. Raises ApiError for the first wrong field.

    documented_only: refuse fields that neither the API nor any engine documents. most_prompts: more are refused unread.
    """
    request = schema.chat.CompletionRequest.check(body)
    prompts = read_prompts(request.prompt, most=most_prompts)
    if request.suffix and request.echo:
        raise errors.only_with("suffix", "Setting 'echo' and 'suffix' at the same time is not supported.")
    silent = request.max_tokens == 0
    if silent and not request.echo:
        raise errors.below_minimum("max_tokens", "integer", 1, 0)
    limit = DEFAULT_MAX_TOKENS if request.max_tokens is None else max(1, request.max_tokens)
    sampling = request.sampling(limit, request.logprobs)
    if request.best_of is not None and request.best_of < sampling.n:
        raise errors.invalid_value("best_of", f"best_of must be at least n ({sampling.n}), but is {request.best_of}.")
    if request.best_of is not None and request.best_of > sampling.n and sampling.stream:
        raise errors.invalid_value("best_of", "best_of greater than n is not possible when 'stream' is true.")
    if documented_only and (name := request.undocumented_field()) is not None:
        raise errors.unknown_parameter(name)
    return TextRequest(request, prompts, sampling, silent)


def text_completion(head: ResponseHead, choices: list[FinishedChoice], usage: dict[str, Any]) -> dict[str, Any]:
    """Return the object that answers a completion request without a stream."""
    written = [
        {"text": choice.text, "index": index, "logprobs": choice.logprobs, **choice.ending()}
        for index, choice in enumerate(choices)
    ]
    return head.whole("text_completion", written, usage)


def read_prompts(prompt: Any, param: str = "prompt", most: int | None = None) -> list[Prompt]:
    """Return prompts from a text, a list of token ids, or a list of either. Raises ApiError for the field `param`.

    most: prompts; more are refused before any is read.
    """
    if isinstance(prompt, str):
        return [_checked_text(prompt, param)]
    if not isinstance(prompt, list):
        raise errors.wrong_type(param, "a string, an array of strings or an array of token ids", prompt)
    if not prompt:
        raise errors.empty_array(param)
    if isinstance(prompt[0], str | list):
        if most is not None and len(prompt) > most:
            raise errors.too_long(param, "an array", most, len(prompt))
        kind = str if isinstance(prompt[0], str) else list
        return [_read_one(item, f"{param}[{index}]", kind) for index, item in enumerate(prompt)]
    return [read_ids(prompt, param)]


def _read_one(prompt: Any, path: str, kind: type[Any]) -> Prompt:
    if not isinstance(prompt, kind):
        raise errors.wrong_type(path, "a string" if kind is str else "an array of token ids", prompt)
    return _checked_text(prompt, path) if isinstance(prompt, str) else read_ids(prompt, path)


def _checked_text(text: str, path: str) -> str:
    if not text:
        raise errors.invalid_value(path, f"the {path.partition('[')[0]} is empty; a model needs at least one token.")
    return text


def read_ids(ids: list[Any], path: str) -> npt.NDArray[np.int32]:
    """Return token ids of any vocabulary as int32, shape (tokens,). Raises ApiError for the first that is none."""
    if not ids:
        raise errors.empty_array(path)
    kinds = set(map(type, ids))  # runs in C; bool, float, None and strings are other types
    if float in kinds:  # 16.0 is an integer in JSON
        ids = [int(item) if type(item) is float and item.is_integer() else item for item in ids]
        kinds = set(map(type, ids))
    if kinds != {int}:
        index, item = next((index, item) for index, item in enumerate(ids) if type(item) is not int)
        raise errors.wrong_type(f"{path}[{index}]", "a token id", item)
    with contextlib.suppress(OverflowError):
        found = np.frombuffer(array("i", ids), dtype=np.int32)  # a third of the time of np.array
        if found.min() >= 0:
            return found
    lowest, highest = min(ids), max(ids)
    if lowest < 0:
        raise errors.below_minimum(f"{path}[{ids.index(lowest)}]", "integer", 0, lowest)
    raise errors.above_maximum(f"{path}[{ids.index(highest)}]", "integer", _MAX_TOKEN_ID, highest)
