"""Where a pool saturates: a rule of thumb for the start-up text, not a simulation."""

from __future__ import annotations

from typing import Any

from llmirage_server.config.planning import ServedPool
from llmirage_server.perf.steps.step_model import StepBatch

EXAMPLE_PROMPT_TOKENS = 1000
EXAMPLE_REPLY_TOKENS = 200


def saturation_requests_per_s(pool: ServedPool) -> float:
    """Requests of the example's length that all instances of a pool finish in a second at most, nothing being cached.

    The batch is as large as limits and KV memory allow, every request costs its prefill once and its share of as many steps
    as its reply has tokens. A prefill pool does the first alone, a decode pool the second.
    """
    tokens = EXAMPLE_PROMPT_TOKENS + EXAMPLE_REPLY_TOKENS
    batch = max(1, min(pool.limits.max_num_seqs, pool.limits.kv_capacity_tokens // tokens))
    speculative = pool.deployment.speculative
    steps = EXAMPLE_REPLY_TOKENS / (speculative.tokens_per_step if speculative else 1.0)
    context = EXAMPLE_PROMPT_TOKENS + EXAMPLE_REPLY_TOKENS // 2
    role = pool.config.role
    prefill_s = 0.0 if role == "decode" else _period_s(pool, StepBatch([(EXAMPLE_PROMPT_TOKENS, 0)]))
    decode_s = 0.0 if role == "prefill" else _period_s(pool, StepBatch((), [context] * batch))
    ranks = pool.deployment.parallel.dp
    return pool.config.instances * ranks / (prefill_s + steps * decode_s / batch)


def _period_s(pool: ServedPool, batch: StepBatch) -> float:
    """Seconds between two such steps, on every rank at once; a pipeline waits for its slowest stage alone."""
    step: Any = pool.step_model
    ranks = pool.deployment.parallel.dp
    if ranks == 1 and pool.deployment.parallel.pp == 1:
        return pool.step_model.step_s(batch.prefill, batch.decode_contexts)
    return float(max(step.stages_s([batch] * ranks)))
