"""What fits on a GPU: weights, activations and KV cache by parallelism, format and engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.catalogue.lookup import find_gpu, find_model, list_models
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_server.perf.memory import MemoryBudget, activation_bytes_per_rank, weights_bytes_per_rank
from llmirage_server.perf.parallelism import Parallelism, parallelism_problems, split_layers
from llmirage_server.perf.speculation import Speculative

GIB = 2**30
H100 = 81_559 * 2**20


def share(engine: str, utilization: float, per_sequence: int = 0, seqs: int = 100, gpus: int = 1) -> MemoryBudget:
    of, weights, activations = find_engine(engine), 40 * GIB, 5 * GIB
    reserve = of.reserve_bytes(gpus)
    unused = of.unused_bytes(100 * GIB, utilization, weights, activations, reserve)
    return MemoryBudget(100 * GIB, unused, weights, activations, reserve, 100_000, per_sequence, seqs)


def test_vllm_takes_a_share_of_all_memory() -> None:
    memory = share("vllm", 0.9)
    assert memory.kv_bytes == int(0.9 * 100 * GIB) - 45 * GIB - int(2.4 * GIB)
    assert share("vllm@0.20", 0.9).kv_bytes == share("vllm@0.13", 0.9).kv_bytes == memory.kv_bytes + GIB  # no graphs
    assert memory.kv_tokens == memory.kv_bytes // 100_000


def test_sglang_leaves_activations_what_its_share_does_not_take() -> None:
    assert share("sglang", 0.8).kv_bytes == int(0.8 * 99 * GIB) - 40 * GIB
    # 5 GiB of activations do not fit into 2 % of 99 GiB: the pool makes room for them
    assert share("sglang", 0.98).kv_bytes == (100 - 1 - 40 - 5) * GIB


def test_tensorrt_llm_takes_a_share_of_what_is_free() -> None:
    assert share("trtllm", 0.9).kv_bytes == int(0.9 * (100 - 2 - 45) * GIB)


def test_communicators_take_memory_with_each_doubling_of_the_gpus() -> None:
    """NVIDIA's tests expect 4.4 to 6.5 GiB beside weights and activations on eight GPUs (test_e2e.py)."""
    assert share("trtllm", 0.9, gpus=8).reserve_bytes == int((2.0 + 3 * 1.2) * GIB)
    assert share("vllm", 0.9, gpus=8).reserve_bytes == share("vllm", 0.9).reserve_bytes


@given(st.sampled_from(["vllm", "sglang", "trtllm"]), st.floats(0.05, 1.0), st.integers(0, 10**8))
def test_the_sum_is_the_memory_of_the_gpu(engine: str, utilization: float, per_sequence: int) -> None:
    m = share(engine, utilization, per_sequence)
    assert m.unused_bytes >= 0
    parts = m.unused_bytes + m.weights_bytes + m.activation_bytes + m.reserve_bytes + m.fixed_bytes + m.kv_bytes
    assert parts == m.gpu_bytes


def test_room_for_windows_and_states_is_set_apart_for_as_many_sequences_as_fit() -> None:
    pool = share("vllm", 0.9).kv_bytes
    few = share("vllm", 0.9, per_sequence=10**6, seqs=10)
    assert few.sequences == 10
    assert few.kv_bytes == pool - 10 * 10**6
    many = share("vllm", 0.9, per_sequence=10**8, seqs=1000)
    assert many.sequences == pool // (10**8 + 4096 * 100_000)
    assert many.kv_tokens >= 4096 * many.sequences


def test_sglangs_own_share() -> None:
    # MiB set apart: 512 + 1.5 x 8192 + 2 x 512 + 128 = 13,952, or 10 GiB where that is more
    sglang, h100 = find_engine("sglang"), find_gpu("h100_sxm")
    assert sglang.utilization_on(h100, 8192, 2048, Parallelism()) == round((81_559 - 13_952) / 81_559, 3)
    assert sglang.utilization_on(h100, 2048, 64, Parallelism()) == round((81_559 - 10_240) / 81_559, 3)
    assert Deployment.create("Qwen3-8B", "h100", engine="sglang").gpu_memory_utilization == pytest.approx(0.829)


