"""Differences between what a run asked for and what came back: lengths, chunks, models, and hits of the prefix cache."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from llmirage_client.measure.record import LEAST_REPEATED, CacheVerdict, Mismatch, Mismatches, Record, Verdict

_SAME_COUNT = (0.05, 8)  # share and tokens by which counts of one tokenizer may differ: a template's, an end token
_SAME_TEXT = (0.5, 64)  # likewise of two tokenizers


def mismatches_of(records: Iterable[Record]) -> Mismatches:
    """Return the differences among the successful requests that are not of the warm-up."""
    judged = [record for record in records if record.ok and record.phase == "profiling"]
    found = (_reply_lengths(judged), _prompt_lengths(judged), _chunks(judged), _models(judged))
    return Mismatches(tuple(mismatch for mismatch in found if mismatch is not None))


def _reply_lengths(records: Sequence[Record]) -> Mismatch | None:
    pairs = [
        (record.output_tokens_asked, tokens)
        for record in records
        if record.output_tokens_asked and (tokens := _output_tokens(record)) is not None
    ]
    other = [(asked, got) for asked, got in pairs if _differ(asked, got, *_SAME_COUNT)]
    return _numbers(
        "reply_length",
        other,
        len(pairs),
        "Replies of {share} have other lengths than asked: {asked} tokens asked, {got} came (medians). The measured load is "
        "not the one asked for; an endpoint that ends replies by itself needs ignore_eos or min_tokens (--extra-inputs).",
    )


def _prompt_lengths(records: Sequence[Record]) -> Mismatch | None:
    pairs, other = 0, []
    for record in records:
        counted = _count(record, "prompt_tokens")
        asked = record.input_tokens_asked if record.input_tokens is None else record.input_tokens
        if asked and counted is not None:
            pairs += 1
            if _differ(asked, counted, *(_SAME_COUNT if record.input_tokens is not None else _SAME_TEXT)):
                other.append((asked, counted))
    return _numbers(
        "prompt_length",
        other,
        pairs,
        "Prompts of {share} are counted otherwise by the endpoint: {asked} tokens sent, {got} counted (medians). Its usage "
        "is wrong, it cuts prompts, or its tokenizer is another one (--tokenizer names it).",
    )


def _chunks(records: Sequence[Record]) -> Mismatch | None:
    pairs = [
        (tokens, len(record.exchange.token_s))
        for record in records
        if record.exchange.streamed and (tokens := _count(record, "completion_tokens")) is not None
    ]
    other = [(tokens, chunks) for tokens, chunks in pairs if chunks > tokens and _differ(tokens, chunks, *_SAME_COUNT)]
    return _numbers(
        "chunks",
        other,
        len(pairs),
        "Replies of {share} came in more chunks than they have tokens by usage: {asked} tokens, {got} chunks (medians). "
        "Chunks are sent twice, or usage is wrong; TPOT follows usage, ITL the chunks.",
    )


def _models(records: Sequence[Record]) -> Mismatch | None:
    others = [record.exchange.other_model for record in records if record.exchange.other_model is not None]
    if not others:
        return None
    asked, got = max(set(others), key=others.count)
    note = f"Replies of {_share(len(others), len(records))} name another model: {asked} asked, {got} answered."
    return Mismatch("model", len(others), len(records), asked, got, note)


def other_model(asked: object, got: str | None) -> tuple[str, str] | None:
    """Return both names where they are not those of one model.

    A version (`gpt-4o` and `gpt-4o-2024-08-06`), the publisher (`meta/llama` and `llama`) and case make no other model.
    """
    if not isinstance(asked, str) or not asked or not got:
        return None
    one, other = (name.lower().rstrip("/").rsplit("/", 1)[-1] for name in (asked, got))
    return None if one.startswith(other) or other.startswith(one) else (asked, got)


def _numbers(kind: str, other: Sequence[tuple[int, int]], judged: int, note: str) -> Mismatch | None:
    if not other:
        return None
    asked, got = (median(numbers) for numbers in zip(*other, strict=True))
    said = note.format(share=_share(len(other), judged), asked=f"{asked:,.0f}", got=f"{got:,.0f}")
    return Mismatch(kind, len(other), judged, asked, got, said)


def _share(some: int, judged: int) -> str:
    return "all requests" if some == judged else f"{some:,} of {judged:,} requests"


def _differ(one: int, other: int, share: float, tokens: int) -> bool:
    return abs(one - other) > max(share * one, tokens)


def _output_tokens(record: Record) -> int | None:
    counted = _count(record, "completion_tokens")
    if counted is not None:
        return counted
    return record.output_tokens if record.output_tokens is not None else len(record.exchange.token_s) or None


def _count(record: Record, name: str) -> int | None:
    value = None if record.exchange.usage is None else record.exchange.usage.get(name)
    return value if type(value) is int and value >= 0 else None


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

    @property
    def found(self) -> int:
        """The repeated tokens that were in the cache."""
        return min(self.cached or 0, self.tokens)


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
    cached = sum(one.found for one in told)
    if told and (cached or not counters) and (cached or large):
        possible = sum(one.tokens for one in told)
        told.sort(key=lambda one: one.between)
        soon, late = _found_share(told[: (len(told) + 1) // 2]), _found_share(told[(len(told) + 1) // 2 :])
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
    found = np.array([one.found for one in repeats], dtype=np.float64)
    missed = np.array([one.tokens for one in repeats]) - found
    places = np.unique(between, return_inverse=True)[1]
    found_at, missed_at = np.bincount(places, found), np.bincount(places, missed)
    before = np.cumsum(found_at) - found_at / 2  # of one time count half
    return float((missed_at * before).sum() / (found.sum() * missed.sum()))


def _found_share(repeats: Sequence[_RepeatedStart]) -> float | None:
    possible = sum(one.tokens for one in repeats)
    return sum(one.found for one in repeats) / possible if possible else None


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
