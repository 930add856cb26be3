"""Command lines of real servers: what they set here, what has no effect, and what cannot be read."""

from pathlib import Path

import pytest

from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.engine_args import EngineArgs, read_engine_args
from llmirage_server.config.ineffective import without_effect
from llmirage_server.config.instance import InstanceSettings
from llmirage_server.config.planning import plan
from llmirage_shared.settings import settings_of


def read(text: str, engine: str | None = None) -> EngineArgs:
    return read_engine_args(text, engine, settings_of(InstanceSettings))


def test_a_command_of_vllm() -> None:
    found = read(
        "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1 CUDA_VISIBLE_DEVICES=0,1 vllm serve openai/gpt-oss-120b -tp 2 "
        "--max_num_seqs 128 --gpu-memory-utilization=0.95 --no-enable-prefix-caching --async-scheduling -O3 "
        "--kv-cache-dtype fp8 --enable-expert-parallel --host 0.0.0.0 --no-enable-log-requests"
    )
    assert found.settings == {
        "engine": "vllm",
        "model": "openai/gpt-oss-120b",
        "tensor_parallel_size": 2,
        "expert_parallel_size": 2,
        "max_num_seqs": 128,
        "gpu_memory_utilization": 0.95,
        "enable_prefix_caching": False,
        "async_scheduling": True,
        "kv_cache_dtype": "fp8",
    }
    assert found.profile == {"mxfp4_activations": "fp8"}
    assert found.ignored == ["CUDA_VISIBLE_DEVICES=0,1", "-O3", "--host 0.0.0.0", "--no-enable-log-requests"]
    assert not found.problems


def test_lines_that_go_on_are_one_command() -> None:
    found = read("vllm serve m \\\n  -tp 2 \\\n  --swap-space 4")
    assert found.settings == {"engine": "vllm", "model": "m", "tensor_parallel_size": 2}
    assert found.ignored == ["--swap-space 4"]


def test_values_in_json() -> None:
    found = read(
        """--speculative-config '{"method": "eagle3", "num_speculative_tokens": 3, "model": "x"}'"""
        """ --compilation-config '{"pass_config": {"fuse_allreduce_rms": false}}'"""
    )
    assert found.settings == {"speculative_method": "eagle3", "num_speculative_tokens": 3}
    assert found.profile == {"fuses_norms": False}


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (
            "--tp 8 --dp 4 --enable-dp-attention --ep-size 8",
            {"tensor_parallel_size": 2, "data_parallel_size": 4, "expert_parallel_size": 8},
        ),
        ("--tp 2 --dp 3", {"tensor_parallel_size": 2, "instances": 3}),
        (
            "--chunked-prefill-size -1 --disable-radix-cache",
            {"enable_chunked_prefill": False, "enable_prefix_caching": False},
        ),
        ("--quantization modelopt_fp4 --kv-cache-dtype fp8_e4m3", {"weights": "nvfp4", "kv_cache_dtype": "fp8"}),
        ("--mem-fraction-static 0.8 --context-length 9000", {"gpu_memory_utilization": 0.8, "max_model_len": 9000}),
        (
            "--speculative-algorithm NEXTN --speculative-num-steps 3",
            {"speculative_method": "mtp", "num_speculative_tokens": 3},
        ),
    ],
)
def test_arguments_of_sglang(arguments: str, settings: dict[str, object]) -> None:
    found = read(arguments, "sglang")
    assert found.settings == settings
    assert not found.ignored


def test_tensorrt_llm_has_a_file_of_further_arguments(tmp_path: Path) -> None:
    file = tmp_path / "more.yaml"
    file.write_text(
        "enable_attention_dp: true\nstream_interval: 30\nkv_cache_config: {dtype: fp8, enable_block_reuse: false}\n"
        "moe_config: {backend: TRTLLM}\nprint_iter_log: true\n"
        "speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 3}\n"
    )
    found = read(f"trtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 --ep_size 8 --extra_llm_api_options {file}")
    assert found.settings == {
        "engine": "trtllm",
        "model": "deepseek-ai/DeepSeek-R1",
        "tensor_parallel_size": 1,
        "data_parallel_size": 8,
        "expert_parallel_size": 8,
        "stream_interval": 30,
        "kv_cache_dtype": "fp8",
        "enable_prefix_caching": False,
        "moe_backend": "trtllm",
        "speculative_method": "mtp",
        "num_speculative_tokens": 3,
    }
    assert found.ignored == ["print_iter_log: true"]
    assert read("trtllm-serve m --config nowhere.yaml").problems == [
        "nowhere.yaml cannot be read: No such file or directory"
    ]


