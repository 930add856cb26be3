"""A request as the cluster sees it, with adapter and times of its stages, and as an instance sees it, with its KV."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from llmirage_server.cluster.kv.radix_tree import TreeNode
from llmirage_server.cluster.limits import StreamInterval

MOST_ADAPTERS = 2047  # numbers that fit beside a token id
_NUMBER_BIT, _OWN = 20, 1 << 31  # ids of vocabularies are below the one; the other tells an adapter's ids from all others


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter of a model. number: from 1 to MOST_ADAPTERS, the same for the same name."""

    name: str
    number: int
    rank: int

    def own_ids(self, key: bytes) -> bytes:
        """Return the cache key of token ids under this adapter: KV differs from that of other adapters and of the model."""
        return (np.frombuffer(key, np.uint32) ^ np.uint32(_OWN | self.number << _NUMBER_BIT)).tobytes()


def plain_ids(key: bytes) -> tuple[bytes, int]:
    """Return the vocabulary's ids of a cache key, and the number of the adapter that they are for; 0: none."""
    ids = np.frombuffer(key, np.uint32)
    if not len(ids) or not ids[0] & _OWN:
        return key, 0
    return (ids & np.uint32((1 << _NUMBER_BIT) - 1)).tobytes(), int(ids[0] & ~np.uint32(_OWN)) >> _NUMBER_BIT


class AdapterReading(NamedTuple):
    """Names of adapters with running and with waiting requests, and the most that may run."""

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    most: int


class AdapterCosts(Protocol):
    """The times of adapters, from the performance model."""

    def step_s(self, adapters: Seq[tuple[int, int]]) -> float:
        """Return what a step takes longer. adapters: rank and tokens of each."""
        ...

    def load_s(self, rank: int, from_disk: bool) -> float:
        """Return the time until an adapter is in GPU memory, from host memory or from disk."""
        ...


TokenIds = npt.NDArray[np.int32]
Span = tuple["array[float]", int, int]
"""Tokens of a request that came step by step: the ends of an instance's steps, and which brought the first and the last."""

_TOKEN_BYTES = np.dtype(np.int32).itemsize
_NOT_YET = math.nan


class QueueWait(NamedTuple):
    """The time that a request spent in queues, and its last instance; -1: none."""

    seconds: float
    instance: int


class TokenPlan(NamedTuple):
    """Times of tokens that are known beforehand. before: tokens that the request had when they were planned."""

    first_s: float
    itl_s: float
    before: int

    def due_s(self, produced: int) -> float:
        """Return when the next token is due of a request that has `produced`."""
        return self.first_s + (produced - self.before) * self.itl_s


