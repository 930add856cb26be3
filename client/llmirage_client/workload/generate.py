"""A synthetic coding-agent workload: sessions of chained calls whose prompts grow as an agent's do.

Each call's prompt is the previous prompt, the reply to it and a new tool result, so every call but the first repeats
nearly all of its prompt. The first prompt is a system prompt that all sessions share, a prefix that the sessions of one
repository share, and the session's own task. Nothing here is recorded from a real agent.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from llmirage_shared.synthetic_text import SyntheticText
    from llmirage_shared.tokens import TokenIds

_SYSTEM_SHARE = 0.4  # of the shortest first prompt: what all sessions have in common
_REPOSITORY_SHARE = 0.3  # of the shortest first prompt: what the sessions of one repository have in common
_SESSIONS_PER_REPOSITORY = 6
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


@dataclass(slots=True, frozen=True)
class Span:
    """A range of whole numbers, both ends included; values are drawn uniformly."""

    low: int
    high: int

    def draw(self, source: random.Random) -> int:
        return source.randint(self.low, self.high)


@dataclass(slots=True, frozen=True)
class AgentProfile:
    """What the sessions look like. Token counts are of one call; growth is what each tool result adds to the context."""

    sessions: int = 50
    calls: Span = Span(8, 15)
    sessions_per_s: float = 0.2
    tool_wait_ms: Span = Span(50, 300)
    first_context_tokens: Span = Span(1000, 1400)
    growth_tokens: Span = Span(30, 170)
    output_tokens: Span = Span(40, 160)
    token_ids: bool = True
    seed: int = 0


def generate(profile: AgentProfile) -> Iterator[dict[str, Any]]:
    """Yields the rows of an agentic_jsonl file in order of arrival; the same profile gives the same rows.

    Sessions arrive as a Poisson process, the first at time 0. Ids are of the embedded tokenizer's vocabulary and
    decode to readable text.
    """
    source = random.Random(profile.seed)
    text = _embedded_text(profile.seed) if profile.token_ids else None
    system = _Segment(source, int(profile.first_context_tokens.low * _SYSTEM_SHARE))
    repository_count = -(-profile.sessions // _SESSIONS_PER_REPOSITORY)
    repository_tokens = int(profile.first_context_tokens.low * _REPOSITORY_SHARE)
    repositories = [_Segment(source, repository_tokens) for _ in range(repository_count)]
    arrival_s = 0.0
    for number in range(profile.sessions):
        shared = [system, source.choice(repositories)]
        yield {
            "session_id": f"agent-{number:04d}",
            "arrival_time_ns": round(arrival_s * _NS_PER_S),
            "sub_requests": _calls(profile, source, shared, text),
        }
        arrival_s += source.expovariate(profile.sessions_per_s)


def _embedded_text(seed: int) -> SyntheticText:
    from llmirage_shared.synthetic_text import SyntheticText
    from llmirage_shared.tokens import embedded

    return SyntheticText(embedded(), seed)


class _Segment:
    """A stretch of text by its key and length; the ids are made when they are asked for."""

    def __init__(self, source: random.Random, tokens: int) -> None:
        self.key = source.getrandbits(62)
        self.tokens = tokens

    def ids(self, text: SyntheticText) -> TokenIds:
        return text.ids(self.key, self.tokens)


def _calls(
    profile: AgentProfile, source: random.Random, shared: list[_Segment], text: SyntheticText | None
) -> list[dict[str, Any]]:
    task_tokens = profile.first_context_tokens.draw(source) - sum(segment.tokens for segment in shared)
    opening = [*shared, _Segment(source, task_tokens)]
    context_tokens = sum(segment.tokens for segment in opening)
    context = np.concatenate([segment.ids(text) for segment in opening]) if text else None
    calls = []
    count = profile.calls.draw(source)
    for number in range(count):
        reply = _Segment(source, profile.output_tokens.draw(source))
        tool_result = _Segment(source, profile.growth_tokens.draw(source))
        call: dict[str, Any] = {"input_toks": context_tokens, "output_toks": reply.tokens}
        if text is not None and context is not None:
            reply_ids = reply.ids(text)
            call |= {"input_tok_ids": context.tolist(), "output_tok_ids": reply_ids.tolist()}
            context = np.concatenate([context, reply_ids, tool_result.ids(text)])
        wait_ms = profile.tool_wait_ms.draw(source)
        call["tool_duration_ns"] = wait_ms * _NS_PER_MS if number < count - 1 else 0
        calls.append(call)
        context_tokens += reply.tokens + tool_result.tokens
    return calls
