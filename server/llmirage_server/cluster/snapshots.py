"""The state of an instance and counters of its steps, for pages, metrics and records."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from llmirage_server.cluster.limits import Role
from llmirage_server.cluster.request import AdapterReading

STEP_TOKENS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
"""Upper bounds of the tokens of a step, as in vLLM's histogram of them; one more bucket follows."""


class StepCounts:
    """Counters of steps and draft tokens, which only grow.

    by_tokens: steps that brought tokens, by bucket of generated tokens plus the computed tokens of finished prompts.
    tokens: the sum of these.
    by_accepted: verifications of one sequence's draft tokens, by the number accepted.
    draft_tokens: draft tokens verified.
    """

    __slots__ = ("by_accepted", "by_tokens", "draft_tokens", "tokens")

    def __init__(self, drafts: int = 0) -> None:
        self.by_tokens = [0] * (len(STEP_TOKENS) + 1)
        self.tokens = 0
        self.by_accepted = [0] * (drafts + 1)
        self.draft_tokens = 0

    def add_steps(self, tokens: int, steps: int = 1) -> None:
        """Count `steps` steps that brought `tokens` tokens each."""
        self.by_tokens[bisect_left(STEP_TOKENS, tokens)] += steps
        self.tokens += tokens * steps

    @property
    def drafts(self) -> int:
        """Number of verifications of one sequence's draft tokens."""
        return sum(self.by_accepted)

    @property
    def accepted_by_position(self) -> list[int]:
        """Acceptances of the first draft token, the second, and so on."""
        return [sum(self.by_accepted[position:]) for position in range(1, len(self.by_accepted))]

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted_by_position)

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per verification, the model's own included; 0 before the first one."""
        return 1 + self.accepted_tokens / drafts if (drafts := self.drafts) else 0.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepCounts) and self._figures == other._figures

    def __hash__(self) -> int:
        return hash(self.tokens)

    @property
    def _figures(self) -> tuple[list[int], int, list[int], int]:
        return self.by_tokens, self.tokens, self.by_accepted, self.draft_tokens

    def __add__(self, other: StepCounts) -> StepCounts:
        more, fewer = sorted((self.by_accepted, other.by_accepted), key=len, reverse=True)
        both = StepCounts()
        both.by_tokens = [a + b for a, b in zip(self.by_tokens, other.by_tokens, strict=True)]
        both.tokens = self.tokens + other.tokens
        both.by_accepted = [count + (fewer[i] if i < len(fewer) else 0) for i, count in enumerate(more)]
        both.draft_tokens = self.draft_tokens + other.draft_tokens
        return both


@dataclass(frozen=True, slots=True)
class TierSnapshot:
    """The state of one KV offload tier of one instance. Counters only grow.

    For a store that instances share, used and stored tokens are those of the whole store, hits and loads those of this
    instance.
    """

    name: str
    used_tokens: int
    capacity_tokens: int
    hit_tokens: int  # counter: looked up here and found, beyond what the GPU and the tiers above had
    loaded_tokens: int  # counter: read back
    stored_tokens: int  # counter: written
    dropped_tokens: int  # counter: not written, because the tier was too slow or too small for them
    shared: bool = False


@dataclass(frozen=True, slots=True)
class InstanceSnapshot:
    """The state of one instance, for telemetry. Counters only grow."""

    index: int
    running: int
    waiting: int
    kv_used_tokens: int  # held by running sequences, a shared prefix counted once
    kv_total_tokens: int
    cached_tokens: int  # in the prefix cache, the locked part of it being in use as well
    prefix_hit_tokens: int  # counter: prompt tokens found in the prefix cache when first admitted
    prefix_query_tokens: int  # counter: prompt tokens looked up
    preemptions: int  # counter
    tiers: tuple[TierSnapshot, ...] = ()  # of KV offload, the nearest first
    steps: StepCounts | None = None  # None: it has no steps
    adapters: AdapterReading | None = None  # LoRA; None: there cannot be any
    loading: int = 0  # of the waiting: their KV is on the way from a tier
    busy_s: float = 0.0  # counter: while a step was under way
    # Integrals of levels until t, in request-seconds: running * t + ran_s, and (running + waiting) * t + stayed_s
    ran_s: float = 0.0
    stayed_s: float = 0.0
    rank: int = 0  # which this is of, where the data-parallel ranks are told one by one
    # What the cluster knows of it:
    pool: str = ""
    role: Role = "both"
    model: str | None = None
    state: str = "up"  # starting, up, draining or down
    changes: int = 0  # counter: its starts, stops and crashes
    sending: int = 0  # KV transfers under way from here
    receiving: int = 0  # and to here


class Reading(NamedTuple):
    """Figures of one instance that are sampled often in the course of a simulation; as in InstanceSnapshot."""

    running: int
    waiting: int
    kv_used_tokens: int
    kv_total_tokens: int
    cached_tokens: int
    prefix_hit_tokens: int
    prefix_query_tokens: int
    preemptions: int
    busy_s: float
    ran_s: float
    stayed_s: float


class StepSpan(NamedTuple):
    """One step, or consecutive steps of the same batch, with the prompt tokens and decoding sequences of each."""

    start_s: float
    end_s: float
    steps: int
    prompt_tokens: int
    decodes: int
