"""Every model of the catalogue has the parameters that its makers publish."""

import pytest

from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.catalogue.layers import Dense, GatedDelta, Gqa, Mamba2, Mla, Moe
from llmirage_server.perf.catalogue.lookup import find_model, list_models
from llmirage_server.perf.catalogue.models import FITTED_MODEL, ModelSpec, model_from_entry

# Billions of parameters as published: on the model card, in the technical report, or in the size of the bf16 checkpoint.
# "e": the published count of active parameters leaves out the embedding table; "eh": and lm_head.
PUBLISHED: list[tuple[str, float, float | None, str]] = [
    ("Meta-Llama-3-8B", 8.03, None, ""),
    ("Meta-Llama-3-70B", 70.6, None, ""),
    ("Llama-3.1-8B", 8.03, None, ""),
    ("Llama-3.1-70B", 70.6, None, ""),
    ("Llama-3.1-405B", 405.9, None, ""),
    ("Llama-3.2-1B", 1.24, None, ""),
    ("Llama-3.2-3B", 3.21, None, ""),
    ("Llama-3.3-70B-Instruct", 70.6, None, ""),
    ("Llama-4-Scout-17B-16E", 109, 17, ""),
    ("Llama-4-Maverick-17B-128E", 400, 17, ""),
    ("Llama-3_3-Nemotron-Super-49B-v1", 49.9, None, ""),
    ("Qwen2.5-1.5B", 1.54, None, ""),
    ("Qwen2.5-3B", 3.09, None, ""),
    ("Qwen2.5-7B", 7.61, None, ""),
    ("Qwen2.5-14B", 14.7, None, ""),
    ("Qwen2.5-32B", 32.5, None, ""),
    ("DeepSeek-R1-Distill-Qwen-14B", 14.7, None, ""),
    ("DeepSeek-R1-Distill-Qwen-32B", 32.5, None, ""),
    ("Qwen2.5-72B", 72.7, None, ""),
    ("QwQ-32B", 32.5, None, ""),
    ("Qwen3-0.6B", 0.596, None, ""),
    ("Qwen3-1.7B", 1.72, None, ""),
    ("Qwen3-4B", 4.02, None, ""),
    ("Qwen3-8B", 8.19, None, ""),
    ("Qwen3-14B", 14.8, None, ""),
    ("Qwen3-32B", 32.8, None, ""),
    ("Qwen3-VL-8B-Instruct", 8.19, None, ""),
    ("Qwen3-VL-32B-Instruct", 32.8, None, ""),
    ("Qwen3-30B-A3B", 30.5, 3.3, ""),
    ("Qwen3-30B-A3B-Instruct-2507", 30.5, 3.3, ""),
    ("Qwen3-235B-A22B", 235.1, 22.2, ""),
    ("Qwen3-235B-A22B-Instruct-2507", 235.1, 22.2, ""),
    ("Qwen3-Coder-480B", 480.2, 35.5, ""),
    ("Qwen3-Next-80B-A3B-Instruct", 79.7, 3.87, ""),
    ("Qwen3.5-27B", 27, None, ""),
    ("Qwen3.5-35B-A3B", 35, 3, "e"),
    ("Qwen3.5-122B-A10B", 122, 10, ""),
    ("Qwen3.5-397B-A17B", 397, 17, ""),
    ("DeepSeek-V2-Lite", 15.7, None, ""),
    ("DeepSeek-V2.5", 236, 21, "e"),
    ("DeepSeek-V3", 671, 37, ""),
    ("DeepSeek-R1", 671, 37, ""),
    ("DeepSeek-V3.1", 671, 37, ""),
    ("DeepSeek-V3.2", 671, 37, "e"),
    ("Kimi-K2-Instruct", 1026, 32.6, ""),
    ("Kimi-K2-Instruct-0905", 1026, 32.6, ""),
    ("Kimi-K2-Thinking", 1026, 32.6, ""),
    ("Kimi-K2.5", 1026, 32.6, ""),
    ("GLM-4.5", 355, 32, "eh"),
    ("GLM-4.5-Air", 106, 12, "eh"),
    ("GLM-4.6", 355, 32, "eh"),
    ("GLM-5", 744, 40, "eh"),
    ("GLM-5.2", 744, 40, "e"),
    ("GLM-5.3", 744, 40, "e"),
    ("gpt-oss-20b", 20.9, 3.61, "e"),
    ("gpt-oss-120b", 116.8, 5.13, "e"),
    ("MiniMax-M2", 229, 10, "eh"),
    ("MiniMax-M2.5", 229, 10, "eh"),
    ("MiniMax-M2.7", 229, 10, "eh"),
    ("MiniMax-M3", 428, 23.5, "eh"),
    ("MiMo-7B-Base", 7.6, None, ""),
    ("MiMo-V2-Flash", 309, 15, "e"),
    ("Step-3.5-Flash", 196.8, 11, "e"),
    ("Step-3.7-Flash", 196.8, 11, "e"),
    ("Seed-OSS-36B-Instruct", 36.2, None, ""),
    ("Mistral-7B-Instruct-v0.3", 7.25, None, ""),
    ("Ministral-8B-Instruct-2410", 8.02, None, ""),
    ("Mistral-Nemo-Instruct-2407", 12.2, None, ""),
    ("Mistral-Small-24B-Instruct-2501", 23.6, None, ""),
    ("Mistral-Small-3.2-24B-Instruct-2506", 23.6, None, ""),
    ("Mistral-Large-Instruct-2411", 122.6, None, ""),
    ("Mixtral-8x7B", 46.7, 12.9, ""),
    ("Mixtral-8x22B", 140.6, 39.1, ""),
    ("gemma-2-9b-it", 9.24, None, ""),
    ("gemma-2-27b-it", 27.2, None, ""),
    ("gemma-3-4b-it", 3.88, None, ""),
    ("gemma-3-12b-it", 11.8, None, ""),
    ("gemma-3-27b-it", 27.0, None, ""),
    ("gemma-4-26B-A4B", 25.2, 3.8, ""),
    ("gemma-4-31B-it", 30.7, None, ""),
    ("phi-4", 14.66, None, ""),
    ("Phi-4-mini-instruct", 3.84, None, ""),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.6, 3.6, ""),
    ("NVIDIA-Nemotron-3-Super-120B-A12B-BF16", 120.67, 12.7, ""),
    ("NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 550, 55, "e"),
    ("Nemotron-H-56B-Base-8K", 56.3, None, ""),
]


