"""Settings that do nothing without another one are refused, or told where nothing could be otherwise."""

import dataclasses

import pytest

from llmirage_server.config import ClusterConfig, ConfigError, EventConfig, PoolConfig
from llmirage_server.config.file import make_config, read_cluster_file
from llmirage_server.config.ineffective import CLUSTER_RULES, RULES, SIMULATED_RULES, effect_notes, without_effect

DEEPSEEK = {"model": "deepseek-ai/DeepSeek-V3", "gpu": "h200_sxm", "weights": "auto"}
RANKS = DEEPSEEK | {"data_parallel_size": 8, "expert_parallel_size": 8}
DENSE = {"model": "meta-llama/Llama-3.1-8B-Instruct"}
EIGHT = DEEPSEEK | {"tensor_parallel_size": 8}
STORE = {"kv_store_gib": 100.0}

# What is given, without effect; what it needs, in the message; and what gives it an effect.
IDLE = [
    ({"kv_store_gb_per_s": 10.0}, "kv_store_gib", STORE),
    ({"host_kv_gb_per_s": 10.0}, "host_kv_gib", {"host_kv_gib": 64.0}),
    ({"disk_kv_gb_per_s": 10.0}, "disk_kv_gib", {"disk_kv_gib": 64.0}),
    ({"data_parallel_balance": "load"}, "data_parallel_size above 1", RANKS),
    ({"prefill_schedule_interval": 4}, "data_parallel_size above 1", RANKS),
    ({"attention_dp_enable_balance": True, "engine": "trtllm"}, "data_parallel_size above 1", RANKS),
    ({"attention_dp_timeout_iters": 9, "engine": "trtllm"}, "enable_balance", RANKS | {"attention_dp_enable_balance": True}),
    (
        {"attention_dp_batching_wait_iters": 9, "engine": "trtllm"},
        "enable_balance",
        RANKS | {"attention_dp_enable_balance": True},
    ),
    ({"batch_wait_timeout_iters": 9, "engine": "trtllm"}, "max_tokens_ratio", {"batch_wait_max_tokens_ratio": 0.5}),
    ({"batch_wait_max_tokens_ratio": 0.5, "engine": "trtllm"}, "timeout_iters", {"batch_wait_timeout_iters": 9}),
    (
        RANKS | {"engine": "trtllm", "batch_wait_timeout_iters": 9, "batch_wait_max_tokens_ratio": 0.5},
        "data_parallel_size 1",
        EIGHT | {"data_parallel_size": 1},
    ),
    ({"capacity_scheduler_policy": "guaranteed_no_evict"}, "trtllm scheduler", {"engine": "trtllm"}),
    ({"max_prefill_tokens": 16384}, "sglang scheduler", {"engine": "sglang"}),
    ({"schedule_conservativeness": 1.0}, "sglang scheduler", {"engine": "sglang"}),
    ({"engine": "sglang", "long_prefill_token_threshold": 9}, "vllm scheduler", {"engine": "vllm"}),
    (
        DENSE | {"engine": "sglang", "pipeline_parallel_size": 2, "scheduler_recv_interval": 3},
        "pipeline_parallel_size 1",
        {"pipeline_parallel_size": 1},
    ),
    (
        DENSE | {"pipeline_parallel_size": 2, "async_scheduling": True},
        "pipeline_parallel_size 1",
        {"pipeline_parallel_size": 1},
    ),
    (DENSE | {"moe_backend": "marlin", "weights": "mxfp4"}, "a model with experts", {"model": "openai/gpt-oss-20b"}),
    ({"peer_to_peer": False}, "several GPUs", {"tensor_parallel_size": 2}),
    ({"acceptance_rate": 0.8}, "num_speculative_tokens", DEEPSEEK | {"num_speculative_tokens": 1}),
    ({"acceptance_length": 1.8}, "num_speculative_tokens", DEEPSEEK | {"num_speculative_tokens": 1}),
    ({"acceptance_rates": (0.8,)}, "num_speculative_tokens", DEEPSEEK | {"num_speculative_tokens": 1}),
    ({"speculative_method": "mtp"}, "num_speculative_tokens", DEEPSEEK | {"num_speculative_tokens": 1}),
    ({"draft_model": "Qwen/Qwen3-0.6B"}, "num_speculative_tokens", {"num_speculative_tokens": 3}),
    ({"min_instances": 2, "instances": 4}, "scale_on_queue", {"scale_on_queue": 3.0}),
    ({"initial_instances": 2, "instances": 4}, "scale_on_queue", {"scale_on_rate": 3.0}),
    ({"start_up_s": 2.0}, "scale_on_queue", {"scale_on_kv": 0.5}),
    ({"scale_interval_s": 2.0}, "scale_on_queue", {"scale_on_kv": 0.5}),
    ({"scale_up_after_s": 2.0}, "scale_on_queue", {"scale_on_kv": 0.5}),
    ({"scale_down_after_s": 2.0}, "scale_on_queue", {"scale_on_concurrency": 5.0}),
    ({"replay_timing": "none"}, "replay", {"replay": "recordings"}),
    ({"replay_match": ("model",)}, "replay", {"replay": "recordings"}),
    ({"replay_ignore": ("x",)}, "replay", {"replay": "recordings"}),
    ({"on_miss": "generated"}, "replay", {"replay": "recordings"}),
    ({"upstream_key": "k"}, "upstream", {"upstream": "http://localhost:1"}),
    (DENSE | {"router": "session"}, "several instances to choose from", {"instances": 2}),
    ({"ttft_ms": 20.0, "max_num_seqs": 4}, "fixed ones", None),
    ({"itl_ms": 20.0, "host_kv_gib": 4.0}, "fixed ones", None),
    ({"ttft_ms": 20.0, "kv_store_gib": 4.0}, "fixed ones", None),
    (DEEPSEEK | {"ttft_ms": 20.0, "num_speculative_tokens": 1}, "fixed ones", None),
    ({"ttft_ms": 20.0, "async_scheduling": True}, "fixed ones", None),
]


