"""A config.json gives the same model as the catalogue, or a message that names file and field."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmirage_server.perf.catalogue import find_model
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.errors import DeploymentError
from llmirage_server.perf.layers import Dense, Gqa, LayerGroup

QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "attention_bias": True,
    "quantization_config": {"quant_method": "mxfp4"},
}
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


def write(folder: Path, config: object) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def refusal(path: str) -> tuple[str, ...]:
    with pytest.raises(DeploymentError) as caught:
        find_model(path)
    return caught.value.problems


@pytest.mark.parametrize(
    ("config", "name"),
    [(QWEN3_MOE, "Qwen3-30B-A3B"), (GPT_OSS, "gpt-oss-20b"), (LLAMA, "Llama-3.1-8B")],
    ids=lambda v: str(v)[:12],
)
def test_a_published_config_is_the_catalogues_model(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    listed = find_model(name)
    read = find_model(write(tmp_path, config))
    assert read == find_model(str(tmp_path / "config.json"))
    assert replace(read, name=listed.name, source=listed.source, aliases=listed.aliases) == listed
    assert read.name == tmp_path.name


def test_a_mixture_with_dense_layers_counts_them(tmp_path: Path) -> None:
    model = find_model(write(tmp_path, {**QWEN3_MOE, "mlp_only_layers": [0, 1]}))
    assert (model.dense_layers, model.moe_layers, model.dense) == (2, 46, Dense(6144))


def test_a_mistral_window_covers_every_layer(tmp_path: Path) -> None:
    model = find_model(write(tmp_path, {**LLAMA, "model_type": "mistral", "sliding_window": 4096}))
    assert model.groups == (LayerGroup(32, Gqa(32, 8, 128, window=4096), Dense(14336)),)
    deployment = Deployment.create(str(tmp_path), "h100")
    assert deployment.memory.kv_bytes_per_token == 32 * 2 * 8 * 128 * 2
    assert deployment.tpot_s(5000) == deployment.tpot_s(50_000)


def test_a_config_on_disk_can_be_deployed(tmp_path: Path) -> None:
    model = write(tmp_path, {**LLAMA, "_name_or_path": "acme/eight"})
    assert Deployment.create(model, "h100").describe() == "acme/eight on 1x H100 SXM, fp8 weights, bf16 KV"


def test_every_missing_field_is_named_at_once(tmp_path: Path) -> None:
    broken = {k: v for k, v in QWEN3_MOE.items() if k not in ("hidden_size", "num_experts")} | {"vocab_size": "many"}
    file = Path(write(tmp_path, broken)) / "config.json"
    assert refusal(str(tmp_path)) == tuple(
        f"{file}: {key} must be a positive integer" for key in ("hidden_size", "vocab_size", "num_experts")
    )


def test_what_cannot_be_read_or_described_is_refused(tmp_path: Path) -> None:
    assert "config.json: cannot be read: No such file" in refusal(str(tmp_path))[0]
    assert (
        "model_type 'deepseek_v3' is not supported; choices: llama,"
        in refusal(write(tmp_path, {"model_type": "deepseek_v3"}))[0]
    )
    assert "model_type None is not supported" in refusal(write(tmp_path, [1]))[0]
    assert "mlp_only_layers [3] is not supported" in refusal(write(tmp_path, {**QWEN3_MOE, "mlp_only_layers": [3]}))[0]
    (tmp_path / "config.json").write_text("{")
    assert "config.json: not valid JSON" in refusal(str(tmp_path))[0]