@pytest.mark.parametrize(("name", "total_b", "active_b", "without"), PUBLISHED, ids=[p[0] for p in PUBLISHED])
def test_parameter_counts_are_the_published_ones(name: str, total_b: float, active_b: float | None, without: str) -> None:
    model = find_model(name)
    assert model.parameters / 1e9 == pytest.approx(total_b, rel=0.02)
    if active_b:
        active = model.active_parameters - len(without) * model.embedding_weights
        rounding = 0.5 if isinstance(active_b, int) else 0.05
        assert active / 1e9 == pytest.approx(active_b, rel=0.02, abs=rounding if active_b > 5 else 0)


def test_a_distilled_model_has_a_context_of_its_own() -> None:
    for size in ("14B", "32B"):
        assert find_model(f"DeepSeek-R1-Distill-Qwen-{size}").max_model_len == 131072
        assert find_model(f"Qwen2.5-{size}").max_model_len == 32768


def test_no_model_goes_unchecked() -> None:
    assert {find_model(name).name for name, *_ in PUBLISHED} == {model.name for model in list_models()}


def test_the_catalogue_of_models_is_wide() -> None:
    assert len(list_models()) >= 45
    kinds = {type(part) for model in list_models() for group in model.groups for part in (group.attention, group.mlp)}
    assert kinds >= {Gqa, Mla, GatedDelta, Mamba2, Dense, Moe}


@pytest.mark.parametrize("model", list_models(), ids=lambda m: m.name)
def test_every_model_has_a_source_and_consistent_shapes(model: ModelSpec) -> None:
    assert model.source
    assert model.confidence == FITTED_MODEL or model.confidence.startswith("transferred: ")
    assert model.native_weights in WEIGHT_DTYPES
    assert model.max_model_len >= 8192
    assert model.active_parameters <= model.parameters
    for group in model.groups:
        assert group.count > 0
        assert group.attention or group.mlp
        if isinstance(group.attention, Gqa):
            assert group.attention.heads % group.attention.kv_heads == 0
        if isinstance(group.mlp, Moe):
            assert 0 < group.mlp.per_token <= group.mlp.experts


def test_confidence_names_what_was_not_measured() -> None:
    for name in ("Llama-3.1-70B", "Qwen3-30B-A3B", "DeepSeek-V3", "Kimi-K2-Instruct", "gpt-oss-120b", "Mixtral-8x7B"):
        assert find_model(name).confidence == FITTED_MODEL
    for name, reason in (
        ("Qwen3-Next-80B-A3B-Instruct", "attention heads of 256 were not measured"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "no state space layer was measured"),
        ("GLM-5", "no sparse attention was measured"),
        ("gemma-3-12b-it", "attention heads of 256 were not measured"),
        ("gemma-3-27b-it", "windows of 1,024 tokens were not measured"),
        ("GLM-4.5", "experts of this shape were not measured"),
    ):
        assert reason in find_model(name).confidence


def test_dense_and_shared_layers_of_a_mixture_are_counted() -> None:
    gqa = {"heads": 4, "kv_heads": 2, "head_dim": 16}
    moe = {"experts": 8, "per_token": 2, "width": 32, "shared_width": 48}
    groups = [{"count": 6, "leading": True, "gqa": gqa, "dense": {"width": 256}}, {"count": 4, "gqa": gqa, "moe": moe}]
    mixture = model_from_entry("m", {"hidden": 64, "vocab": 100, "max_model_len": 1, "groups": groups}, "-")
    assert (mixture.layers, mixture.moe) == (10, Moe(8, 2, 32, shared_width=48))
    expected = (
        10 * 64 * 16 * (2 * 4 + 2 * 2)  # q and output, k and v
        + 6 * 3 * 64 * 256
        + 4 * (8 * 3 * 64 * 32 + 3 * 64 * 48 + 64 * 8)
        + 2 * 100 * 64
        + 10 * 2 * 64
        + 64
    )
    assert mixture.parameters == expected
    assert expected - mixture.active_parameters == 4 * 6 * 3 * 64 * 32


def test_experts_in_a_latent_space_are_smaller() -> None:
    moe = {"experts": 8, "per_token": 2, "width": 32, "gated": False, "latent": 16}
    entry = {"hidden": 64, "vocab": 100, "max_model_len": 1, "groups": [{"count": 1, "moe": moe}]}
    weights = 8 * 2 * 16 * 32 + 2 * 64 * 16 + 64 * 8  # experts; to the latent space and back; router
    assert model_from_entry("m", entry, "-").parameters == weights + 2 * 100 * 64 + 64 + 64


def test_layers_that_share_an_index_keep_nothing_for_it() -> None:
    latent, index = 576 * 2, 128 + 4
    assert find_model("GLM-5").kv_bytes_per_token(2) == 78 * (latent + index)
    assert find_model("GLM-5.2").kv_bytes_per_token(2) == 78 * latent + 21 * index