@pytest.mark.parametrize(("given", "needs", "enough"), IDLE)
def test_each_setting_without_effect_is_told_with_what_it_needs(given, needs, enough):
    cluster = [ClusterConfig(**given)]
    sentences = without_effect(cluster) | without_effect(cluster, harmless=True)
    name = next(name for name in sentences if name in given)
    assert sentences[name].startswith(f"{name} has no effect here: it needs ")
    assert needs in sentences[name]
    if enough is not None:
        cluster = [ClusterConfig(**(given | enough))]
        assert without_effect(cluster) | without_effect(cluster, harmless=True) == {}


def test_what_could_not_be_otherwise_is_a_note_and_no_refusal():
    one = make_config(None, DENSE | {"router": "session", "peer_to_peer": False, "data_parallel_balance": "load"})
    assert [note.partition(" ")[0] for note in effect_notes([one])] == ["router", "peer_to_peer", "data_parallel_balance"]
    assert not any(
        "router" in note for note in effect_notes([one, make_config(None, DENSE | {"router": "session", "instances": 2})])
    )
    with pytest.raises(ConfigError, match="attention_dp_enable_balance has no effect here: it needs the trtllm scheduler"):
        make_config(None, {"attention_dp_enable_balance": True})


def test_a_router_needs_two_instances_of_a_kind():
    plain = {"model": "Qwen/Qwen3-32B", "tensor_parallel_size": 2}
    halves = [PoolConfig(name=role, role=role, **plain) for role in ("prefill", "decode")]
    assert "router" in without_effect([ClusterConfig(router="session", pools=tuple(halves))], harmless=True)
    more = PoolConfig(name="more", role="decode", **plain)
    assert not effect_notes([ClusterConfig(router="session", pools=(*halves, more))])


def test_only_a_server_lets_instances_crash_without_events():
    fails = ClusterConfig(on_crash="fail", instances=2)
    assert effect_notes([fails]) == []
    assert effect_notes([fails], simulated=True) == ["on_crash has no effect here: it needs `events` with a crash."]
    stops, crashes = (
        dataclasses.replace(fails, events=(EventConfig(at_s=1.0, action=action, instance=0),))
        for action in ("stop", "crash")
    )
    assert effect_notes([stops], simulated=True)
    assert effect_notes([crashes], simulated=True) == []


