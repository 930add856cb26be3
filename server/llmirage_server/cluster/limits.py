"""What one engine may do at once: the options that serving engines call by the same names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Limits of one instance.

    kv_tokens: KV capacity of the whole instance, in tokens (`Deployment.memory.kv_tokens`); rounded down to whole pages.
    page_size: tokens of a KV block and of a page of the radix tree. 1 matches to the token, 16 behaves like vLLM's blocks.
    max_num_batched_tokens: tokens of one step, prompt chunks and decoding sequences together.

    Raises ValueError naming every limit that makes no sense.
    """

    kv_tokens: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    page_size: int = 1
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 1, not {value}"
            for name in ("kv_tokens", "max_num_seqs", "max_num_batched_tokens", "page_size")
            if (value := getattr(self, name)) < 1
        ]
        if not problems:
            if self.page_size > self.kv_tokens:
                problems.append(f"page_size {self.page_size} is larger than the KV cache of {self.kv_tokens} tokens")
            if self.max_num_batched_tokens < self.max_num_seqs:
                problems.append(
                    f"max_num_batched_tokens {self.max_num_batched_tokens} is smaller than max_num_seqs "
                    f"{self.max_num_seqs}: every running sequence needs one token of each step"
                )
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def kv_capacity_tokens(self) -> int:
        """`kv_tokens` in whole pages."""
        return self.kv_tokens - self.kv_tokens % self.page_size

    @property
    def max_request_tokens(self) -> int:
        """The longest request (prompt + output tokens) that an instance can ever finish.

        The KV of the last output token is never computed, so it takes one token less of the cache than it has. Without
        chunked prefill a whole prompt, or what a preempted sequence must recompute, goes through in one step.
        """
        tokens = self.kv_capacity_tokens
        if not self.enable_chunked_prefill:
            tokens = min(tokens, self.max_num_batched_tokens)
        return tokens + 1
