"""Token counts in the `usage` object of a reply, under AIPerf's names for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Where each count may stand, the last place that has it winning.
_PLACES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("usage_prompt_tokens", ("prompt_tokens",)),
    ("usage_completion_tokens", ("completion_tokens",)),
    ("usage_total_tokens", ("total_tokens",)),
    ("usage_reasoning_tokens", ("completion_tokens_details", "reasoning_tokens")),
    ("usage_prompt_cache_read_tokens", ("cache_read_input_tokens",)),
    ("usage_prompt_cache_read_tokens", ("prompt_tokens_details", "cached_tokens")),
    ("usage_prompt_cache_write_tokens", ("cache_creation_input_tokens",)),
    ("usage_prompt_cache_miss_tokens", ("prompt_cache_miss_tokens",)),
    ("usage_prompt_audio_tokens", ("prompt_tokens_details", "audio_tokens")),
    ("usage_completion_audio_tokens", ("completion_tokens_details", "audio_tokens")),
    ("usage_accepted_prediction_tokens", ("completion_tokens_details", "accepted_prediction_tokens")),
    ("usage_rejected_prediction_tokens", ("completion_tokens_details", "rejected_prediction_tokens")),
)
MOST_TOKENS = 10**9  # of one request
USAGE_TAGS = tuple(dict.fromkeys(tag for tag, _ in _PLACES))
_TOP = {path[0]: tag for tag, path in _PLACES if len(path) == 1}
_NESTED = {group: {path[1]: tag for tag, path in _PLACES if path[0] == group} for _, (group, *rest) in _PLACES if rest}


def usage_counts(usage: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts of a usage object; an endpoint may send null for what it lacks."""
    counts: dict[str, int] = {}
    for key, value in usage.items():
        if key in _TOP and is_count(value):
            counts[_TOP[key]] = int(value)
    for group, tags in _NESTED.items():
        details = usage.get(group)
        if isinstance(details, Mapping):
            for key, value in details.items():
                if key in tags and is_count(value):
                    counts[tags[key]] = int(value)
    return counts


def absurd_count(usage: Mapping[str, Any]) -> tuple[str, Any] | None:
    """Return a count that no endpoint can mean, with its name; None if there is none.

    Counts are whole numbers from 0 to MOST_TOKENS. A sum with any other would hide all others; a sum without it would lack
    that request.
    """
    for group, names in (usage, _TOP), *[(usage.get(name), tags) for name, tags in _NESTED.items()]:
        for name, value in group.items() if isinstance(group, Mapping) else ():
            if name in names and value is not None and not is_count(value):
                return name, value
    return None


def is_count(value: Any) -> bool:
    """Return whether a value can be a number of tokens."""
    whole = type(value) is int or (type(value) is float and value.is_integer())
    return whole and 0 <= value <= MOST_TOKENS


def usage_of(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return a usage object with these counts, by tag: the inverse of usage_counts."""
    usage: dict[str, Any] = {}
    for tag, path in reversed(_PLACES):  # so that of two places the one that chat completions use remains
        if tag in counts and not any(tag == other and _holds(usage, place) for other, place in _PLACES):
            target = usage
            for key in path[:-1]:
                target = target.setdefault(key, {})
            target[path[-1]] = counts[tag]
    return usage


def _holds(usage: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    found: Any = usage
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found is not None