class Request:
    """One sequence to serve. Fields up to `age_s` are set by the caller, the rest is written by the cluster.

    All times are seconds on the cluster's clock; a time that has not come yet is NaN.
    """

    id: int
    key: bytes  # int32 ids of the prompt and the whole output: the key of caches
    prompt_tokens: int  # at least 1
    output_tokens: int  # at least 1
    session_key: str | None  # key of the `session` router
    model: str | None  # which pool may serve it, where pools serve different models; None: any
    priority: int  # lower is served first, by engines that schedule by priority
    objective: str  # class of service and tenant, by which a gateway's queue orders requests; empty: none
    fairness_id: str
    body_bytes: int  # of the HTTP request; 4 a token of the prompt, where it is not known
    slo_ttft_s: float  # objective of its own, for routers and queues that read it; inf: none
    max_tokens: int  # allowed by the caller, for engines that reserve memory for it; 0: the length of the output
    only_instance: int  # the instance that must serve it, which no router chooses; -1: any
    rank: int  # the data-parallel rank that must serve it, wherever it is served; -1: any
    adapter: Adapter | None  # LoRA adapter of the model; the ids of `key` are its own then
    keeps_kv: bool  # once it has finished, its instance keeps its KV for a request with this one as `kv_from`, until then
    kv_from: Request | None  # whose KV it takes, until it has; an `instance` below -1: of another process
    by_plan: bool  # its caller keeps to its plan: the cluster tells of the first token, of the last and of a lost plan
    tag: Any  # the driver's own; never read by the cluster
    age_s: float  # time since the server got it, in cluster time, when the cluster got it

    arrival_s: float  # at the server
    instance: int  # index of the instance that serves it, or -1
    at_rank: int  # the data-parallel rank there
    placed_s: float  # when that instance got it
    stream: StreamInterval | None  # how that instance sends the tokens; None: each one
    plan: TokenPlan | None  # of its further tokens, if it goes by one
    cached_tokens: int  # prompt tokens found in the prefix cache at first admission
    external_tokens: int  # of KV that was loaded for it from offload tiers or a store
    produced: int  # output tokens generated so far; by a plan, as of `follow_plan`
    preemptions: int
    admitted_s: float
    handed_s: float  # when a prefill instance was done with it
    joined_s: float  # when a decode instance then took it into its batch
    first_token_s: float
    finished_s: float
    cancelled: bool
    failed: bool  # its instance was lost, and the cluster does not try again
    dropped: str  # the outcome in the gateway's queue because of which it failed; empty: another reason
    spans: list[Span]  # of instances that do not tell of single tokens

    __slots__ = (
        "adapter",
        "admitted_s",
        "age_s",
        "arrival_s",
        "at_rank",
        "body_bytes",
        "by_plan",
        "cached_tokens",
        "cancelled",
        "dropped",
        "external_tokens",
        "failed",
        "fairness_id",
        "finished_s",
        "first_token_s",
        "handed_s",
        "id",
        "instance",
        "joined_s",
        "keeps_kv",
        "key",
        "kv_from",
        "max_tokens",
        "model",
        "objective",
        "only_instance",
        "output_tokens",
        "placed_s",
        "plan",
        "preemptions",
        "priority",
        "produced",
        "prompt_tokens",
        "rank",
        "session_key",
        "slo_ttft_s",
        "spans",
        "stream",
        "tag",
    )

    def __init__(
        self,
        id: int,
        prompt: TokenIds | None,
        output: TokenIds | None,
        session_key: str | None = None,
        model: str | None = None,
        priority: int = 0,
        max_tokens: int = 0,
        tag: Any = None,
        key: bytes = b"",
        prompt_tokens: int = 0,
        only_instance: int = -1,
        rank: int = -1,
        adapter: Adapter | None = None,
    ) -> None:
        """Create a request from token ids, or from key and prompt_tokens without them.

        prompt: int32, shape (prompt_tokens,).
        output: int32, shape (output_tokens,), the ids that will be generated.
        """
        if prompt is not None and output is not None:
            key, prompt_tokens = token_bytes(prompt) + token_bytes(output), len(prompt)
        self.id = id
        self.adapter = adapter
        self.key = key if adapter is None else adapter.own_ids(key)
        self.prompt_tokens = prompt_tokens
        self.output_tokens = len(key) // _TOKEN_BYTES - prompt_tokens
        self.session_key = session_key
        self.model = model
        self.priority = priority
        self.max_tokens = max_tokens
        self.tag = tag
        self.only_instance = only_instance
        self.rank = rank
        self.age_s = 0.0
        self.objective = self.fairness_id = self.dropped = ""
        self.body_bytes = 4 * prompt_tokens
        self.slo_ttft_s = math.inf
        self.keeps_kv = self.by_plan = False
        self.kv_from = None
        self.plan = None
        self.instance, self.at_rank = -1, 0
        self.arrival_s = self.placed_s = self.admitted_s = self.first_token_s = self.finished_s = _NOT_YET
        self.handed_s = self.joined_s = _NOT_YET
        self.cached_tokens = self.external_tokens = self.produced = self.preemptions = 0
        self.stream = None
        self.cancelled = self.failed = False
        self.spans = []

    @staticmethod
    def of_key(
        id: int, key: bytes, prompt_tokens: int, session_key: str | None = None, adapter: Adapter | None = None
    ) -> Request:
        """Return a request whose token ids are given as bytes (`key`), the prompt's before the output's."""
        output_tokens = len(key) // _TOKEN_BYTES - prompt_tokens
        return Request(id, None, None, session_key, None, 0, output_tokens, None, key, prompt_tokens, adapter=adapter)

    @property
    def prompt(self) -> TokenIds:
        """Token ids of the prompt: read-only, shape (prompt_tokens,)."""
        return np.frombuffer(self._plain_key(), np.int32, self.prompt_tokens)

    @property
    def output(self) -> TokenIds:
        """Token ids of the output: read-only, shape (output_tokens,)."""
        return np.frombuffer(self._plain_key(), np.int32, self.output_tokens, self.prompt_tokens * _TOKEN_BYTES)

    def _plain_key(self) -> bytes:
        return self.key if self.adapter is None else self.adapter.own_ids(self.key)

    def wait(self, now: float) -> QueueWait:
        """Return the wait until `now`: from arrival to the first step, and from the end of the prefill to a decode batch."""
        waited = (now if math.isnan(self.admitted_s) else self.admitted_s) - self.arrival_s
        if not math.isnan(self.handed_s):
            waited += (now if math.isnan(self.joined_s) else self.joined_s) - self.handed_s
        return QueueWait(waited, self.instance)

    def note_first_token(self, now: float) -> None:
        """Set the time of the first token, if none came before `now`."""
        if math.isnan(self.first_token_s):
            self.first_token_s = now

    def follow_plan(self, now: float) -> None:
        """Count the tokens that are due by `now` by the plan, between the first and the last."""
        plan = self.plan
        if plan is not None and self.produced > plan.before:
            while self.produced < self.output_tokens - 1 and plan.due_s(self.produced) <= now:
                self.produced += 1

    def forget_tokens(self) -> None:
        """Drop token ids that are no longer needed; their number is kept."""
        self.key = b""


