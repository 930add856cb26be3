"""What an instance holds, how it introduces itself, and which ones are refused with which words."""

import re

import pytest

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.memory import weights_bytes_per_rank
from llmirage_server.perf.parallelism import ONE_GPU
from llmirage_server.perf.speculation import Speculative

GIB = 2**30


def refusal(model: str = "Qwen3-30B-A3B", gpu: str = "h100", **options: object) -> str:
    with pytest.raises(DeploymentError) as caught:
        Deployment.create(model, gpu, **options)  # type: ignore[arg-type]
    assert str(caught.value) == "\n".join(caught.value.problems)
    return str(caught.value)


def test_the_default_introduces_itself() -> None:
    deployment = Deployment.create("Qwen/Qwen3-30B-A3B", "h100", weights="fp8")
    assert deployment.describe() == "Qwen/Qwen3-30B-A3B on 1x H100 SXM, fp8 weights, bf16 KV"
    assert deployment.gpus == 1
    assert deployment.model.max_model_len == 40_960


def test_parallel_and_weight_only_deployments_say_so() -> None:
    assert Deployment.create("Qwen3-235B-A22B", "h200", tp=4, ep=4, weights="fp8").describe() == (
        "Qwen/Qwen3-235B-A22B on 4x H200 SXM, ep 4, fp8 weights, bf16 KV"
    )
    assert "fp8 weights (weight-only)" in Deployment.create("Llama-3.1-8B", "a100", weights="fp8").describe()


def test_weights_of_the_default_are_counted_to_the_byte() -> None:
    attention = 48 * 2048 * 128 * (32 + 32 + 4 + 4)
    experts = 48 * 128 * 3 * 2048 * 768
    router, norms = 48 * 2048 * 128, 48 * (2 * 2048 + 256) + 2048
    expected = attention + experts + 2 * (router + norms + 2 * 151_936 * 2048)
    assert Deployment.create("Qwen3-30B-A3B", "h100", weights="fp8").memory.weights_bytes == expected


def test_kv_memory_is_what_the_rest_leaves() -> None:
    memory = Deployment.create("Qwen3-30B-A3B", "h100", weights="fp8").memory
    assert memory.kv_bytes_per_token == 48 * 2 * 4 * 128 * 2
    assert (
        memory.kv_bytes
        == int(0.9 * memory.gpu_bytes) - memory.weights_bytes - memory.activation_bytes - memory.reserve_bytes
    )
    assert memory.kv_tokens == memory.kv_bytes // memory.kv_bytes_per_token
    assert 400_000 < memory.kv_tokens < 480_000


def test_activations_of_the_default_are_the_experts_intermediates() -> None:
    # 8192 tokens: residual and hidden, 2048 each; for 8 experts gate and up or output (2048 > 1536) and product (768); bf16
    expected = 2 * (2 * 8192 * 2048 + 8192 * 8 * (2048 + 768))
    deployment = Deployment.create("Qwen3-30B-A3B", "h100", weights="fp8", max_num_seqs=256)
    assert deployment.memory.activation_bytes == expected


def test_kv_capacity_matches_a_measured_vllm_instance() -> None:
    # vLLM 0.19, RTX 4090, utilization 0.9, 2,048 batched tokens, 256 sequences: 2,588 blocks of 16 tokens
    run = {"engine": "vllm@0.19", "weights": "bf16", "max_num_batched_tokens": 2048}
    memory = Deployment.create("Llama-3.1-8B", "rtx 4090", **run).memory
    assert memory.kv_tokens == pytest.approx(2588 * 16, rel=0.01)


def test_memory_is_described_as_a_sum() -> None:
    memory = Deployment.create("gpt-oss-20b", "h100", weights="auto").memory
    lines = memory.describe().splitlines()
    figures = [float(line.split()[0]) for line in lines]
    assert sum(figures[:-1]) == pytest.approx(figures[-1], abs=0.3)
    assert lines[0].endswith("memory of the GPU")
    assert f"{memory.kv_tokens:,} tokens" in lines[-1]
    assert any("sliding windows" in line for line in lines)


