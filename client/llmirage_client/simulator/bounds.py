"""Bounds of times and rates, from the performance model: forward passes on an idle instance, without a simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from llmirage_client.simulator.engine import ClusterConfig, ServedPool, kv_link, plan_of
from llmirage_server.perf.steps.step_model import StepBatch

_SLACK = 0.95  # bounds hold for prefill and decode steps apart; a mixed step may save a few percent of a launch


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens of a request: its prompt, the part of it that no cache can hold, and its reply."""

    prompt: float
    new: float
    reply: float


@dataclass(frozen=True, slots=True)
class KVTransferCost:
    """The KV of a request on its way to a decode instance. link_s: of its sender's link. latency_s: with the hand-off."""

    bytes: float
    link_s: float
    latency_s: float


class Bounds:
    """Lower bounds of times and upper bounds of rates on one instance of a configuration, from the roofline.

    With one pool for prefill and one for decode, they are of the whole cluster. Methods return None for fixed times and for
    other pools.
    """

    def __init__(self, config: ClusterConfig) -> None:
        pools = plan_of(config)
        roles = [pool.config.role for pool in pools]
        self._prefill: ServedPool | None = None
        self._decode: ServedPool | None = None
        self._link = kv_link(config, pools) if sorted(roles) == ["decode", "prefill"] else None
        if any(pool.config.fixed_times for pool in pools):
            return
        if self._link is not None:
            self._prefill, self._decode = (pools[roles.index(role)] for role in ("prefill", "decode"))
        elif roles == ["both"]:
            self._prefill = self._decode = pools[0]

    def ttft_s(self, prompt: int, new: int) -> float | None:
        """Seconds to the first token of one user's prompt, `new` tokens of which must be computed."""
        pool = self._prefill
        if pool is None:
            return None
        chunk = pool.limits.max_num_batched_tokens
        starts = range(prompt - new, prompt, chunk)
        passes = sum(_latency_s(pool, StepBatch([(min(chunk, prompt - at), at)])) for at in starts)
        handoff_s = 0.0 if self._link is None or pool.limits.first_token == "prefill" else self._link.latency_s
        return pool.deployment.engine.front_end_ms * 1e-3 + passes * _SLACK + handoff_s

    def tpot_s(self, context: int) -> float | None:
        """Seconds per output token of one user."""
        pool = self._decode
        return None if pool is None else _latency_s(pool, StepBatch((), [context])) / _gained(pool) * _SLACK

    def latency_s(self, lengths: Lengths) -> float | None:
        """Seconds of one user's request."""
        ttft_s, tpot_s = self.ttft_s(round(lengths.prompt), max(1, round(lengths.new))), self.tpot_s(round(lengths.prompt))
        return None if ttft_s is None or tpot_s is None else ttft_s + (lengths.reply - 1) * tpot_s

    def prefill_requests_per_s(self, lengths: Lengths) -> float | None:
        """Return the rate at which one instance only prefills."""
        pool = self._prefill
        return None if pool is None else pool.deployment.parallel.dp / (_prefill_s(pool, lengths) * _SLACK)

    def decode_requests_per_s(self, lengths: Lengths, tpot_s: float = math.inf) -> float | None:
        """Return the rate at which one instance only decodes: the largest batch that fits and keeps to tpot_s."""
        pool = self._decode
        if pool is None:
            return None
        low, high = 1, _most_running(pool, lengths)
        while low < high and math.isfinite(tpot_s):
            batch = (low + high + 1) // 2
            if batch * self._decode_s(lengths, batch) * _SLACK <= tpot_s:
                low = batch
            else:
                high = batch - 1
        return pool.deployment.parallel.dp / (self._decode_s(lengths, high) * lengths.reply * _SLACK)

    def transfer(self, lengths: Lengths) -> KVTransferCost | None:
        """Return the transfer of a request's KV; None without separate pools."""
        if self._link is None or self._prefill is None:
            return None
        deployment = self._prefill.deployment
        bytes_ = lengths.new * deployment.kv_bytes_per_token + deployment.kv_bytes_per_sequence
        return KVTransferCost(bytes_, bytes_ / self._link.bytes_per_s, self._link.latency_s)

    def requests_per_s(self, lengths: Lengths) -> tuple[float, ...] | None:
        """Return the most that one instance of each pool carries: of all, or of the prefill and the decode pool."""
        prefill, decode = self.prefill_requests_per_s(lengths), self.decode_requests_per_s(lengths)
        if prefill is None or decode is None:
            return None
        transfer = self.transfer(lengths)
        return (min(prefill, decode),) if transfer is None else (min(prefill, 1 / max(transfer.link_s, 1e-12)), decode)

    def most_requests_per_s(self, lengths: Lengths) -> float | None:
        """Return the rate at which one instance only prefills, or only decodes the largest batch that fits."""
        rates = self.requests_per_s(lengths)
        return None if rates is None else min(rate * count for rate, count in zip(rates, self._counts, strict=True))

    @property
    def _counts(self) -> tuple[int, ...]:
        """Instances of each pool that the figures are of."""
        if self._link is None or self._prefill is None or self._decode is None:
            return (1,)
        return self._prefill.config.instances, self._decode.config.instances

    def running(self, lengths: Lengths, requests_per_s: float) -> int | None:
        """Estimate the requests in flight on one instance at that rate in the steady state; not a bound.

        A request takes its prefill once, and a share of as many steps as its reply has tokens. The batch found is the
        smallest at which the instance keeps up with the rate.
        """
        pool = self._decode
        if pool is None or self._prefill is None:
            return None
        ranks = pool.deployment.parallel.dp * self._counts[-1]
        rate = requests_per_s / ranks
        prefill_s = _prefill_s(pool, lengths) if self._link is None else 0.0
        low, high = 1, _most_running(pool, lengths)
        while low < high:
            batch = (low + high) // 2
            if rate * (prefill_s + lengths.reply * self._decode_s(lengths, batch)) <= 1:
                high = batch
            else:
                low = batch + 1
        before = 0 if self._link is None else math.ceil(2 * requests_per_s * _prefill_s(self._prefill, lengths))
        return low * ranks + before

    def most_running(self, lengths: Lengths) -> int | None:
        """Return the number of requests that fit into one instance at a time, by its limits and its memory."""
        pool = self._decode
        return None if pool is None else _most_running(pool, lengths) * pool.deployment.parallel.dp * self._counts[-1]

    def token_s(self, lengths: Lengths, users: float) -> float | None:
        """Estimate the seconds per output token with `running` requests always in progress on one instance; not a bound.

        Each of them waits for a prefill of each other one while it decodes, if the instance prefills, too.
        """
        pool = self._decode
        if pool is None:
            return None
        ranks = pool.deployment.parallel.dp * self._counts[-1]
        batch = max(1, min(math.ceil(users / ranks), _most_running(pool, lengths)))
        prefill_s = _prefill_s(pool, lengths) if self._link is None else 0.0
        return batch * (prefill_s / lengths.reply + self._decode_s(lengths, batch))

    def _decode_s(self, lengths: Lengths, batch: int) -> float:
        """Seconds of the instance that one output token takes, in a batch of that many sequences."""
        assert self._decode is not None
        context = max(1, round(lengths.prompt + lengths.reply / 2))
        return _period_s(self._decode, StepBatch((), [context] * batch)) / batch / _gained(self._decode)


