"""Keyword arguments of the Python API. Made by `make docs` of the settings that the server declares."""

# ruff: noqa: UP013, E501
# fmt: off

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Literal, TypedDict

ServerOptions = TypedDict("ServerOptions", {
    "model": "str | None", "gpu": "str | None", "instances": "int | None", "weights": "str | None", "perf_model": "Literal['roofline', 'silicon'] | None",
    "tensor_parallel_size": "int | None", "tp": "int | None", "pipeline_parallel_size": "int | None", "pp": "int | None",
    "data_parallel_size": "int | None", "dp": "int | None", "expert_parallel_size": "int | None", "ep": "int | None", "peer_to_peer": "bool | None",
    "data_parallel_balance": "Literal['load', 'round_robin', 'prefix'] | None", "engine": "str | None", "max_num_seqs": "int | None",
    "max_num_batched_tokens": "int | None", "max_model_len": "int | None", "enable_chunked_prefill": "bool | None",
    "long_prefill_token_threshold": "int | None", "schedule_policy": "Literal['fcfs', 'priority', 'lpm'] | None",
    "schedule_conservativeness": "float | None", "max_prefill_tokens": "int | None", "enable_mixed_chunk": "bool | None",
    "capacity_scheduler_policy": "Literal['guaranteed_no_evict', 'max_utilization'] | None", "kv_cache_dtype": "str | None",
    "gpu_memory_utilization": "float | None", "num_gpu_blocks_override": "int | None", "block_size": "int | None", "enable_prefix_caching": "bool | None",
    "host_kv_gib": "float | None", "host_kv_gb_per_s": "float | None", "disk_kv_gib": "float | None", "disk_kv_gb_per_s": "float | None",
    "num_speculative_tokens": "int | None", "acceptance_rate": "float | None", "speculative_method": "Literal['mtp', 'draft_model'] | None",
    "draft_model": "str | None", "ttft_ms": "float | None", "ttft": "float | None", "itl_ms": "float | None", "itl": "float | None",
    "scale_on_queue": "float | None", "scale_on_concurrency": "float | None", "scale_on_kv": "float | None", "scale_on_rate": "float | None",
    "min_instances": "int | None", "initial_instances": "int | None", "start_up_s": "float | None", "scale_interval_s": "float | None",
    "scale_up_after_s": "float | None", "scale_down_after_s": "float | None", "served_model_name": "str | Sequence[str] | None", "router": "str | None",
    "on_crash": "Literal['reroute', 'fail'] | None", "speed": "float | str | None", "accept_models": "Literal['any', 'served'] | None",
    "tokenizer": "str | None", "replies": "Literal['prose', 'echo'] | None", "natural_stop": "bool | None", "reply_tokens": "int | None",
    "dialect": "Literal['openai', 'vllm', 'sglang', 'trtllm'] | None", "lenient": "bool | None", "enable_cache_report": "bool | None",
    "enable_prompt_tokens_details": "bool | None", "unknown_fields": "Literal['refuse', 'ignore'] | None", "state": "str | PathLike[str] | None",
    "state_mib": "int | None", "files_mib": "int | None", "response_ttl_s": "float | None", "response_ttl": "float | None", "seed": "int | None",
    "replay": "str | PathLike[str] | None", "replay_timing": "Literal['recorded', 'cluster', 'none'] | None",
    "replay_match": "str | Sequence[str] | None", "replay_ignore": "str | Sequence[str] | None",
    "on_miss": "Literal['error', 'generated', 'record'] | None", "upstream": "str | None", "upstream_key": "str | None",
    "api_key": "str | Sequence[str] | None", "api_key_file": "str | PathLike[str] | None", "open_admin": "bool | None", "max_body_mib": "int | None",
    "max_body": "int | None", "websocket_limit_s": "float | None", "websocket_limit": "float | None", "rate_limit": "int | None",
    "token_limit": "int | None", "allow_fault_header": "bool | None",
}, total=False)
