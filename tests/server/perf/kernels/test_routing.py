"""Experts met: one token meets its k, and the count grows smoothly with the tokens, so that more users never get less."""

from itertools import pairwise
from typing import Any

import pytest

from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.kernels.moe import busiest_rank
from llmirage_server.perf.steps.step_model import StepBatch


@pytest.mark.parametrize(("experts", "per_token"), [(8, 2), (32, 4), (128, 4), (128, 8), (256, 8), (384, 8)])
@pytest.mark.parametrize("skew", [0.0, 1.01, 1.2])
def test_one_token_meets_its_experts_and_more_tokens_meet_smoothly_more(experts: int, per_token: int, skew: float) -> None:
    rank = busiest_rank(experts, per_token, 1, skew)
    assert rank.experts[0] == rank.pairs[0] == per_token
    for (tokens, met), (more, then) in pairwise(zip(rank.tokens, rank.experts, strict=True)):
        assert met <= then <= met * more / tokens + 1e-9  # never in larger steps than the tokens


def test_a_mixture_whose_experts_do_not_divide_has_copies_of_some() -> None:
    step = Deployment.create("deepseek-ai/DeepSeek-V3", "h200_sxm", engine="sglang", dp=48, ep=48).step_model()
    assert step.stages_s([StepBatch((), [1000] * 8)] * 48)[0] > 0


@pytest.mark.parametrize(
    ("model", "gpu", "options"),
    [
        ("Qwen/Qwen3-30B-A3B", "h100_sxm", {}),
        ("openai/gpt-oss-120b", "b200_sxm", {"engine": "trtllm"}),
        ("openai/gpt-oss-20b", "h200_sxm", {"engine": "sglang"}),
        ("deepseek-ai/DeepSeek-R1", "b200_sxm", {"engine": "sglang", "tp": 8, "ep": 8}),
        ("mistralai/Mixtral-8x7B-v0.1", "h100_sxm", {"tp": 2}),
        ("Qwen/Qwen3-32B", "h100_sxm", {"tp": 2}),
    ],
)
def test_more_users_never_give_less_output(model: str, gpu: str, options: dict[str, Any]) -> None:
    step = Deployment.create(model, gpu, **options).step_model()
    rates = [users / step.stages_s([StepBatch((), [1500] * users)])[0] for users in range(1, 130)]
    assert all(fewer <= more for fewer, more in pairwise(rates))
