"""Start-up logs of engines: what of a deployment they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmirage_client.calibrate.engine_log import engine_log_settings, with_log
from llmirage_shared.settings import ConfigError

VLLM = """(APIServer pid=1) INFO 06-01 09:20:16 [utils.py:278] non-default args: {'model': '/models/Llama-3.1-8B-Instruct', \
'host': '0.0.0.0', 'tensor_parallel_size': 2, 'max_num_batched_tokens': 8192, 'max_num_seqs': 64, 'enforce_eager': False}
(EngineCore pid=120) INFO 06-01 09:22:30 [kv_cache_utils.py:1733] GPU KV cache size: 620,944 tokens
"""
SGLANG = """[2025-03-03 06:40:00] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', port=30000, mem_fraction_static=0.88, \
max_running_requests=None, chunked_prefill_size=8192, page_size=1, quantization='fp8', kv_cache_dtype='auto', tp_size=4, \
dp_size=2, enable_dp_attention=False)
[2025-03-03 06:41:00 TP0] max_total_num_tokens=412345, chunked_prefill_size=4096, max_prefill_tokens=16384, \
max_running_requests=2049, context_len=40960
"""


def file(folder: Path, text: str) -> str:
    (folder / "log").write_text(text.replace("\\\n", ""))
    return str(folder / "log")


def test_a_log_of_vllm(tmp_path: Path) -> None:
    assert engine_log_settings(file(tmp_path, VLLM)) == {
        "engine": "vllm",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "tensor_parallel_size": 2,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 64,
        "num_gpu_blocks_override": 38809,  # 620,944 / 16
    }
    old = "INFO 01-30 03:19:14 kv_cache_utils.py:395] # GPU blocks: 1381\n"
    assert engine_log_settings(file(tmp_path, old)) == {"engine": "vllm", "num_gpu_blocks_override": 1381}


def test_a_log_of_sglang(tmp_path: Path) -> None:
    assert engine_log_settings(file(tmp_path, SGLANG)) == {
        "engine": "sglang",
        "model": "Qwen/Qwen3-8B",
        "gpu_memory_utilization": 0.88,
        "max_num_batched_tokens": 4096,  # what the scheduler says in the end
        "max_num_seqs": 2049,
        "block_size": 1,
        "weights": "fp8",
        "tensor_parallel_size": 4,
        "instances": 2,
        "num_gpu_blocks_override": 412345,
    }


def test_attention_data_parallelism_of_sglang_shares_the_gpus_of_tensor_parallelism(tmp_path: Path) -> None:
    log = SGLANG.replace("enable_dp_attention=False", "enable_dp_attention=True, ep_size=4").replace(" TP0", " DP0 TP0")
    found = engine_log_settings(file(tmp_path, log))
    assert (found["tensor_parallel_size"], found["data_parallel_size"], found["expert_parallel_size"]) == (2, 2, 4)
    assert not {"instances", "num_gpu_blocks_override", "max_num_seqs"} & found.keys()  # of one rank


def test_flags_that_say_something_else_are_refused(tmp_path: Path) -> None:
    log = file(tmp_path, VLLM)
    assert with_log({"tensor_parallel_size": None, "engine": "mine.yaml"}, log)["engine"] == "mine.yaml"
    with pytest.raises(ConfigError, match="--tensor-parallel-size 4: the engine's log says 2"):
        with_log({"tensor_parallel_size": 4}, log)
    with pytest.raises(ConfigError, match="there is no start-up message of vLLM or SGLang in it"):
        engine_log_settings(file(tmp_path, "hello"))
