"""Which instances may run through steady decoding in one go."""

from __future__ import annotations

from llmirage_server.cluster.instance_base import Role
from llmirage_server.cluster.limits import EngineLimits


def can_compress(step_model: object, limits: EngineLimits, role: Role, tiers: int) -> bool:
    """Whether the rules of an instance are those that `CompressedInstance` knows."""
    return (
        getattr(step_model, "steady", None) is not None
        and limits.scheduler == "vllm"
        and limits.schedule_policy == "fcfs"
        and not limits.long_prefill_token_threshold
        and not limits.num_speculative_tokens
        and limits.max_num_batched_tokens >= limits.max_num_seqs
        and role == "both"
        and not tiers
    )
