"""Start-up logs of engines: what of a deployment they say."""

from pathlib import Path

import pytest

from llmirage_client.calibrate.measured_run import engine_log_settings, with_log, with_measured
from llmirage_client.simulator.cluster_settings import ClusterSettings
from llmirage_shared.settings import ConfigError

VLLM = """(APIServer pid=1) INFO 06-01 09:20:16 [utils.py:278] non-default args: {'model': '/models/Llama-3.1-8B-Instruct', \
'host': '0.0.0.0', 'tensor_parallel_size': 2, 'max_num_batched_tokens': 8192, 'max_num_seqs': 64, 'enforce_eager': False}
(EngineCore pid=120) INFO 06-01 09:22:30 [kv_cache_utils.py:1733] GPU KV cache size: 620,944 tokens
"""
# Every kind of value that a log of SGLang 0.5.9 has (February 2026), in its order, and its last line before it serves.
SGLANG_0_5_9 = """[2026-02-18 03:19:27] INFO server_args.py:1830: Attention backend not specified.
[2026-02-18 03:19:27] INFO engine.py:156: server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tokenizer_worker_num=1, \
load_format='auto', model_loader_extra_config='{}', trust_remote_code=False, context_length=None, fastapi_root_path='', \
warmups=None, quantization=None, kv_cache_dtype='auto', mem_fraction_static=0.835, max_running_requests=None, \
max_queued_requests=None, max_total_tokens=None, chunked_prefill_size=8192, max_prefill_tokens=16384, \
schedule_policy='fcfs', schedule_conservativeness=1.0, page_size=1, swa_full_tokens_ratio=0.8, tp_size=1, pp_size=1, \
uvicorn_access_log_exclude_prefixes=[], otlp_traces_endpoint='localhost:4317', dp_size=1, attn_cp_size=1, \
json_model_override_args='{}', speculative_algorithm=None, speculative_num_steps=None, ep_size=1, \
disable_radix_cache=False, cuda_graph_max_bs=4, cuda_graph_bs=[1, 2, 4, 8], enable_mixed_chunk=False, \
enable_dp_attention=False, piecewise_cuda_graph_tokens=[4, 8, 12], disaggregation_mode='null', mm_process_config={}, \
forward_hooks=None)
[2026-02-18 03:19:30] KV Cache is allocated. #tokens: 421472, K size: 28.94 GB, V size: 28.94 GB
[2026-02-18 03:19:34] max_total_num_tokens=421472, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=48, context_len=40960, available_gpu_mem=12.18 GB
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
    in_use = "INFO 06-01 09:20:17 [scheduler.py:207] Chunked prefill is enabled with max_num_batched_tokens=4096.\n"
    flags = VLLM.replace(
        "'enforce_eager': False", "'enable_prefix_caching': False, 'speculative_config': {'num_speculative_tokens': 3}"
    )
    found = engine_log_settings(file(tmp_path, flags + in_use))
    assert (found["max_num_batched_tokens"], found["enable_prefix_caching"], found["num_speculative_tokens"]) == (
        4096,
        False,
        3,
    )
    old = "INFO 01-30 03:19:14 kv_cache_utils.py:395] # GPU blocks: 1381\n"
    assert engine_log_settings(file(tmp_path, old)) == {"engine": "vllm", "num_gpu_blocks_override": 1381}


def test_a_log_of_sglang(tmp_path: Path) -> None:
    assert engine_log_settings(file(tmp_path, SGLANG)) == {
        "engine": "sglang",
        "model": "Qwen/Qwen3-8B",
        "gpu_memory_utilization": 0.88,
        "max_num_batched_tokens": 4096,  # what the scheduler says in the end
        "max_prefill_tokens": 16384,
        "max_num_seqs": 2049,
        "block_size": 1,
        "weights": "fp8",
        "tensor_parallel_size": 4,
        "instances": 2,
        "num_gpu_blocks_override": 412345,
    }


def test_a_log_of_sglang_in_its_newer_form(tmp_path: Path) -> None:
    assert engine_log_settings(file(tmp_path, SGLANG_0_5_9)) == {
        "engine": "sglang",
        "model": "Qwen/Qwen3-8B",
        "gpu_memory_utilization": 0.835,
        "max_num_batched_tokens": 8192,
        "max_prefill_tokens": 16384,
        "max_num_seqs": 48,
        "block_size": 1,
        "schedule_policy": "fcfs",
        "schedule_conservativeness": 1.0,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "expert_parallel_size": 1,
        "num_gpu_blocks_override": 421472,
    }


def test_how_sglang_looks_at_arrivals_is_taken(tmp_path: Path) -> None:
    given = "disable_overlap_schedule=True, scheduler_recv_interval=10, disable_radix_cache=False"
    given += ", stream_interval=20, prefill_decode_interval=4"
    found = engine_log_settings(file(tmp_path, SGLANG_0_5_9.replace("disable_radix_cache=False", given)))
    assert (found["async_scheduling"], found["scheduler_recv_interval"]) == (False, 10)
    assert (found["stream_interval"], found["prefill_decode_interval"]) == (20, 4)


def test_what_changes_the_times_of_sglang_is_taken_or_asked_for(tmp_path: Path) -> None:
    text = SGLANG_0_5_9
    for off, on in (
        ("disable_radix_cache=False", "disable_radix_cache=True"),
        ("enable_mixed_chunk=False", "enable_mixed_chunk=True"),
        ("schedule_policy='fcfs'", "schedule_policy='lpm'"),
        ("speculative_algorithm=None", "speculative_algorithm='EAGLE'"),
        ("speculative_num_steps=None", "speculative_num_steps=3"),
    ):
        assert off in text
        text = text.replace(off, on)
    found = engine_log_settings(file(tmp_path, text))
    assert (found["enable_prefix_caching"], found["enable_mixed_chunk"], found["schedule_policy"]) == (False, True, "lpm")
    assert found["num_speculative_tokens"] == 3
    settings = {"gpu": "h100_sxm", **found}
    with pytest.raises(ConfigError, match="the engine drafted 3 tokens a step: give --acceptance-rate"):
        with_measured(ClusterSettings(overrides=settings), [])
    accepted = ClusterSettings(overrides=settings | {"acceptance_rate": 0.8})
    assert with_measured(accepted, []).overrides["num_speculative_tokens"] == 3
    half = SGLANG_0_5_9.replace("disaggregation_mode='null'", "disaggregation_mode='prefill'")
    with pytest.raises(ConfigError, match="the engine did prefill only: describe both pools in a --cluster FILE"):
        engine_log_settings(file(tmp_path, half))


def test_attention_data_parallelism_of_sglang_shares_the_gpus_of_tensor_parallelism(tmp_path: Path) -> None:
    log = SGLANG.replace("enable_dp_attention=False", "enable_dp_attention=True, ep_size=4").replace(" TP0", " DP0 TP0")
    found = engine_log_settings(file(tmp_path, log))
    assert (found["tensor_parallel_size"], found["data_parallel_size"], found["expert_parallel_size"]) == (2, 2, 4)
    assert not {"instances", "num_gpu_blocks_override", "max_num_seqs"} & found.keys()  # of one rank


def test_flags_that_say_something_else_are_refused(tmp_path: Path) -> None:
    log = file(tmp_path, VLLM)
    assert with_log(ClusterSettings(overrides={"engine": "mine.yaml"}), log).overrides["engine"] == "mine.yaml"
    with pytest.raises(ConfigError, match="--tensor-parallel-size 4: the engine's log says 2"):
        with_log(ClusterSettings(overrides={"tensor_parallel_size": 4}), log)
    with pytest.raises(ConfigError, match="there is no start-up message of vLLM or SGLang in it"):
        engine_log_settings(file(tmp_path, "hello"))