def test_sliding_window_layers_hold_only_their_window() -> None:
    memory = Deployment.create("gpt-oss-120b", "b200", weights="mxfp4", max_num_seqs=100).memory
    layer = 2 * 8 * 64 * 2
    assert memory.kv_bytes_per_token == 18 * layer
    assert memory.bytes_per_sequence == 18 * layer * 128
    assert memory.sequences == 100
    assert memory.fixed_bytes == 100 * memory.bytes_per_sequence


def test_kv_heads_are_copied_when_there_are_more_ranks() -> None:
    two, four, eight = (Deployment.create("Qwen3-235B-A22B", "b300", tp=tp, weights="fp8").memory for tp in (2, 4, 8))
    assert two.kv_bytes_per_token == 2 * four.kv_bytes_per_token
    assert four.kv_bytes_per_token == eight.kv_bytes_per_token


def test_tensor_parallelism_shards_weights_and_adds_room() -> None:
    one, two = (Deployment.create("Llama-3.1-8B", "h100", tp=tp).memory for tp in (1, 2))
    assert two.weights_bytes == pytest.approx(one.weights_bytes / 2, rel=0.001)
    assert two.kv_tokens > 2 * one.kv_tokens


def test_mxfp4_quantises_experts_only() -> None:
    model = Deployment.create("gpt-oss-120b", "h100", weights="auto").model
    sizes = {name: weights_bytes_per_rank(model, WEIGHT_DTYPES[name], ONE_GPU) for name in ("bf16", "mxfp4")}
    experts = 36 * 128 * 3 * 2880 * 2880
    assert sizes["bf16"] - sizes["mxfp4"] == pytest.approx(experts * (2 - 0.53125), rel=1e-9)


def test_auto_takes_the_checkpoints_own_format() -> None:
    formats = {
        m: Deployment.create(m, "b300", weights="auto").weight_dtype for m in ("gpt-oss-120b", "MiniMax-M2.5", "Qwen3-8B")
    }
    assert formats == {"gpt-oss-120b": "mxfp4", "MiniMax-M2.5": "fp8_block", "Qwen3-8B": "bf16"}


def test_one_users_times_are_in_the_range_of_real_ones() -> None:
    deployment = Deployment.create("Qwen3-30B-A3B", "h100", weights="fp8")
    assert 0.003 < deployment.tpot_s(1000) < 0.010
    assert 0.015 < deployment.ttft_s(1000) < 0.080
    assert deployment.ttft_s(0) == 0.0


def test_ttft_of_a_long_prompt_is_the_sum_of_its_chunks() -> None:
    deployment = Deployment.create("Qwen3-30B-A3B", "h100", max_num_batched_tokens=4096)
    step = deployment.step_model()
    expected = step.step_s([(4096, 0)], []) + step.step_s([(4096, 4096)], []) + step.step_s([(808, 8192)], [])
    assert deployment.ttft_s(9000) == pytest.approx(expected, rel=1e-12)


def test_weights_that_do_not_fit_are_refused_with_the_arithmetic() -> None:
    message = refusal("Llama-3.1-70B", weights="bf16")
    terms = re.search(
        r"weights ([\d.]+) GiB \+ activations ([\d.]+) GiB \+ reserve ([\d.]+) GiB \+ KV cache of one sequence "
        r"\(1,024 tokens\) ([\d.]+) GiB = ([\d.]+) GiB > ([\d.]+) GiB \(gpu_memory_utilization 0\.90 of ([\d.]+) GiB\)",
        message,
    )
    assert terms
    weights, activations, reserve, sequence, needed, usable, gpu = map(float, terms.groups())
    assert weights == pytest.approx(70.55e9 * 2 / GIB, abs=0.1)
    assert weights + activations + reserve + sequence == pytest.approx(needed, abs=0.2)
    assert needed > usable == pytest.approx(0.9 * gpu, abs=0.1)
    assert message.splitlines()[0].endswith("it needs tp 2")
    Deployment.create("Llama-3.1-70B", "h100", weights="bf16", tp=2)


