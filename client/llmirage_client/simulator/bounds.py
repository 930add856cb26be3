"""Bounds of times and rates, from the performance model: forward passes on an idle instance, without a simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from llmirage_client.simulator.engine import ClusterConfig, ServedPool, plan_of
from llmirage_server.perf.steps.step_model import StepBatch

_SLACK = 0.95  # bounds hold for prefill and decode steps apart; a mixed step may save a few percent of a launch


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens of a request: its prompt, the part of it that no cache can hold, and its reply."""

    prompt: float
    new: float
    reply: float


class Bounds:
    """Lower bounds of times and upper bounds of rates on one instance of a configuration, from the roofline.

    Methods return None for fixed times, and for separate pools for prefill and decode.
    """

    def __init__(self, config: ClusterConfig) -> None:
        pools = plan_of(config)
        pool = pools[0]
        known = len(pools) == 1 and pool.config.role == "both" and not pool.config.fixed_times
        self._pool: ServedPool | None = pool if known else None

    def ttft_s(self, prompt: int, new: int) -> float | None:
        """Seconds to the first token of one user's prompt, `new` tokens of which must be computed."""
        pool = self._pool
        if pool is None:
            return None
        chunk = pool.limits.max_num_batched_tokens
        starts = range(prompt - new, prompt, chunk)
        passes = sum(_latency_s(pool, StepBatch([(min(chunk, prompt - at), at)])) for at in starts)
        return pool.deployment.engine.front_end_ms * 1e-3 + passes * _SLACK

    def tpot_s(self, context: int) -> float | None:
        """Seconds per output token of one user."""
        pool = self._pool
        return None if pool is None else _latency_s(pool, StepBatch((), [context])) / _gained(pool) * _SLACK

    def latency_s(self, lengths: Lengths) -> float | None:
        """Seconds of one user's request."""
        ttft_s, tpot_s = self.ttft_s(round(lengths.prompt), max(1, round(lengths.new))), self.tpot_s(round(lengths.prompt))
        return None if ttft_s is None or tpot_s is None else ttft_s + (lengths.reply - 1) * tpot_s

    def most_requests_per_s(self, lengths: Lengths) -> float | None:
        """Return the rate at which one instance only prefills, or only decodes the largest batch that fits."""
        pool = self._pool
        if pool is None:
            return None
        ranks = pool.deployment.parallel.dp
        decode_s = self._decode_s(lengths, _most_running(pool, lengths)) * lengths.reply
        return ranks / (max(_prefill_s(pool, lengths), decode_s) * _SLACK)

    def running(self, lengths: Lengths, requests_per_s: float) -> int | None:
        """Estimate the requests in flight on one instance at that rate in the steady state; not a bound.

        A request takes its prefill once, and a share of as many steps as its reply has tokens. The batch found is the
        smallest at which the instance keeps up with the rate.
        """
        pool = self._pool
        if pool is None:
            return None
        rate = requests_per_s / pool.deployment.parallel.dp
        prefill_s = _prefill_s(pool, lengths)
        low, high = 1, _most_running(pool, lengths)
        while low < high:
            batch = (low + high) // 2
            if rate * (prefill_s + lengths.reply * self._decode_s(lengths, batch)) <= 1:
                high = batch
            else:
                low = batch + 1
        return low * pool.deployment.parallel.dp

    def most_running(self, lengths: Lengths) -> int | None:
        """Return the number of requests that fit into one instance at a time, by its limits and its memory."""
        pool = self._pool
        return None if pool is None else _most_running(pool, lengths) * pool.deployment.parallel.dp

    def token_s(self, lengths: Lengths, users: float) -> float | None:
        """Estimate the seconds per output token with `running` requests always in progress on one instance; not a bound.

        Each of them waits for a prefill of each other one while it decodes.
        """
        pool = self._pool
        if pool is None:
            return None
        batch = max(1, min(math.ceil(users / pool.deployment.parallel.dp), _most_running(pool, lengths)))
        return batch * (_prefill_s(pool, lengths) / lengths.reply + self._decode_s(lengths, batch))

    def _decode_s(self, lengths: Lengths, batch: int) -> float:
        """Seconds of the instance that one output token takes, in a batch of that many sequences."""
        assert self._pool is not None
        context = max(1, round(lengths.prompt + lengths.reply / 2))
        return _period_s(self._pool, StepBatch((), [context] * batch)) / batch / _gained(self._pool)


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