def test_a_link_is_nothing_beside_its_bandwidth_and_latency(tmp_path):
    path = tmp_path / "cluster.yaml"
    text = "pools:\n  - {name: p, role: prefill}\n  - {name: d, role: decode}\nkv_transfer: {link: gpu_link, latency_us: 5"
    path.write_text(f"{text}}}\n")
    make_config(str(path), {})
    path.write_text(f"{text}, bandwidth_gb_per_s: 50}}\n")
    with pytest.raises(ConfigError, match=r"kv_transfer\.link has no effect here: bandwidth_gb_per_s and latency_us"):
        make_config(str(path), {})


def test_what_has_an_effect_in_one_of_several_clusters_needs_no_word():
    one, eight = ClusterConfig(**EIGHT, prefill_schedule_interval=4), ClusterConfig(**RANKS, prefill_schedule_interval=4)
    assert effect_notes([one])
    assert not effect_notes([one, eight])
    assert not effect_notes([eight, ClusterConfig(**DENSE)])


def test_the_defaults_and_fixed_times_alone_have_nothing_to_tell():
    assert without_effect([ClusterConfig()]) == {}
    assert without_effect([ClusterConfig(ttft_ms=200.0, itl_ms=10.0, gpu="h200_sxm", enable_prefix_caching=False)]) == {}


def test_each_rule_is_about_settings_that_there_are():
    fields = {field.name for field in dataclasses.fields(ClusterConfig)}
    limits = {"recurrent_states"}  # of EngineLimits alone
    assert {name for rule in (*RULES, *CLUSTER_RULES, *SIMULATED_RULES) for name in rule.names.split()} - limits <= fields


def pools(**own):
    plain = {"model": "Qwen/Qwen3-32B", "tensor_parallel_size": 2}
    return ClusterConfig(pools=(PoolConfig(name="a", **plain, **own), PoolConfig(name="b", **plain)))


def test_of_pools_it_is_told_whose_setting_it_is():
    assert "pool a: disk_kv_gb_per_s has no effect here" in "".join(without_effect([pools(disk_kv_gb_per_s=9.0)]).values())


def test_a_default_of_all_pools_counts_where_one_of_them_uses_it(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "model: Qwen/Qwen3-32B\ntp: 2\nstream_interval: 4\n"
        "pools:\n  - {name: prefill, role: prefill}\n  - {name: decode, role: decode}\n"
    )
    assert make_config(str(path), {}).pools[0].stream_interval == 4
    path.write_text(
        "model: Qwen/Qwen3-32B\ntp: 2\n"
        "pools:\n  - {name: prefill, role: prefill, stream_interval: 4}\n  - {name: decode, role: decode}\n"
    )
    with pytest.raises(
        ConfigError, match="pool prefill: stream_interval has no effect here: it needs an instance that decodes"
    ):
        make_config(str(path), {})


def test_a_flag_may_switch_off_what_settings_of_the_file_are_about():
    assert make_config("bundled:offload", {"host_kv_gib": 0.0, "disk_kv_gib": 0.0}).host_kv_gb_per_s == 50
    assert make_config("bundled:autoscaled", {"ttft_ms": 20.0}).fixed_times
    with pytest.raises(ConfigError, match="disk_kv_gb_per_s"):
        make_config("bundled:disaggregated", {"disk_kv_gb_per_s": 3.0})


def test_a_setting_of_the_whole_cluster_inside_a_pool_is_told_where_it_belongs(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text("pools:\n  - name: a\n    kv_store_gib: 100\n    kv_transfer: {link: network}\n    rooter: prefix\n")
    with pytest.raises(ConfigError) as refused:
        read_cluster_file(str(path))
    at_top = "is a setting of the whole cluster: it belongs at the top level of the file, not in a pool"
    assert refused.value.problems[0] == f"{path}:3: pools[0].kv_store_gib: {at_top}"
    assert refused.value.problems[1] == f"{path}:4: pools[0].kv_transfer: {at_top}"
    assert "pools[0].rooter: unknown key" in refused.value.problems[2]
