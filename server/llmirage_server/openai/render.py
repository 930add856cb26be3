"""Answers of vLLM at `.../render`: the tokens of a prompt and how it would generate, for routers that know caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_server.service.constraints import completion_constraints
from llmirage_shared.wire.chat import ChatRequest
from llmirage_shared.wire.completions import TextRequest

_PARAMS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
    "prompt_logprobs", "logit_bias", "skip_special_tokens", "include_stop_str_in_output",
)  # fmt: skip


def rendered(
    request_id: str,
    ids: npt.NDArray[np.int32],
    request: ChatRequest | TextRequest,
    asked: Mapping[str, Any],
    max_model_len: int,
) -> dict[str, Any]:
    """Return vLLM's GenerateRequest of a prompt. asked: the body of the request."""
    sampling, form = request.sampling, completion_constraints(request.body)
    left = max(max_model_len - len(ids), 0)
    params = {name: asked[name] for name in _PARAMS if asked.get(name) is not None}
    if sampling.logprobs is not None:
        params["logprobs"] = sampling.logprobs
    if form.json_schema is not None:
        params["structured_outputs"] = {"json": form.json_schema}
    elif (grammar := form.grammar) is not None:
        name = "grammar" if grammar.syntax == "lark" else grammar.syntax
        params["structured_outputs"] = {name: list(grammar.choices) if name == "choice" else grammar.definition}
    params |= {
        "n": sampling.n,
        "max_tokens": left if sampling.max_tokens is None else min(sampling.max_tokens, left),
        "min_tokens": sampling.min_tokens,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
    }
    return {
        "request_id": request_id,
        "token_ids": ids.tolist(),
        "features": None,
        "sampling_params": params,
        "model": asked.get("model"),
        "stream": sampling.stream,
        "stream_options": asked.get("stream_options") if sampling.stream else None,
        "cache_salt": asked.get("cache_salt"),
        "priority": sampling.priority,
        "kv_transfer_params": asked.get("kv_transfer_params"),
    }
