"""The state of an instance, for pages, metrics and records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from llmirage_server.cluster.adapters import AdapterReading
from llmirage_server.cluster.limits import Role
from llmirage_server.cluster.step_counts import StepCounts


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