def test_a_model_too_large_for_any_size_says_so() -> None:
    assert "it needs tp 8 pp 8" in refusal("Llama-3.1-405B", "l4")
    assert "no tp up to 8 fits" in refusal("Llama-3.1-405B", "l4", max_model_len=10_000_000)


def test_weights_that_leave_no_room_for_one_sequence_are_refused() -> None:
    fits = Deployment.create("Llama-3.1-8B", "l40s", max_model_len=100_000)
    assert 100_000 <= fits.memory.kv_tokens < 200_000
    assert "KV cache of one sequence (200,000 tokens)" in refusal("Llama-3.1-8B", "l40s", max_model_len=200_000)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tp": 3}, "tp 3 does not divide the 32 attention heads"),
        ({"model": "Qwen3-Coder-480B", "tp": 6, "gpu": "b300"}, "tp 6 and the 8 KV heads"),
        ({"tp": 16, "ep": 1, "weights": "fp8_block"}, "leaves 48 columns of an expert .* blocks of 128; raise ep"),
        ({"tp": 4, "ep": 3}, "ep 3 does not divide tp 4"),
        ({"tp": 2, "ep": 4}, "ep 4 does not divide tp 2: .*use tp 4 ep 4"),
        ({"model": "Llama-3.1-8B", "tp": 2, "ep": 2}, "ep 2 needs a mixture of experts, but .* is dense"),
        ({"weights": "fp7"}, "weights: unknown format 'fp7'; choices: auto, bf16, fp8, .*nvfp4"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype: unknown format 'int8'; choices: auto, bf16, fp8"),
        ({"gpu": "a100", "kv_cache_dtype": "fp8"}, "A100 SXM 80GB has no fp8 arithmetic for an fp8 KV cache; choices: bf16"),
        (
            {"num_gpu_blocks_override": 10_000_000},
            r"num_gpu_blocks_override 10000000: so many blocks take .* GiB beside .* GiB of weights, and the GPU has",
        ),
        (
            {"num_gpu_blocks_override": 10},
            "num_gpu_blocks_override 10: so many blocks of 16 tokens hold 160 tokens, fewer than the 1,024 of one sequence",
        ),
        ({"tp": 0}, "tp is 0, but must be at least 1"),
        ({"pp": 49}, "pp 49 is more than the 48 layers of Qwen/Qwen3-30B-A3B"),
        (
            {"gpu": "mi300x", "engine": "trtllm"},
            "TensorRT-LLM runs on NVIDIA GPUs only, not on MI300X; choices: vllm, sglang",
        ),
        ({"gpu": "mi300x", "weights": "nvfp4"}, "MI300X has no kernels for nvfp4 weights"),
        ({"engine": "vlm"}, "engine: unknown engine 'vlm'; did you mean vllm?"),
        ({"perf_model": "magic"}, "perf_model: unknown performance model 'magic'; choices: roofline, silicon"),
        (
            {"speculative": Speculative(2)},
            "Qwen/Qwen3-30B-A3B has no multi-token prediction layer to draft with; name a draft model",
        ),
        ({"speculative": Speculative(2, "draft_model", "Qwen9")}, "draft_model: unknown model 'Qwen9'"),
        (
            {"tp": 8, "ep": 8, "speculative": Speculative(2, "draft_model", "Qwen2.5-7B")},
            "tp 8 does not divide the 28 .* heads",
        ),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5, but must be above 0 and at most 1"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(options: dict[str, object], sentence: str) -> None:
    assert re.search(sentence, refusal(**options))  # type: ignore[arg-type]


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(DeploymentError) as caught:
        Deployment.create("qwen9", "h9", weights="fp7", tp=-1)
    assert len(caught.value.problems) == 4
