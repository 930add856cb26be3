"""Response objects of chat and text completions, complete with the keys that clients require even when they are null."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(slots=True, frozen=True)
class Head:
    """What every object and every chunk of one response repeats. created: seconds since the epoch."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str = "default"


@dataclass(slots=True)
class ChoiceText:
    """One finished choice. message: of chat, without role; text: of completions."""

    text: str
    finish_reason: str
    stop_reason: str | int | None = None  # the stop string or stop token that ended it, as vLLM reports it
    message: dict[str, Any] | None = None
    logprobs: dict[str, Any] | None = None
    token_ids: list[int] | None = None
    more: dict[str, Any] | None = None  # other keys of the choice


def new_id(prefix: str) -> str:
    """A fresh response id: the prefix and 24 hexadecimal digits."""
    return prefix + os.urandom(12).hex()


def new_call_id() -> str:
    """A fresh id of a tool call."""
    return "call_" + os.urandom(12).hex()


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int = 0) -> dict[str, Any]:
    """The usage object. cached_tokens: prompt tokens that came from the prefix cache."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def chat_completion(head: Head, choices: list[ChoiceText], usage: dict[str, Any]) -> dict[str, Any]:
    """The object that a chat request gets when it does not stream."""
    return {
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": choice.text,
                    "refusal": None,
                    "annotations": [],
                    **(choice.message or {}),
                },
                "logprobs": choice.logprobs,
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                **({} if choice.token_ids is None else {"token_ids": choice.token_ids}),
            }
            for index, choice in enumerate(choices)
        ],
        "usage": usage,
        "service_tier": head.service_tier,
        "system_fingerprint": head.system_fingerprint,
    }


def text_completion(head: Head, choices: list[ChoiceText], usage: dict[str, Any]) -> dict[str, Any]:
    """The object that a completion request gets when it does not stream."""
    return {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "choices": [
            {
                "text": choice.text,
                "index": index,
                "logprobs": choice.logprobs,
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                **({} if choice.token_ids is None else {"token_ids": choice.token_ids}),
                **(choice.more or {}),
            }
            for index, choice in enumerate(choices)
        ],
        "usage": usage,
        "system_fingerprint": head.system_fingerprint,
    }


def model_card(name: str, created: int, max_model_len: int) -> dict[str, Any]:
    """One entry of GET /v1/models, with the extra keys that vLLM adds."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "llmirage",
        "root": name,
        "parent": None,
        "max_model_len": max_model_len,
    }


def anthropic_model_card(name: str, created: int, max_model_len: int) -> dict[str, Any]:
    """The same as Anthropic's API tells it. created: seconds since the epoch."""
    return {
        "type": "model",
        "id": name,
        "display_name": name.rpartition("/")[2],
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": max_model_len,
        "max_tokens": max_model_len,
    }
