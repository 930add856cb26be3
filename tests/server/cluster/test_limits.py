"""What an engine's limits may be: everything wrong is named at once, in the words of the option."""

from typing import Any

import pytest

from llmirage_server.cluster.limits import EngineLimits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_num_seqs": -1, "max_model_len": 0},
            "max_num_seqs must be at least 1, not -1; max_model_len must be at least 1, not 0",
        ),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be at least 0, not -1"),
        ({"scheduler": "vlm"}, "unknown scheduler 'vlm': choose one of vllm, sglang, trtllm"),
        ({"schedule_policy": "lpm"}, "schedule_policy lpm needs the sglang scheduler: vllm has fcfs or priority"),
        (
            {"scheduler": "trtllm", "schedule_policy": "priority"},
            "schedule_policy priority needs the vllm scheduler: trtllm has fcfs",
        ),
        ({"schedule_policy": "sjf"}, "unknown schedule_policy 'sjf': the vllm scheduler has fcfs or priority"),
        (
            {"capacity_scheduler_policy": "none", "data_parallel_balance": "best"},
            "unknown capacity_scheduler_policy 'none': choose one of guaranteed_no_evict, max_utilization; "
            "unknown data_parallel_balance 'best': choose one of load, round_robin, prefix",
        ),
        (
            {"capacity_scheduler_policy": "max_utilization", "enable_mixed_chunk": True},
            "enable_mixed_chunk needs the sglang scheduler, not vllm; "
            "capacity_scheduler_policy needs the trtllm scheduler, not vllm",
        ),
        (
            {"scheduler": "sglang", "long_prefill_token_threshold": 100},
            "long_prefill_token_threshold needs the vllm scheduler, not sglang",
        ),
        (
            {"schedule_conservativeness": 0.0, "scheduler": "sglang"},
            "schedule_conservativeness must be a number above 0, not 0.0",
        ),
        ({"acceptance_rate": 1.5}, "acceptance_rate must be between 0 and 1, not 1.5"),
        ({"acceptance_rate": float("nan")}, "acceptance_rate must be between 0 and 1, not nan"),
        (
            {"num_speculative_tokens": 8, "max_num_batched_tokens": 8, "max_num_seqs": 8},
            "max_num_batched_tokens 8 leaves no room for num_speculative_tokens 8 and the token that they follow",
        ),
        (
            {"scheduler": "sglang", "enable_mixed_chunk": True, "num_speculative_tokens": 1},
            "enable_mixed_chunk and num_speculative_tokens exclude each other, as they do in SGLang",
        ),
        (
            {"scheduler": "trtllm", "page_size": 32, "max_num_batched_tokens": 16, "max_num_seqs": 1},
            "max_num_batched_tokens 16 is smaller than page_size 32: the trtllm scheduler cuts prompts into whole pages",
        ),
    ],
)
def test_what_makes_no_sense_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        EngineLimits(kv_tokens=10_000, **options)
    assert str(raised.value) == message


def test_sglang_decodes_more_sequences_than_its_chunks_have_tokens() -> None:
    assert EngineLimits(kv_tokens=10_000, scheduler="sglang", max_num_batched_tokens=128).max_num_seqs == 256


def test_the_longest_request_is_what_the_cache_the_model_and_the_steps_allow() -> None:
    assert EngineLimits(kv_tokens=1000).max_request_tokens == 1001  # the last token's KV is never computed
    assert EngineLimits(kv_tokens=1000, max_model_len=800).max_request_tokens == 800
    assert EngineLimits(kv_tokens=1000, max_model_len=5000).max_request_tokens == 1001
    short = {"kv_tokens": 1000, "max_num_batched_tokens": 300, "max_num_seqs": 8, "enable_chunked_prefill": False}
    assert EngineLimits(**short).max_request_tokens == 301
    assert EngineLimits(**short, scheduler="trtllm").max_request_tokens == 301
    assert EngineLimits(**short, scheduler="sglang").max_request_tokens == 1001