def test_a_block_count_given_is_taken() -> None:
    memory = Deployment.create("Llama-3.1-8B", "h100", num_gpu_blocks_override=1000).memory
    assert memory.kv_tokens == 16_000
    assert memory.kv_bytes == 16_000 * memory.kv_bytes_per_token
    assert Deployment.create("Llama-3.1-8B", "h100", num_gpu_blocks_override=1000, block_size=4).memory.kv_tokens == 4000
    assert "KV cache as given" in memory.describe()


def test_deepseek_keeps_576_values_a_token_and_layer_on_every_rank() -> None:
    per_token = [
        Deployment.create("DeepSeek-V3", "b300", tp=tp, kv_cache_dtype=kv).memory.kv_bytes_per_token
        for tp, kv in ((4, "bf16"), (8, "bf16"), (8, "fp8"))
    ]
    assert per_token == [61 * 576 * 2, 61 * 576 * 2, 61 * 576]
    assert Deployment.create("DeepSeek-V3", "b300", tp=8).kv_bytes_per_token == 61 * 576 * 2


def test_attention_data_parallelism_copies_attention_and_shares_experts() -> None:
    tp, dp = (
        Deployment.create("Qwen3-235B-A22B", "h200", weights="fp8", ep=8, **split).memory.weights_bytes
        for split in ({"tp": 8}, {"dp": 8})
    )
    attention = 94 * 4096 * 128 * 2 * (64 + 4)
    tables = 2 * 2 * 151_936 * 4096
    copied_kv = 94 * 4096 * 128 * 2 * 4 / 4 - 94 * 4096 * 128 * 2 * 4 / 8  # 4 KV heads on 8 ranks: one each, not a half
    assert dp - tp == pytest.approx((attention + tables) * 7 / 8 - copied_kv, abs=2)


def test_recurrent_states_are_held_by_the_sequence() -> None:
    memory = Deployment.create("Qwen3.5-35B-A3B", "h200", max_num_seqs=64).memory
    # 30 layers: 32 heads of 128 x 128 in float32, a convolution over 2 x 16 x 128 + 32 x 128 channels that keeps 3 tokens
    assert memory.bytes_per_sequence == 30 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
    assert memory.sequences == 64
    assert memory.kv_bytes_per_token == 10 * 2 * 2 * 256 * 2


def test_the_gated_delta_rule_keeps_chunks_between_its_kernels() -> None:
    """Of 32 heads w, u, new values, output, matrices and states, which ROCm/vllm#1075 has as 32 MiB for 2,048 tokens."""
    few, many = (
        Deployment.create("Qwen3.5-35B-A3B", "h200", max_num_batched_tokens=tokens, max_num_seqs=64).memory.activation_bytes
        for tokens in (8192, 32768)
    )
    states = 32 * 2**20 * 32768 // 2048
    kept = states + 2 * 32768 * 32 * (4 * 128 + 2 * 64)
    assert many == 2 * (32768 * 2 * 2048 + 32768 * 2 * (8192 + 4096 + 64)) + kept
    assert many == 4 * few


def test_tensorrt_llms_experts_have_room_for_all_tokens_of_the_ranks() -> None:
    """Twice the hidden size for each of 8 chosen experts, as gate and up are narrower; what was gathered and the sums."""
    split = {"engine": "trtllm", "weights": "fp8", "dp": 8, "ep": 8}
    deployment = Deployment.create("Qwen3-235B-A22B", "h200", **split, max_num_batched_tokens=4096, max_num_seqs=64)
    prompts, graph = (2 * (2 * t * 4096 + 8 * t * (8 * 2 * 4096 + 2 * 4096)) for t in (4096, 64))
    assert deployment.memory.activation_bytes == prompts + graph  # 64 rows of logits are less


def test_tensorrt_llms_graphs_keep_their_activations_beside_those_of_prompts() -> None:
    model, plain = find_model("Llama-3.1-8B"), find_engine("trtllm")
    prompts, logits = 2 * (2 * 8192 * 4096 + 8192 * 3 * 14_336), 6 * 128_256
    for engine, sequences, graph in ((plain, 2048, 128), (plain, 64, 64)):
        assert activation_bytes_per_rank(model, Parallelism(), engine, 8192, sequences) == prompts + graph * logits


