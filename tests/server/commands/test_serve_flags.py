"""Every flag of `serve` changes something: through the real command line into a real application."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmirage_server.app import LlmirageApp, create_app, load_text_tools
from llmirage_server.commands.banner import MachineCost, banner
from llmirage_server.commands.script_actions import EXAMPLE_FILE
from llmirage_server.commands.serve import serve
from llmirage_server.config import SETTINGS, ClusterConfig, ConfigError
from llmirage_server.config.file import make_config
from llmirage_server.replies.reply import ReplyRequest
from llmirage_shared.command_line import SettingOption

Observe = Callable[[LlmirageApp], Any]

SGLANG, TRTLLM = ["--engine", "sglang"], ["--engine", "trtllm"]
BALANCED = [*TRTLLM, "--dp", "2", "--set", "attention_dp_enable_balance=true"]
MTP = ["--model", "deepseek-ai/DeepSeek-V3", "--gpu", "h200_sxm", "--weights", "auto", "--tp", "8"]
DRAFT = ["--set", "speculative_method=draft_model", "--draft-model", "Qwen/Qwen3-0.6B", "--num-speculative-tokens", "2"]

EMPTY = str(Path(__file__).parent)  # a folder without recordings
KEYS = str(Path(__file__).parents[3] / "LICENSE")  # a file of lines
LORA = ["--set", "enable_lora=true"]
SCALED = ["--set", "scale_on_rate=2"]
GATEWAY = ["--set", "gateway_queue=true"]
TRACES = tempfile.mkdtemp()


# What is said of the port and of its connections; tests of commands/ have them over sockets.
LISTENING = {
    "host", "port", "access_log", "no_ui", "tls_cert", "tls_key", "max_connections", "shutdown_timeout_s",
    "json", "fleet", "fleet_file", "fleet_ranks", "kv_events_port", "kv_events_replay_port", "kv_events_topic",
    "http_workers", "kv_events_format", "kv_events_hash", "kv_events_seed", "discovery_address",
}  # fmt: skip


def parse(arguments: Sequence[str]) -> ClusterConfig:
    """The configuration that `llmirage serve` with these arguments starts."""
    flags = serve.make_context("serve", list(arguments)).params
    cluster_file = flags.pop("cluster_file")
    return make_config(cluster_file, {name: value for name, value in flags.items() if name not in LISTENING})


def limit(name: str) -> Observe:
    return lambda app: getattr(app.limits, name)


def flow_control(app: LlmirageApp) -> Any:
    return app.driver.cluster.gateway.flow_control


def decode_s(app: LlmirageApp) -> float:
    return app.pools[0].step_model.step_s([], [1000] * 4)


def prefill_s(app: LlmirageApp) -> float:
    return app.pools[0].step_model.step_s([(1000, 0)], [])


def tracing(app: LlmirageApp) -> Any:
    """The writers of served requests: their types and blocks."""
    if app.tracing is None:
        return None
    app.tracing.close()
    return [(type(writer), getattr(writer, "_block_tokens", 0)) for writer in app.tracing._thread._writers]


def gpus(app: LlmirageApp) -> int:
    return app.deployment.gpus


def guard(app: LlmirageApp) -> Any:
    app.make_routes()
    return app.routes[0].app.guard  # type: ignore[attr-defined]


def tiers(app: LlmirageApp) -> list[Any]:
    return [(tier.name, tier.capacity_tokens) for tier in app.driver.cluster.snapshot()[0].tiers]


def scaling(name: str) -> Observe:
    """A value of the rule by which the pool is scaled."""
    return lambda app: getattr(app.driver.cluster._pools.pool_of[0].scaling, name)


def kv_tokens(app: LlmirageApp) -> int:
    return app.limits.kv_tokens


def shown(app: LlmirageApp) -> str:
    return banner(app, "http://localhost:8000", MachineCost(0.003, 0.0015, 5e-6, 0.0004))


def reply(app: LlmirageApp, max_tokens: int | None = None) -> str:
    tools = load_text_tools(app.config)
    ids = tools.encoder.encode_chat([{"role": "user", "content": "Hello there"}])
    asked = ReplyRequest(prompt_ids=ids, last_user_text="Hello there", max_tokens=max_tokens, limit_tokens=2000)
    return tools.replies.reply(asked).text


def accepts(app: LlmirageApp) -> bool:
    try:
        app.service.models.find("some-model")
    except Exception:
        return False
    return True


# name: (flags without it, the flag and its value, what must differ)
EFFECTS: dict[str, tuple[Sequence[str], Sequence[str], Observe]] = {
    "model": ((), ["--model", "Qwen/Qwen3-8B"], decode_s),
    "gpu": ((), ["--gpu", "h200_sxm"], kv_tokens),
    "instances": ((), ["--instances", "3"], lambda app: len(app.driver.cluster.snapshot())),
    "scale_on_queue": (SCALED, ["--set", "scale_on_queue=3"], scaling("queue")),
    "scale_on_concurrency": (SCALED, ["--set", "scale_on_concurrency=3"], scaling("concurrency")),
    "scale_on_kv": (SCALED, ["--set", "scale_on_kv=0.5"], scaling("kv")),
    "scale_on_rate": (["--set", "scale_on_queue=2"], ["--set", "scale_on_rate=3"], scaling("rate")),
    **{f"scale_on_{name}": (SCALED, ["--set", f"scale_on_{name}=3"], scaling(name)) for name in ("ttft_ms", "itl_ms")},
    "scale_percentile": (["--set", "scale_on_ttft_ms=2"], ["--set", "scale_percentile=50"], scaling("percentile")),
    "scale_advisory": (SCALED, ["--set", "scale_advisory=true"], scaling("advisory")),
    "max_gpu_budget": (SCALED, ["--set", "max_gpu_budget=4"], lambda app: app.driver.cluster.scaling.max_gpu_budget),
    "min_instances": (SCALED, ["--set", "min_instances=2"], scaling("least")),
    "initial_instances": (SCALED, ["--set", "initial_instances=2"], scaling("first")),
    "start_up_s": (SCALED, ["--set", "start_up_s=7"], scaling("start_up_s")),
    "scale_interval_s": (SCALED, ["--set", "scale_interval_s=7"], scaling("interval_s")),
    "scale_up_after_s": (SCALED, ["--set", "scale_up_after_s=7"], scaling("up_after_s")),
    "scale_down_after_s": (SCALED, ["--set", "scale_down_after_s=7"], scaling("down_after_s")),
    "weights": ((), ["--weights", "bf16"], decode_s),
    "perf_model": ((), ["--set", "perf_model=silicon"], lambda app: app.deployment.perf_model),
    "tensor_parallel_size": ((), ["--tp", "2"], gpus),
    "pipeline_parallel_size": ((), ["--pp", "2"], gpus),
    "data_parallel_size": (["--ep", "1"], ["--dp", "2"], gpus),
    "peer_to_peer": (["--tp", "2", "--gpu", "rtx_4090"], ["--set", "peer_to_peer=true"], prefill_s),
    "expert_parallel_size": (["--tp", "2"], ["--ep", "2"], decode_s),
    "data_parallel_balance": (["--dp", "2"], ["--set", "data_parallel_balance=prefix"], limit("data_parallel_balance")),
    "engine": ((), SGLANG, limit("scheduler")),
    "engine_args": ((), ["--engine-args", "--max-num-seqs 7"], limit("max_num_seqs")),
    "moe_backend": (["--model", "openai/gpt-oss-20b"], ["--moe-backend", "marlin"], decode_s),
    "max_num_seqs": ((), ["--max-num-seqs", "7"], limit("max_num_seqs")),
    "max_num_batched_tokens": ((), ["--max-num-batched-tokens", "4096"], limit("max_num_batched_tokens")),
    "max_model_len": ((), ["--max-model-len", "1000"], lambda app: app.max_model_len),
    "enable_chunked_prefill": ((), ["--no-enable-chunked-prefill"], limit("enable_chunked_prefill")),
    "long_prefill_token_threshold": ((), ["--long-prefill-token-threshold", "512"], limit("long_prefill_token_threshold")),
    "schedule_policy": (SGLANG, ["--schedule-policy", "lpm"], limit("schedule_policy")),
    "schedule_conservativeness": (SGLANG, ["--schedule-conservativeness", "0.3"], limit("schedule_conservativeness")),
    "max_prefill_tokens": (SGLANG, ["--max-prefill-tokens", "9000"], limit("max_prefill_tokens")),
    "async_scheduling": ((), ["--no-async-scheduling"], limit("async_scheduling")),
    "scheduler_recv_interval": (SGLANG, ["--scheduler-recv-interval", "10"], limit("scheduler_recv_interval")),
    "prefill_schedule_interval": (
        ["--dp", "2"],
        ["--set", "prefill_schedule_interval=8"],
        limit("prefill_schedule_interval"),
    ),
    "prefill_decode_interval": (SGLANG, ["--set", "prefill_decode_interval=4"], limit("prefill_decode_interval")),
    "batch_wait_timeout_iters": (
        [*TRTLLM, "--set", "batch_wait_max_tokens_ratio=0.5"],
        ["--set", "batch_wait_timeout_iters=8"],
        limit("batch_wait_timeout_iters"),
    ),
    "batch_wait_max_tokens_ratio": (
        [*TRTLLM, "--set", "batch_wait_timeout_iters=8"],
        ["--set", "batch_wait_max_tokens_ratio=0.5"],
        limit("batch_wait_max_tokens_ratio"),
    ),
    "attention_dp_enable_balance": (
        [*TRTLLM, "--dp", "2"],
        ["--set", "attention_dp_enable_balance=true"],
        limit("attention_dp_enable_balance"),
    ),
    "attention_dp_timeout_iters": (BALANCED, ["--set", "attention_dp_timeout_iters=9"], limit("attention_dp_timeout_iters")),
    "attention_dp_batching_wait_iters": (
        BALANCED,
        ["--set", "attention_dp_batching_wait_iters=9"],
        limit("attention_dp_batching_wait_iters"),
    ),
    "stream_interval": ((), ["--stream-interval", "10"], limit("stream")),
    "enable_mixed_chunk": (SGLANG, ["--enable-mixed-chunk"], limit("enable_mixed_chunk")),
    "capacity_scheduler_policy": (
        TRTLLM,
        ["--set", "capacity_scheduler_policy=max_utilization"],
        limit("capacity_scheduler_policy"),
    ),
    "kv_cache_dtype": ((), ["--kv-cache-dtype", "fp8"], kv_tokens),
    "gpu_memory_utilization": ((), ["--gpu-memory-utilization", "0.8"], kv_tokens),
    "num_gpu_blocks_override": ((), ["--num-gpu-blocks-override", "5000"], kv_tokens),
    "block_size": ((), ["--block-size", "64"], limit("page_size")),
    "enable_prefix_caching": ((), ["--no-enable-prefix-caching"], limit("enable_prefix_caching")),
    "host_kv_gib": ((), ["--set", "host_kv_gib=10"], tiers),
    "host_kv_gb_per_s": (
        ["--set", "host_kv_gib=10"],
        ["--set", "host_kv_gb_per_s=10"],
        lambda app: app.pools[0].tiers[0].read_bytes_per_s,
    ),
    "disk_kv_gib": ((), ["--set", "disk_kv_gib=10"], tiers),
    "disk_kv_gb_per_s": (
        ["--set", "disk_kv_gib=10"],
        ["--set", "disk_kv_gb_per_s=1"],
        lambda app: app.pools[0].tiers[0].read_bytes_per_s,
    ),
    "num_speculative_tokens": (MTP, ["--num-speculative-tokens", "1"], limit("num_speculative_tokens")),
    "acceptance_rate": ([*MTP, "--num-speculative-tokens", "1"], ["--set", "acceptance_rate=0.9"], limit("acceptance_rate")),
    "acceptance_length": (
        [*MTP, "--num-speculative-tokens", "1"],
        ["--set", "acceptance_length=1.9"],
        limit("acceptance_rate"),
    ),
    "acceptance_rates": (
        [*MTP, "--num-speculative-tokens", "2"],
        ["--set", "acceptance_rates=0.9,0.5"],
        limit("acceptance_rates"),
    ),
    "speculative_method": ([*MTP, "--num-speculative-tokens", "2"], DRAFT[:4], decode_s),
    "draft_model": (DRAFT, ["--draft-model", "Qwen/Qwen3-8B"], decode_s),
    "ttft_ms": ((), ["--ttft", "5"], shown),
    "itl_ms": ((), ["--itl", "5"], shown),
    "lora_modules": ((), ["--set", "lora_modules=a=/a"], lambda app: app.service.models.served),
    "enable_lora": ((), ["--set", "enable_lora=true"], limit("max_loras")),
    "max_loras": (LORA, ["--set", "max_loras=3"], limit("max_loras")),
    "max_cpu_loras": (LORA, ["--set", "max_cpu_loras=3"], limit("max_cpu_loras")),
    "max_lora_rank": (LORA, ["--set", "max_lora_rank=64"], kv_tokens),
    "served_model_name": ((), ["--served-model-name", "mine"], lambda app: app.model_names),
    "router": ((), ["--router", "round_robin"], lambda app: type(app.driver.cluster._pools.pool_of[0].router)),
    "session_ttl_s": (
        ["--router", "session", "--instances", "2"],
        ["--set", "session_ttl_s=60"],
        lambda app: app.driver.cluster._pools.pool_of[0].router.sessions.ttl_s,
    ),
    "class_priorities": (
        ["--set", "schedule_policy=priority"],
        ["--set", "class_priorities=interactive:0,batch:5"],
        lambda app: app.service.models.find("any").class_priorities,
    ),
    "gateway_queue": ((), GATEWAY, flow_control),
    "objective_priorities": (GATEWAY, ["--set", "objective_priorities=chat:1"], flow_control),
    "gateway_queue_depth": (GATEWAY, ["--set", "gateway_queue_depth=2"], flow_control),
    **{
        name: (GATEWAY, ["--set", f"{name}={value}"], flow_control)
        for name, value in {
            "gateway_kv_utilization": "0.5",
            "gateway_request_ttl_s": "5",
            "gateway_max_requests": "9",
            "gateway_max_bytes": "900",
            "gateway_sheddable_max_requests": "0",
            "gateway_ordering": "slo-deadline",
        }.items()
    },
    "kv_store_gib": ((), ["--set", "kv_store_gib=10"], tiers),
    "kv_store_gb_per_s": (
        ["--set", "kv_store_gib=10"],
        ["--set", "kv_store_gb_per_s=1"],
        lambda app: app.driver.cluster._instances[0].schedulers[0].kv._tiers[0].spec.read_bytes_per_s,
    ),
    "on_crash": (["--cluster", "bundled:failover"], ["--set", "on_crash=fail"], lambda app: app.driver.cluster._on_crash),
    "speed": ((), ["--speed", "max"], lambda app: type(app.driver)),
    "accept_models": ((), ["--set", "accept_models=served"], accepts),
    "tokenizer": ((), ["--tokenizer", "/no/such/folder"], reply),
    "replies": ((), ["--replies", "echo"], reply),
    "script": ((), ["--script", str(EXAMPLE_FILE)], lambda app: app.service.scripts is not None),
    "exact_length": ((), ["--exact-length"], lambda app: reply(app, max_tokens=2000)),
    "lenient": ((), ["--set", "lenient=true"], lambda app: app.service.dialect.strict),
    "dialect": ((), ["--dialect", "sglang"], lambda app: app.service.dialect.name),
    "enable_cache_report": (
        (),
        ["--set", "enable_cache_report=false"],
        lambda app: app.service.responses.shown_usage({"prompt_tokens_details": {}}),
    ),
    "unknown_fields": ((), ["--set", "unknown_fields=ignore"], lambda app: app.service.documented_only),
    "state": ((), ["--state", ":memory:"], lambda app: type(app.store).__name__),
    "files_mib": ((), ["--set", "files_mib=2"], lambda app: app.files.most_bytes),
    "state_mib": ((), ["--set", "state_mib=2"], lambda app: app.store._most_bytes),
    "response_ttl_s": ((), ["--set", "response_ttl_s=60"], lambda app: app.store._ttl_s),
    "reply_tokens": ((), ["--set", "reply_tokens=400"], reply),
    "seed": ((), ["--seed", "1"], reply),
    "replay": ((), ["--replay", EMPTY], lambda app: app.replay is None),
    "replay_timing": (["--replay", EMPTY], ["--set", "replay_timing=none"], lambda app: app.replay._timing),
    "replay_match": (
        ["--replay", EMPTY],
        ["--set", "replay_match=messages"],
        lambda app: app.replay._library.matcher._fields,
    ),
    "replay_ignore": (["--replay", EMPTY], ["--set", "replay_ignore=a+"], lambda app: app.replay._library.matcher._ignored),
    "on_miss": (["--replay", EMPTY], ["--set", "on_miss=generated"], lambda app: app.replay._on_miss),
    "upstream": ((), ["--upstream", "http://x.test"], lambda app: app.upstream is None),
    "upstream_key": (["--upstream", "http://x.test"], ["--set", "upstream_key=k"], lambda app: app.upstream.key),
    "trace_out": ((), ["--trace-out", f"{TRACES}/out.jsonl"], tracing),
    "trace_format": (
        ["--trace-out", f"{TRACES}/plain.jsonl"],
        ["--trace-out", f"{TRACES}/otel.jsonl", "--set", "trace_format=otel"],
        tracing,
    ),
    "trace_block_size": (
        ["--trace-out", f"{TRACES}/a.jsonl"],
        ["--trace-out", f"{TRACES}/b.jsonl", "--set", "trace_block_size=64"],
        tracing,
    ),
    "record_workload": ((), ["--set", f"record_workload={TRACES}/work.jsonl"], tracing),
    "sent_stamps": ((), ["--set", f"sent_stamps={TRACES}/stamps.jsonl"], lambda app: app.service.responses.stamps),
    "api_key": ((), ["--api-key", "secret"], guard),
    "api_key_file": ((), ["--set", f"api_key_file={KEYS}"], guard),
    "open_admin": ((), ["--set", "open_admin=true"], lambda app: app.face.open_admin),
    "cors": ((), ["--set", "cors=https://app.example"], lambda app: app.user_middleware[0].args[0]),
    "unread_mib": ((), ["--set", "unread_mib=2"], lambda app: app.unread.most),
    "max_body_mib": ((), ["--set", "max_body_mib=2"], lambda app: app.face.most_bytes),
    "websocket_limit_s": ((), ["--set", "websocket_limit_s=9"], lambda app: app.config.websocket_limit_s),
    "rate_limit": ((), ["--set", "rate_limit=5"], lambda app: app.face.limits),
    "token_limit": ((), ["--set", "token_limit=5"], lambda app: app.face.limits),
    "faults": ((), ["--faults", "/no/such/file"], shown),
    "allow_fault_header": ((), ["--set", "allow_fault_header=true"], lambda app: app.faults.allow_header),
}


def test_every_setting_has_a_flag_in_this_table() -> None:
    assert set(EFFECTS) == set(SETTINGS)
    names = {param.name for param in serve.params if isinstance(param, SettingOption)}
    assert names == set(SETTINGS) | {"cluster_file"} | LISTENING


def outcome(arguments: Sequence[str], observe: Observe) -> Any:
    try:
        return observe(create_app(parse(arguments)))
    except ConfigError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("name", EFFECTS)
def test_every_flag_has_an_effect(name: str) -> None:
    """A refusal counts for three: the silicon model comes with an extra that may be missing, the files are not there."""
    without, given, observe = EFFECTS[name]
    before, after = outcome(without, observe), outcome([*without, *given], observe)
    assert before != after
    assert ("refused: " in str(after)) <= (name in ("perf_model", "tokenizer", "faults"))
