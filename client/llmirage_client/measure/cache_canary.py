"""The cache canary: which prefix hits were possible by what a run has sent, and which of them its endpoint says it had."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmirage_client.measure.record import LEAST_REPEATED, CacheVerdict, Record, Verdict

_PIECE = 128  # characters by which prompts are compared
_HOSTED_LEAST = 1024  # from which on hosted APIs cache
_FINE = 0.85  # of the possible hits
_IN_ORDER = 0.82  # see _order: runs with caches that were too small had 0.87 or more, with scattered requests 0.77 or less


@dataclass(slots=True, frozen=True)
class _RepeatedStart:
    """A request that begins as an earlier one. between: prompt tokens sent since that one. cached: None: not said."""

    tokens: int
    between: int
    cached: int | None


def cache_verdict(sent: Iterable[tuple[Record, Mapping[str, Any]]], counters: int | None) -> CacheVerdict:
    """Judge the prefix cache of a run's endpoint.

    sent: the records with the bodies of their requests. counters: tokens that were found in the cache during the run, by
    the endpoint's /metrics; None: it has no such counters.
    """
    found = [one for one in _repeats(sent) if one.tokens >= LEAST_REPEATED]
    large = [one for one in found if one.tokens >= _HOSTED_LEAST]
    judged = large or found
    possible = sum(one.tokens for one in judged)
    if not judged:
        return CacheVerdict("nothing to judge", 0, 0, None, None)
    told = [one for one in judged if one.cached is not None]
    cached = sum(min(one.cached or 0, one.tokens) for one in told)
    if told and (cached or not counters) and (cached or large):
        possible = sum(one.tokens for one in told)
        told.sort(key=lambda one: one.between)
        soon, late = _share(told[: (len(told) + 1) // 2]), _share(told[(len(told) + 1) // 2 :])
        verdict: Verdict = "fine" if cached >= _FINE * possible else "off" if not cached else "scattered"
        if verdict == "scattered" and _order(told) >= _IN_ORDER:
            verdict = "evicted"
        return CacheVerdict(verdict, len(told), possible, cached, "usage", soon, late)
    if counters is None:
        return CacheVerdict("not reported", len(judged), possible, None, None)
    found_tokens = sum(one.tokens for one in found)  # the counters are of all requests
    share = min(counters / found_tokens, 1.0)
    verdict = "fine" if share >= _FINE else "too few hits" if counters else "off"
    return CacheVerdict(verdict, len(found), found_tokens, min(counters, found_tokens), "/metrics")


def _order(repeats: Sequence[_RepeatedStart]) -> float:
    """Return the share of pairs of a found and a missed token of which the found one was used more recently.

    A cache that evicts what was used longest ago finds what came again soon, whatever its size: the share is near 1. A
    router that scatters requests does not ask when a prompt was sent last: it is near a half.
    """
    between = np.array([one.between for one in repeats])
    found = np.array([min(one.cached or 0, one.tokens) for one in repeats], dtype=np.float64)
    missed = np.array([one.tokens for one in repeats]) - found
    places = np.unique(between, return_inverse=True)[1]
    found_at, missed_at = np.bincount(places, found), np.bincount(places, missed)
    before = np.cumsum(found_at) - found_at / 2  # of one time count half
    return float((missed_at * before).sum() / (found.sum() * missed.sum()))


def _share(repeats: Sequence[_RepeatedStart]) -> float | None:
    possible = sum(one.tokens for one in repeats)
    return sum(min(one.cached or 0, one.tokens) for one in repeats) / possible if possible else None


def _repeats(sent: Iterable[tuple[Record, Mapping[str, Any]]]) -> Iterator[_RepeatedStart]:
    """Yield what each successful request repeats of those whose first token had come when it went out."""
    coming: list[tuple[float, int, list[bytes], int]] = []
    known: dict[bytes, int] = {}  # a beginning, by its hash: the prompt tokens sent when it was last used
    tokens_sent = 0
    ordered = sorted(sent, key=lambda pair: pair[0].exchange.start_s)
    for number, (record, body) in enumerate(ordered):
        exchange = record.exchange
        usage = exchange.usage or {}
        prompt_tokens = usage.get("prompt_tokens") or record.input_tokens
        if not record.ok or not prompt_tokens or not exchange.token_s:
            continue
        while coming and coming[0][0] <= exchange.start_s:
            _, _, beginnings, when = heapq.heappop(coming)
            for beginning in beginnings:
                known[beginning] = max(when, known.get(beginning, 0))
        text = _prompt(body)
        beginnings = list(_beginnings(text))
        common = next((place for place in range(len(beginnings), 0, -1) if beginnings[place - 1] in known), 0)
        if common:
            share = common * _PIECE / max(len(text), 1)
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            yield _RepeatedStart(int(share * prompt_tokens), tokens_sent - known[beginnings[common - 1]], cached)
        tokens_sent += prompt_tokens
        heapq.heappush(coming, (exchange.token_s[0], number, beginnings, tokens_sent))


def _prompt(body: Mapping[str, Any]) -> str:
    """Return the prompt as one text, in the order in which endpoints encode it; what it begins with is what counts."""
    parts: list[Any] = [body.get("tools"), body.get("system") or body.get("instructions")]
    said = body.get("messages") or body.get("input") or body.get("prompt")
    parts += said if isinstance(said, list) else [said]
    return "\n".join([part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts if part])


def _beginnings(text: str) -> Iterator[bytes]:
    """Yield the hash of the text up to the end of each whole piece."""
    state = hashlib.blake2b(digest_size=12)
    for start in range(0, len(text) - _PIECE + 1, _PIECE):
        state.update(text[start : start + _PIECE].encode("utf-8", "replace"))
        yield state.copy().digest()