def test_a_vision_encoder_is_held_beside_the_language_model() -> None:
    """872 million weights: 34 layers of 1,408, attention and an MLP of 5,632; TensorRT-LLM has them in float32."""
    layer = 4 * (1408 * 1408 + 1408) + 2 * 1408 * 5632 + 5632 + 1408 + 4 * 1408
    ends = 3 * 14 * 14 * 1408 + 577 * 1408 + 5632 * 4096 + 4096 * 4096 + 4096 * 5120
    for name in ("Llama-4-Scout-17B-16E-Instruct", "Llama-4-Maverick-17B-128E-Instruct"):
        model = find_model(name)
        assert model.vision_weights == pytest.approx(34 * layer + ends, rel=0.001)
        text = weights_bytes_per_rank(model, WEIGHT_DTYPES["fp8"], Parallelism(4, ep=4))
        of = {
            engine: Deployment.create(name, "b300", engine=engine, weights="fp8", tp=4, ep=4).memory.weights_bytes - text
            for engine in ("trtllm", "vllm")
        }
        assert of == {"trtllm": model.vision_weights * 4, "vllm": model.vision_weights * 2 // 4}


def test_the_stage_with_the_least_room_decides() -> None:
    deployment = Deployment.create("Llama-3.1-70B", "h100", weights="fp8", tp=1, pp=3)
    model, fp8 = deployment.model, WEIGHT_DTYPES["fp8"]
    assert [sum(g.count for g in s) for s in split_layers(model, 3)] == [27, 27, 26]
    layer = 8192 * 128 * 2 * (64 + 8) + 3 * 8192 * 28_672
    table, small = 2 * 128_256 * 8192, 2 * 2 * 8192
    ends = [27 * (layer + small) + table, 27 * (layer + small), 26 * (layer + small) + table + 2 * 8192]
    assert deployment.memory.weights_bytes == ends[0]  # 27 layers and the table of embeddings
    one = weights_bytes_per_rank(model, fp8, Parallelism())
    assert one == sum(ends)


def test_a_draft_takes_memory() -> None:
    plain, mtp = (Deployment.create("DeepSeek-V3", "b300", tp=8, speculative=s).memory for s in (None, Speculative(2)))
    assert mtp.kv_bytes_per_token == plain.kv_bytes_per_token * 62 // 61
    layer = (mtp.weights_bytes - plain.weights_bytes) / plain.weights_bytes
    assert 1 / 61 < layer < 1.5 / 61
    draft = Speculative(3, "draft_model", "Llama-3.1-8B")
    plain, small = (Deployment.create("Llama-3.1-70B", "h100", tp=4, speculative=s).memory for s in (None, draft))
    assert small.weights_bytes - plain.weights_bytes == pytest.approx(
        find_model("Llama-3.1-8B").parameters * 2 / 4, rel=1e-3
    )
    assert small.kv_bytes_per_token == plain.kv_bytes_per_token + 32 * 2 * 2 * 128 * 2


@given(st.sampled_from(list_models()), st.sampled_from(sorted(WEIGHT_DTYPES)), st.sampled_from([1, 2, 4]))
def test_more_ranks_never_hold_more_weights_each(model: ModelSpec, weights: str, ep: int) -> None:
    sizes = [
        p for tp in (1, 2, 4, 8) if not any(parallelism_problems(model, p := Parallelism(tp, ep=ep if model.moe else 1)))
    ]
    held = [weights_bytes_per_rank(model, WEIGHT_DTYPES[weights], p) for p in sizes]
    assert held == sorted(held, reverse=True)


@pytest.mark.parametrize(
    ("name", "weights", "gb"),
    [
        ("DeepSeek-R1", "fp8_block", 671),  # 671 billion parameters, one byte each
        ("DeepSeek-R1", "nvfp4", 397),  # nvidia/DeepSeek-R1-FP4: 394 GB
        (
            "Kimi-K2-Thinking",
            "int4",
            563,
        ),  # moonshotai/Kimi-K2-Thinking: 594 GB, its scales being finer than AWQ's (32, not 128)
        ("gpt-oss-120b", "mxfp4", 65),  # openai/gpt-oss-120b: 65 GB
        ("gpt-oss-20b", "mxfp4", 13.8),  # openai/gpt-oss-20b: 13.8 GB
    ],
)
def test_published_checkpoints_have_their_size(name: str, weights: str, gb: float) -> None:
    held = weights_bytes_per_rank(find_model(name), WEIGHT_DTYPES[weights], Parallelism())
    assert held / 1e9 == pytest.approx(gb, rel=0.02)


@pytest.mark.parametrize(
    ("model", "kv", "tokens"),
    [("Qwen/Qwen3.5-35B-A3B", "bf16", 1056), ("Qwen/Qwen3.5-35B-A3B", "fp8", 2096), ("Qwen/Qwen3.5-27B", "bf16", 784)],
)
def test_blocks_of_vllm_hold_as_many_tokens_as_fill_a_recurrent_state(model: str, kv: str, tokens: int) -> None:
    # "Setting attention block size to N tokens" in logs of vLLM 0.19
    options = {"weights": "fp8", "kv_cache_dtype": kv}
    assert Deployment.create(model, "h200", engine="vllm", **options).block_size == tokens
    assert Deployment.create(model, "h200", engine="vllm", block_size=32, **options).block_size == 32
    assert Deployment.create(model, "h200", engine="sglang", **options).block_size == 1


def test_blocks_of_other_models_are_the_engines_own() -> None:
    for engine, tokens in (("vllm", 16), ("sglang", 1), ("trtllm", 32)):
        assert Deployment.create("openai/gpt-oss-120b", "h200", engine=engine).block_size == tokens


def test_tensorrt_llm_counts_sequences_of_each_pipeline_stage() -> None:
    def most(engine: str, **options: int) -> int:
        return Deployment.create("meta-llama/Llama-3.1-8B-Instruct", "h200", engine=engine, pp=4, **options).most_running

    assert most("trtllm", max_num_seqs=100) == 400
    assert most("trtllm", max_num_seqs=100, max_num_batched_tokens=300) == 400  # each step has a token for its own
    assert most("vllm", max_num_seqs=100) == 100


def test_tensorrt_llm_keeps_the_whole_context_of_sliding_windows() -> None:
    vllm, trtllm = (Deployment.create("openai/gpt-oss-20b", "h200", engine=engine) for engine in ("vllm", "trtllm"))
    assert vllm.memory.bytes_per_sequence > 0 == trtllm.memory.bytes_per_sequence
    assert trtllm.memory.kv_bytes_per_token == 2 * vllm.memory.kv_bytes_per_token  # every other layer slides
    assert trtllm.kv_bytes_per_token == trtllm.memory.kv_bytes_per_token
    assert trtllm.kv_bytes_per_sequence == 0


def test_lora_slots_take_memory_and_time_by_their_rank() -> None:
    """Llama 3.1 8B, rank 16, all linear layers: 41,943,040 parameters by PEFT's print_trainable_parameters."""
    name = "meta-llama/Llama-3.1-8B-Instruct"
    plain, with_slots = (Deployment.create(name, "h100_sxm", lora_slots=n, max_lora_rank=16 * bool(n)) for n in (0, 4))
    assert with_slots.lora.slot_bytes(16) == 2 * 41_943_040
    assert with_slots.memory.weights_bytes - plain.memory.weights_bytes == 4 * 2 * 41_943_040
    assert with_slots.lora.load_s(16, True) - with_slots.lora.load_s(16, False) == pytest.approx(
        2 * 41_943_040 / 5e9, rel=0.01
    )
    sglang = Deployment.create(name, "h100_sxm", engine="sglang", lora_slots=4, max_lora_rank=64).lora
    padded = Deployment.create(name, "h100_sxm", lora_slots=4, max_lora_rank=64).lora
    one, four = [(8, 32)], [(8, 8)] * 4
    assert sglang.step_s(one) < padded.step_s(one) == padded.step_s([(64, 32)]) < padded.step_s(four)
    halves = Deployment.create(name, "h100_sxm", tp=2, lora_slots=4, max_lora_rank=16).lora
    assert 41_943_040 < halves.slot_bytes(16) < 2 * 41_943_040