class RequestTooLongError(ValueError):
    """A request that could never finish: prompt and output are more than `room_tokens`, the most of any instance."""

    def __init__(self, request: Request, room_tokens: int) -> None:
        super().__init__(
            f"a request of {request.prompt_tokens} prompt and {request.output_tokens} output tokens can never finish: "
            f"an instance has room for {room_tokens} tokens"
        )
        self.room_tokens = room_tokens


def token_bytes(tokens: TokenIds) -> bytes:
    """Return the cache key of token ids, shape (n,)."""
    return np.ascontiguousarray(tokens, dtype=np.int32).tobytes()


@dataclass(slots=True)
class StepEnd:
    """The outcome of one instant: every request in `emitted` gained output tokens at `time_s`, failed, or lost its plan.

    `request.produced` says how many tokens it has by then (with speculation it may have gained several); a request whose
    `produced` equals `output_tokens` has finished and its `finished_s` is set; one that is `failed` gets no more. The order
    of `emitted` is stable: the order in which the instance runs its sequences.

    tokens: how many tokens all of `emitted` gained together; 0 means one each.

    handed_over: requests whose prefill an instance of a prefill pool has finished (they are in `emitted` if it shows first
    tokens, see EngineLimits.first_token); the cluster carries their KV to a decode instance and then tells this one with
    `release_transferred`.
    """

    time_s: float
    instance: int
    emitted: list[Request]
    handed_over: Seq[Request] = ()
    tokens: int = 0


class Sequence:
    """A request on an instance, with KV for `computed` of its `tokens` known tokens (prompt and output so far).

    While a step is in flight, `computed` already counts the tokens of that step. While the sequence decodes in a summed
    batch (schedulers/summed_batch.py), `computed` and `tokens` are stale until the batch refreshes them.
    """

    __slots__ = (
        "admission",
        "base",
        "computed",
        "expected",
        "first_step",
        "in_tree",
        "key",
        "max_tokens",
        "node",
        "prompt_tokens",
        "request",
        "slot",
        "stored",
        "tokens",
    )

    base: int  # these two are a summed batch's own
    first_step: int

    def __init__(self, request: Request) -> None:
        prompt_tokens = request.prompt_tokens
        self.request = request
        self.key = request.key  # of the prompt and the whole output
        self.prompt_tokens = prompt_tokens
        self.max_tokens = prompt_tokens + request.output_tokens  # prompt and output
        self.tokens = prompt_tokens + request.produced
        self.admission = 0  # running sequences are numbered in the order of their admission; 0: it does not run
        self.computed = 0
        self.slot = 0  # its slot in a pipeline whose steps have slots
        self.expected = 0  # tokens that its scheduler counts on at most, for a reservation of memory
        self.node: TreeNode | None = None  # where its part of the radix tree ends, locked
        self.in_tree = 0
        self.stored: list[int] | None = None  # how far each offload tier has it, or will have it