@pytest.mark.parametrize(
    ("arguments", "engine", "problem"),
    [
        ("--max-num-seqs many", None, "--max-num-seqs many: must be a whole number, not 'many'"),
        ("vllm serve 'a", None, "cannot be read: No closing quotation"),
        ("vllm serve a", "sglang", "is a command of vllm, but the engine is sglang"),
        ("--speculative-config [1]", None, "--speculative-config [1]: must be a JSON object"),
        ("--tp 8 --dp 3 --enable-dp-attention", "sglang", "--dp 3 does not divide --tp 8"),
        ("--tp 8 --dp 0 --enable-dp-attention", "sglang", "--dp 0: data_parallel_size must be at least 1, not 0"),
        ("--tp", "sglang", "--tp: must be a whole number, not ''"),
        ("--compilation-config 3", None, "--compilation-config 3: must be a JSON object"),
        ("--tp 8", "vlm", "unknown engine 'vlm'; did you mean vllm?"),
    ],
)
def test_what_cannot_be_read_is_said(arguments: str, engine: str | None, problem: str) -> None:
    assert read(arguments, engine).problems == [problem]


@pytest.mark.parametrize("named", ["/models/x", "acme/tuned", "deepseek-ai/DeepSeek-R1", "nvidia/DeepSeek-R1-FP4"])
def test_a_model_beside_them_may_be_what_the_server_calls_otherwise(named: str) -> None:
    config = ClusterConfig(model="deepseek-ai/DeepSeek-V3", gpu="b200_sxm", engine_args=f"vllm serve {named} -tp 8")
    assert plan(config)[0].deployment.model.name == "deepseek-ai/DeepSeek-V3"


def test_a_model_beside_them_that_has_other_layers_is_refused() -> None:
    for command in ("vllm serve Qwen/Qwen3-32B", "python3 -m sglang.launch_server --model-path qwen3-32b"):
        with pytest.raises(ConfigError, match=r"engine_args starts .*wen3-32.*, but model is given as .*Qwen3-8B"):
            plan(ClusterConfig(model="Qwen/Qwen3-8B", engine_args=command))


def test_a_cluster_takes_them_and_says_what_has_no_effect() -> None:
    command = "python3 -m sglang.launch_server --model-path /models/x --tp 8 --enable-flashinfer-allreduce-fusion --port 1"
    config = ClusterConfig(model="deepseek-ai/DeepSeek-R1", gpu="b200_sxm", engine_args=command)
    [pool] = plan(config)
    assert (pool.deployment.parallel.tp, pool.deployment.engine.base) == (8, "sglang")
    assert pool.deployment.engine.fuses_norms
    assert pool.assumptions["engine_args"] == "no effect of --port 1"
    assert "tensor_parallel_size" not in pool.assumptions


def test_what_is_given_beside_them_must_agree() -> None:
    assert ClusterConfig(engine_args="-tp 4", tensor_parallel_size=4).tensor_parallel_size == 4
    with pytest.raises(
        ConfigError, match="engine_args sets tensor_parallel_size to 4, but tensor_parallel_size is given as 2"
    ):
        ClusterConfig(engine_args="-tp 4", tensor_parallel_size=2)


def test_a_real_command_may_say_what_has_no_effect() -> None:
    config = ClusterConfig(engine="trtllm", engine_args="--batch_wait_timeout_iters 20")
    assert not without_effect([config])
    assert without_effect([ClusterConfig(engine="trtllm", batch_wait_timeout_iters=20)])