def _prefill_s(pool: ServedPool, lengths: Lengths) -> float:
    """Seconds that a prompt takes in steps filled with prompts."""
    new, cached = max(1, round(lengths.new)), max(0, round(lengths.prompt - lengths.new))
    together = max(1, min(pool.limits.max_num_seqs, pool.limits.max_num_batched_tokens // new))
    return _period_s(pool, StepBatch([(new, cached)] * together)) / together


def _most_running(pool: ServedPool, lengths: Lengths) -> int:
    tokens = max(1.0, lengths.prompt + lengths.reply / 2)
    return max(1, min(pool.limits.max_num_seqs, int(pool.limits.kv_capacity_tokens / tokens)))


def _gained(pool: ServedPool) -> float:
    """Tokens of a sequence in one decoding step: more than 1 with speculation."""
    speculative = pool.deployment.speculative
    return speculative.tokens_per_step if speculative else 1.0


def _latency_s(pool: ServedPool, batch: StepBatch) -> float:
    """Seconds of a forward pass through all stages, other ranks idle."""
    return pool.step_model.step_s(batch.prefill, batch.decode_contexts)


def _period_s(pool: ServedPool, batch: StepBatch) -> float:
    """Seconds from one such step to the next, on every rank at once; a pipeline is as fast as its slowest stage."""
    step: Any = pool.step_model
    parallel = pool.deployment.parallel
    if parallel.dp == parallel.pp == 1:
        return _latency_s(pool, batch)
    return float(max(step.stages_s([batch] * parallel.dp)))
