"""A config.json gives the same model as the catalogue, or a message that names file and field."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.layers import Dense, Gqa, Moe
from llmirage_server.perf.catalogue.lookup import find_model
from llmirage_server.perf.deployment import Deployment

CONFIGS = Path(__file__).parents[3] / "data" / "hf_configs"  # reduced to the keys that count

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
QWEN3_MOE: dict[str, Any] = json.loads((CONFIGS / "Qwen3-30B-A3B.json").read_text())


def write(folder: Path, config: object) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def refusal(path: str) -> list[str]:
    with pytest.raises(DeploymentError) as caught:
        find_model(path)
    return caught.value.problems


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.json")), ids=lambda f: f.stem)
def test_a_published_config_is_the_catalogues_model(file: Path) -> None:
    listed, read = find_model(file.stem), find_model(str(file))
    assert read.name == file.stem
    same = ("name", "source", "aliases", "notes", "vision_weights")  # of the text model alone
    assert replace(read, **{field: getattr(listed, field) for field in same}) == listed


def test_a_folder_stands_for_its_config(tmp_path: Path) -> None:
    model = find_model(write(tmp_path, LLAMA))
    assert model == find_model(str(tmp_path / "config.json"))
    assert model.name == tmp_path.name
    assert find_model(write(tmp_path, {**LLAMA, "_name_or_path": "/scratch/run-7"})).name == tmp_path.name
    assert find_model(write(tmp_path, {**LLAMA, "_name_or_path": "acme/eight"})).name == "acme/eight"


def test_a_mixture_with_dense_layers_counts_them(tmp_path: Path) -> None:
    model = find_model(write(tmp_path, {**QWEN3_MOE, "mlp_only_layers": [0, 1]}))
    assert [group.count for group in model.groups] == [2, 46]
    assert (model.groups[0].mlp, model.groups[1].mlp) == (Dense(6144), model.moe)
    assert [group.leading for group in model.groups] == [True, False]
    model = find_model(write(tmp_path, {**QWEN3_MOE, "decoder_sparse_step": 2}))
    assert [(group.count, type(group.mlp)) for group in model.groups] == [(24, Dense), (24, Moe)]
    assert [group.leading for group in model.groups] == [False, False]  # they take turns


def test_a_mistral_window_covers_every_layer(tmp_path: Path) -> None:
    model = find_model(write(tmp_path, {**LLAMA, "model_type": "mistral", "sliding_window": 4096}))
    (group,) = model.groups
    assert isinstance(group.attention, Gqa)
    assert (group.count, group.attention.window) == (32, 4096)
    assert model.kv_bytes_per_token(2) == 32 * 2 * 8 * 128 * 2


def test_a_window_as_long_as_the_context_is_none(tmp_path: Path) -> None:
    (group,) = find_model(write(tmp_path, {**LLAMA, "model_type": "phi3", "sliding_window": 131072})).groups
    assert isinstance(group.attention, Gqa)
    assert group.attention.window == 0


def tensors(bits: int, kind: str) -> dict[str, Any]:
    groups = {"group_0": {"weights": {"num_bits": bits, "type": kind}}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


@pytest.mark.parametrize(
    ("quantization", "weights"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}}}},
            "int8",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}}},
            "fp8",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 4, "type": "int"}}}},
            "int4",
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, "fp8"),
    ],
)
def test_the_format_of_the_checkpoint_is_read(tmp_path: Path, quantization: Any, weights: str) -> None:
    assert find_model(write(tmp_path, {**LLAMA, "quantization_config": quantization})).native_weights == weights


def test_the_format_may_stand_in_a_file_beside(tmp_path: Path) -> None:
    path = write(tmp_path, LLAMA)
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert find_model(path).native_weights == "nvfp4"
    layers = {"l.0.mlp.experts.1": {"quant_algo": "NVFP4"}, "l.0.q": {"quant_algo": "FP8"}, "l.1.q": {"quant_algo": "FP8"}}
    mixed: dict[str, Any] = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    beside.write_text(json.dumps({"quantization": mixed}))
    assert find_model(path).native_weights == "nvfp4"
    del layers["l.0.mlp.experts.1"]
    beside.write_text(json.dumps({"quantization": mixed}))
    assert find_model(path).native_weights == "fp8"


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    (problem,) = refusal(write(tmp_path, {**LLAMA, "quantization_config": {"quant_method": "exl2"}}))
    assert "quantization_config: quant_method 'exl2' is not known; choices: fp8, " in problem


def test_a_config_on_disk_can_be_deployed(tmp_path: Path) -> None:
    model = write(tmp_path, {**LLAMA, "_name_or_path": "acme/eight"})
    assert Deployment.create(model, "h100").describe().startswith("acme/eight on 1x H100 SXM")


def test_every_missing_field_is_named_at_once(tmp_path: Path) -> None:
    broken = {k: v for k, v in QWEN3_MOE.items() if k not in ("hidden_size", "num_experts")} | {"vocab_size": "many"}
    file = Path(write(tmp_path, broken)) / "config.json"
    experts = "n_routed_experts or num_experts or num_local_experts or moe_num_experts"
    problems = refusal(str(tmp_path))
    assert problems[:2] == [f"{file}: {key} must be a positive integer" for key in ("hidden_size", "vocab_size")]
    assert f"{file}: {experts} must be a positive integer" in problems


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_key_value_heads": 5}, "num_attention_heads 32 must be a multiple of num_key_value_heads 5"),
        ({"num_experts_per_tok": 200}, "num_experts_per_tok 200 is more than the 128 experts"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 10,000"),
        (
            {"layer_types": ["full_attention"], "sliding_window": 8, "use_sliding_window": True},
            "layer_types must be a list of 48",
        ),
        ({"tie_word_embeddings": 3}, "tie_word_embeddings must be true or false"),
    ],
)
def test_sizes_that_do_not_fit_each_other_are_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    assert any(problem in text for text in refusal(write(tmp_path, {**QWEN3_MOE, **change})))


def test_what_cannot_be_read_or_described_is_refused(tmp_path: Path) -> None:
    assert "config.json: cannot be read: No such file" in refusal(str(tmp_path))[0]
    assert "model_type 'gpt2' is not supported; choices: llama," in refusal(write(tmp_path, {"model_type": "gpt2"}))[0]
    assert "model_type None is not supported" in refusal(write(tmp_path, {}))[0]
    (problem,) = refusal(write(tmp_path, {"model_type": "deepseek_v4"}))
    assert "model_type 'deepseek_v4' is known but not supported: its attention compresses the context" in problem
    assert "must hold a JSON object" in refusal(write(tmp_path, [1]))[0]
    (tmp_path / "config.json").write_text("{")
    assert "config.json: not valid JSON" in refusal(str(tmp_path))[0]


def test_alternating_and_patterned_windows(tmp_path: Path) -> None:
    gemma2 = {**LLAMA, "model_type": "gemma2", "num_hidden_layers": 6}  # 4,096 tokens are the default of its class
    assert [(g.count, g.attention.window) for g in find_model(write(tmp_path, gemma2)).groups] == [(3, 4096), (3, 0)]  # type: ignore[union-attr]
    gemma3 = {"model_type": "gemma3", "text_config": {"num_hidden_layers": 7, "hidden_size": 64, "intermediate_size": 128}}
    gemma3["text_config"] |= {"model_type": "gemma3_text", "sliding_window": 1024}  # type: ignore[operator]
    model = find_model(write(tmp_path, gemma3))
    assert [(g.count, g.attention.window) for g in model.groups] == [(6, 1024), (1, 0)]  # type: ignore[union-attr]
    assert model.tied_embeddings


def test_step_reads_the_other_attention(tmp_path: Path) -> None:
    config = {
        **{key: LLAMA[key] for key in ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")},
        "model_type": "step3p5",
        "num_hidden_layers": 4,
        "num_attention_groups": 8,
        "head_dim": 128,
        "max_seq_len": 65536,
        "max_position_embeddings": 65536,
        "layer_types": ["full_attention", "sliding_attention"] * 3,  # goes on with prediction layers
        "sliding_window": 512,
        "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 4},
        "moe_num_experts": 8,
        "moe_top_k": 2,
        "moe_intermediate_size": 64,
        "share_expert_dim": 32,
        "moe_layers_enum": "2,3",
    }
    first, second, third, fourth = find_model(write(tmp_path, config)).groups
    assert (first.attention, first.mlp) == (Gqa(32, 8, 128, qk_norm=256), Dense(14336))
    assert second.attention == Gqa(96, 4, 128, window=512, qk_norm=256)
    assert third.mlp == fourth.mlp == Moe(8, 2, 64, shared_width=32)


def test_thinned_out_llama_layers_are_told_one_by_one(tmp_path: Path) -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 2.625}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.3125}},
        {"attention": {"n_heads_in_group": 8}, "ffn": {"no_op": True}},
    ]
    config = {**LLAMA, "model_type": "nemotron-nas", "num_hidden_layers": 3, "block_configs": blocks}
    layers = [(group.attention, group.mlp) for group in find_model(write(tmp_path, config)).groups]
    # two thirds of 2.625 x 4096 are 7168, of half as much 3584
    assert layers == [(Gqa(32, 4, 128), Dense(7168)), (None, Dense(3584)), (Gqa(32, 4, 128), None)]
    blocks[0] = {"attention": {"n_heads_in_group": 5}, "ffn": {"ffn_mult": 0}}
    blocks[1] = {"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 1}}
    problems = refusal(write(tmp_path, config))
    for problem in ("0]: n_heads_in_group must divide the 32 heads", "0]: ffn_mult must be", "1]: linear replacements"):
        assert any(f"block_configs[{problem}" in told for told in problems)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.text(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@given(st.data())
def test_a_damaged_config_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    config = json.loads(data.draw(st.sampled_from(sorted(CONFIGS.glob("*.json")))).read_text())
    inner = config.get("text_config", config)
    for key in data.draw(st.lists(st.sampled_from(sorted(inner)), max_size=3, unique=True)):
        inner[key] = data.draw(ANYTHING)
    path = write(tmp_path_factory.mktemp("config"), config)
    problems: list[str] = []
    try:
        assert find_model(path).parameters > 0
    except DeploymentError as error:
        problems = error.problems
    assert all(path in problem for problem in problems)
