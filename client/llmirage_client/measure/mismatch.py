"""Differences between what a run asked of its endpoint and what came back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from llmirage_client.measure.record import Mismatch, Mismatches, Record

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
