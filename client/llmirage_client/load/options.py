"""What a run is asked to do. All times are of the cluster's own life: a run at speed N divides them by N."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EndpointType = Literal["chat", "completions"]
EndpointKind = Literal["llmirage", "vllm", "other"]
ArrivalPattern = Literal["constant", "poisson"]
SessionPrefix = Literal["extend", "none"]


@dataclass(slots=True, frozen=True, kw_only=True)
class RunOptions:
    """One run's settings; the defaults run every root of the file once, one after the other.

    model: for turns that name none. endpoint_type: None lets each turn go where its content belongs.
    endpoint_kind: llmirage and vllm accept token ids as a prompt, and `ignore_eos` and `min_tokens`.
    concurrency: root conversations at once, each with its whole tree; None: 1, or no limit at a rate or on a schedule.
    request_rate_per_s: turns of root conversations per second; children start when their parent's reply is there.
    fixed_schedule: start roots when the file says.
    num_conversations: how many roots to run, the file again from its start when it has fewer; None: each once, or as many
        as it takes when request_count or benchmark_duration_s limits the run.
    request_count: at most so many requests go out, those of children included.
    benchmark_grace_period_s: how long after benchmark_duration_s replies under way may still come.
    inter_turn_delay_cap_s: the longest any turn's delay may be.
    session_prefix: how calls without token ids relate to the call before; see load.token_calls.
    tokenizer: folder or hub name for counting and writing prompts; None: the embedded one.
    seed: of identifiers, arrivals, think times and texts; None: drawn anew.
    """

    model: str = ""
    endpoint_type: EndpointType | None = None
    endpoint_kind: EndpointKind = "other"
    streaming: bool = True
    concurrency: int | None = None
    request_rate_per_s: float | None = None
    arrival_pattern: ArrivalPattern = "poisson"
    fixed_schedule: bool = False
    num_conversations: int | None = None
    request_count: int | None = None
    benchmark_duration_s: float | None = None
    benchmark_grace_period_s: float = 30.0
    warmup_request_count: int = 0
    inter_turn_delay_cap_s: float | None = None
    speed: float = 1.0
    fail_fast: bool = False
    extra_inputs: Mapping[str, Any] = field(default_factory=dict)
    use_legacy_max_tokens: bool = False
    session_header: str | None = None
    session_prefix: SessionPrefix = "extend"
    tokenizer: str | None = None
    seed: int | None = None

    @property
    def takes_token_ids(self) -> bool:
        return self.endpoint_kind != "other"

    @property
    def knows_ignore_eos(self) -> bool:
        return self.endpoint_kind != "other"

    @property
    def counts_prompts(self) -> bool:
        """Whether the tokenizer here is, as far as anybody can know, the endpoint's."""
        return self.endpoint_kind == "llmirage" or self.tokenizer is not None
