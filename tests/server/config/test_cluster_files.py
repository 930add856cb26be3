"""Cluster files with pools, links, tiers and events: what they mean, and what is refused with its line."""

from dataclasses import replace
from pathlib import Path

import pytest

from llmirage_server.app import create_app
from llmirage_server.cluster.kv.handoffs import KVLink
from llmirage_server.cluster.lifecycle.lifecycle import LifecycleEvent
from llmirage_server.config import ClusterConfig, ConfigError, EventConfig, KvTransferConfig, PoolConfig
from llmirage_server.config.file import BUNDLED_DIRECTORY, make_config
from llmirage_server.config.planning import plan

DISAGGREGATED = """
gpu: h100_sxm
model: Qwen/Qwen3-8B
max_num_seqs: 64
pools:
  - {name: in, role: prefill, instances: 2}
  - {name: out, role: decode, instances: 1, tp: 2, max-num-seqs: 128}
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def refused(tmp_path: Path, text: str) -> list[str]:
    """The problems of a file, each without the file's name."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        create_app(make_config(path, {}))
    return [problem.removeprefix(f"{path}:") for problem in error.value.problems]


def test_pools_take_what_they_do_not_say_from_the_top_level(tmp_path: Path) -> None:
    config = make_config(write(tmp_path, DISAGGREGATED), {})
    prefill, decode = config.all_pools
    assert (prefill.name, prefill.role, prefill.model, prefill.max_num_seqs) == ("in", "prefill", "Qwen/Qwen3-8B", 64)
    assert (decode.instances, decode.tensor_parallel_size, decode.max_num_seqs) == (1, 2, 128)


def test_a_flag_wins_over_the_file_in_every_pool(tmp_path: Path) -> None:
    config = make_config(write(tmp_path, DISAGGREGATED), {"max_num_seqs": 32, "router": "random", "tokenizer": None})
    assert [pool.max_num_seqs for pool in config.all_pools] == [32, 32]
    assert [pool.instances for pool in config.all_pools] == [2, 1]
    assert config.router == "random"


def test_a_flat_file_is_one_pool() -> None:
    [pool] = ClusterConfig(model="Qwen/Qwen3-8B", instances=3).all_pools
    assert (pool.name, pool.role, pool.model, pool.instances) == ("default", "both", "Qwen/Qwen3-8B", 3)


def test_kv_offload_is_another_way_to_write_the_tiers_of_a_pool(tmp_path: Path) -> None:
    text = "kv_offload:\n  host: {gib: 64, gb_per_s: 40}\npools:\n  - name: a\n    kv_offload: {disk: {gib: 500}}\n"
    [pool] = make_config(write(tmp_path, text), {}).all_pools
    assert (pool.host_kv_gib, pool.host_kv_gb_per_s, pool.disk_kv_gib, pool.disk_kv_gb_per_s) == (64.0, 40.0, 500.0, None)


def test_one_kv_store_is_there_for_all_pools(tmp_path: Path) -> None:
    app = create_app(make_config(write(tmp_path, DISAGGREGATED + "kv_store_gib: 100\nkv_store_gb_per_s: 25\n"), {}))
    stores = {id(instance.schedulers[0].kv._tiers[-1]) for instance in app.driver.cluster._instances}  # type: ignore[attr-defined]
    assert len(stores) == 1
    [tier] = {state.tiers for state in app.driver.cluster.snapshot()}.pop()
    # 36 layers, K and V, 8 heads of 128 values in bf16: 147,456 bytes a token
    assert (tier.name, tier.capacity_tokens) == ("store", 100 * 2**30 // 147_456)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("enable_prefix_caching: false\n", "kv_store_gib needs enable_prefix_caching: the store remembers prefixes"),
        ("pools:\n  - {name: a, enable_prefix_caching: false}\n  - {name: b}\n", "kv_store_gib needs enable_prefix_caching"),
        (
            "pools:\n  - {name: a}\n  - {name: b, kv_cache_dtype: fp8, served_model_name: [c]}\n",
            "kv_store_gib: all instances need KV of one form to share it, not Qwen/Qwen3-8B, bf16, blocks of 16; "
            "Qwen/Qwen3-8B, fp8, blocks of 16",
        ),
        ("kv_store_gb_per_s: 0\n", "kv_store_gb_per_s"),
        ("kv_store_gib: 1.0e-9\n", "KV offload tier 'store': 1.07374 bytes hold no page of 16 tokens"),
    ],
)
def test_a_kv_store_that_cannot_be_is_refused(tmp_path: Path, more: str, told: str) -> None:
    store = "" if "kv_store_gib" in more else "kv_store_gib: 100\n"
    [problem] = refused(tmp_path, "model: Qwen/Qwen3-8B\nengine: vllm\n" + store + more)
    assert told in problem


def test_the_link_between_pools_is_that_of_the_gpus_of_the_smaller_instance(tmp_path: Path) -> None:
    app = create_app(make_config(write(tmp_path, DISAGGREGATED), {}))
    gpu = app.deployment.gpu
    handoff_s = app.deployment.engine.handoff_ms * 1e-3
    network = KVLink(gpu.node_link_bytes_per_s, gpu.node_link_latency_s + handoff_s, handoff_s=handoff_s)
    assert app.kv_link == network
    layers = app.deployment.model.layers
    for words, link in (
        ("link: rdma, overlap: true", replace(network, layers=layers)),
        ("link: rdma, overlap: chunks", replace(network, chunk_tokens=app.limits.max_num_batched_tokens)),
        ("link: nvlink, overlap: false", KVLink(gpu.link_bytes_per_s, handoff_s, handoff_s=handoff_s)),
        ("bandwidth_gb_per_s: 3, latency_us: 10, handoff_ms: 2", KVLink(3e9, 1e-5 + 2e-3, handoff_s=2e-3)),
    ):
        text = f"{DISAGGREGATED}kv_transfer: {{{words}}}\n"
        assert create_app(make_config(write(tmp_path, text), {})).kv_link == link


@pytest.mark.parametrize(
    ("engine", "words", "shown"),
    [
        ("vllm", "", "decode"),  # computes the last token of the prompt again
        ("sglang", "", "admission"),
        ("trtllm", "kv_transfer: {first_token: decode}", "admission"),
        ("trtllm", "kv_transfer: {first_token: prefill}", "prefill"),
    ],
)
def test_first_tokens_come_from_decode_unless_asked_otherwise(tmp_path: Path, engine: str, words: str, shown: str) -> None:
    pools = plan(make_config(write(tmp_path, f"engine: {engine}\n{DISAGGREGATED}{words}\n"), {}))
    assert {pool.limits.first_token for pool in pools} == {shown}


@pytest.mark.parametrize(
    ("pools", "problem"),
    [
        (("tp: 8", "tp: 8"), "joins 8 GPUs, a prefill and a decode instance have 16 together"),
        (("gpu: h100_sxm", "gpu: h200_sxm"), "joins equal GPUs of one node, not H100 SXM and H200 SXM"),
    ],
)
def test_a_link_between_gpus_that_nothing_joins_is_refused(tmp_path: Path, pools: tuple[str, str], problem: str) -> None:
    prefill, decode = pools
    text = (
        "model: Qwen/Qwen3-32B\nkv_transfer: {link: gpu_link}\npools:\n"
        f"  - {{name: in, role: prefill, {prefill}}}\n  - {{name: out, role: decode, {decode}}}\n"
    )
    [found] = refused(tmp_path, text)
    assert problem in found


@pytest.mark.parametrize(
    ("decode", "form"),
    [("engine: sglang", "out: SGLang, bf16"), ("kv_cache_dtype: fp8", "out: vLLM, fp8"), ("engine: vllm@0.12", None)],
)
def test_pools_hand_over_kv_of_one_form(tmp_path: Path, decode: str, form: str | None) -> None:
    """A vLLM instance may receive from another version; not from another engine, nor another KV format."""
    text = "model: Qwen/Qwen3-32B\nweights: fp8\nengine: vllm\npools:\n  - {name: in, role: prefill}\n"
    text += f"  - {{name: out, role: decode, {decode}}}\n"
    path = write(tmp_path, text)
    if form is None:
        create_app(make_config(path, {}))
    else:
        with pytest.raises(ConfigError, match=f"one engine and kv_cache_dtype, not in: vLLM, bf16; {form}"):
            create_app(make_config(path, {}))


def test_who_counts_blocks_counts_those_of_the_engine() -> None:
    counted, exact = (create_app(ClusterConfig(**settings)).limits for settings in ({"num_gpu_blocks_override": 3000}, {}))  # type: ignore[arg-type]
    assert (counted.page_size, counted.kv_tokens, exact.page_size) == (16, 48_000, 1)


def test_events_happen_to_instances_of_pools_by_their_numbers_there(tmp_path: Path) -> None:
    text = DISAGGREGATED + (
        "on_crash: fail\n"
        "events:\n"
        "  - {at_s: 5, pool: in, action: crash, restart_after_s: 2}\n"
        "  - {at_s: 6.5, pool: out, instance: 0, action: stop}\n"
        "  - {at_s: 9, instance: 2, action: start}\n"
    )
    config = make_config(write(tmp_path, text), {})
    assert config.events[1] == EventConfig(at_s=6.5, pool="out", instance=0, action="stop")
    coming = sorted(event for event in create_app(config).driver.cluster._lifecycle._coming)
    assert [event for _, _, event in coming] == [
        LifecycleEvent(5.0, 0, "crash", 2.0),
        LifecycleEvent(5.0, 1, "crash", 2.0),
        LifecycleEvent(6.5, 2, "stop"),
        LifecycleEvent(9.0, 2, "start"),
    ]


def test_everything_wrong_with_a_file_is_told_at_once_with_line_and_place(tmp_path: Path) -> None:
    text = """\
pools:
  - name: a
    gpuu: h100_sxm
    tp: two
    role: reader
  - role: decode
    gpu: h1000
    router: random
    kv_offload: {hots: {gib: 1}, disk: {gib: lots}}
kv_transfer: {link: carrier_pigeon, bandwith_gb_per_s: 2}
events:
  - {at_s: soon, action: crash, instance: 0}
  - {action: explode, instance: 0}
"""
    problems = refused(tmp_path, text)
    for expected in (
        "3: pools[0].gpuu: unknown key (did you mean 'gpu'?)",
        "4: pools[0].tp: must be a whole number, not 'two'",
        "5: pools[0].role: role must be one of both, prefill, decode; not 'reader'",
        "6: pools[1]: name is missing",
        "9: pools[1].kv_offload.hots: unknown key (did you mean 'host'?)",
        "9: pools[1].kv_offload.disk.gib: must be a number, not 'lots'",
        "10: kv_transfer.link: must be one of gpu_link, network; not 'carrier_pigeon'",
        "10: kv_transfer.bandwith_gb_per_s: unknown key (did you mean 'bandwidth_gb_per_s'?)",
        "12: events[0].at_s: must be a number, not 'soon'",
        "13: events[1].action: must be one of crash, stop, start; not 'explode'",
    ):
        assert expected in problems, expected
    assert any(problem.startswith("7: pools[1].gpu: unknown GPU 'h1000'") for problem in problems)
    assert any(problem.startswith("8: pools[1].router: is a setting of the whole cluster") for problem in problems)
    assert len(problems) == 12


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pools: []\n", "1: pools: must be a list of pools"),
        ("pools: {a: 1}\n", "1: pools: must be a list of pools"),
        ("kv_transfer: fast\n", "1: kv_transfer: must be a block of `key: value` lines"),
        ("events:\n  - {instance: 0, action: crash}\n", "2: events[0]: at_s missing"),
        ("events:\n  - {instance: 0, action: stop, at_s: -1}\n", "2: events[0].at_s: must be at least 0, not -1"),
        ("kv_transfer: {bandwidth_gb_per_s: 0}\n", "1: kv_transfer.bandwidth_gb_per_s: must be above 0"),
        ("host_kv_gib: 1\nkv_offload: {host: {gib: 1}}\n", "2: kv_offload.host.gib: already set as host_kv_gib"),
        ("kv_offload: {host: {gib: 1, GIB: 2}}\n", "1: kv_offload.host.GIB: already set in line 1"),
        ("gpu: h1000\n", "1: gpu: unknown GPU 'h1000'"),
        ("engine: vlm\n", "1: engine: unknown engine 'vlm'"),
    ],
)
def test_a_block_that_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    [found] = refused(tmp_path, text)
    assert found.startswith(problem)


def pool(name: str, **settings: object) -> PoolConfig:
    return PoolConfig(name=name, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"pools": (pool("a"), pool("a"))}, "pools: two of them are called 'a'"),
        ({"pools": (pool("a", role="prefill"),)}, "pool 'a' has role prefill, but no pool of role decode serves Qwen"),
        ({"kv_transfer": KvTransferConfig()}, "kv_transfer is between pools of role prefill and decode"),
        (
            {"pools": (pool("a", role="prefill"), pool("b", role="decode")), "kv_transfer": KvTransferConfig(mode="both")},
            "kv_transfer.mode has no effect here: the pools have roles",
        ),
        ({"events": (EventConfig(at_s=1, action="crash"),)}, "events: each needs the instance or the pool"),
        (
            {"events": (EventConfig(at_s=1, action="crash", instance=2),)},
            "events: there is no instance 2: the last of 2 is 1",
        ),
        (
            {"pools": (pool("big"),), "events": (EventConfig(at_s=1, action="crash", pool="bg"),)},
            "events: there is no pool 'bg' (did you mean 'big'?)",
        ),
        (
            {"events": (EventConfig(at_s=1, action="stop", instance=0, restart_after_s=1),)},
            "events: restart_after_s belongs to crash",
        ),
        ({"pools": (pool("a", instances=6000), pool("b", instances=6000))}, "pools have 12,000 instances together"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        ClusterConfig(**settings)  # type: ignore[arg-type]
    [found] = error.value.problems
    assert found.startswith(problem)


def test_fixed_times_and_half_of_the_work_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=r"fixed times .* and role prefill exclude each other"):
        pool("a", role="prefill", ttft_ms=1.0)


def test_problems_of_pools_name_the_pool_and_are_told_together() -> None:
    pools = (pool("a", model="Qwen/Qwen3-235B-A22B", gpu="l40s"), pool("b", tensor_parallel_size=3), pool("c", gpu="h1000"))
    with pytest.raises(ConfigError) as error:
        create_app(ClusterConfig(pools=pools))
    problems = error.value.problems
    assert [problem[:7] for problem in problems] == ["pool a:", "pool b:", "pool c:"]


def test_two_models_cannot_share_a_name() -> None:
    pools = (pool("a", served_model_name=("chat",)), pool("b", model="Qwen/Qwen3-8B", served_model_name=("chat",)))
    with pytest.raises(ConfigError, match=r"pools a and b serve different models .* under one name, 'chat'"):
        create_app(ClusterConfig(pools=pools))


def test_a_setting_of_another_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match="schedule_policy lpm needs the sglang scheduler"):
        create_app(ClusterConfig(schedule_policy="lpm"))


BUNDLED = sorted(path.stem for path in BUNDLED_DIRECTORY.glob("*.yaml"))


@pytest.mark.parametrize("name", BUNDLED)
def test_every_bundled_file_makes_a_cluster(name: str) -> None:
    app = create_app(make_config(f"bundled:{name}", {}))
    assert app.driver.cluster.snapshot()
    assert app.max_model_len >= 32_000


def test_the_bundled_files_are_those_of_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "workloads" / "README.md").read_text(encoding="utf-8")
    assert [name for name in BUNDLED if f"`clusters/{name}.yaml`" not in text] == []


def test_an_unknown_bundled_file_is_told_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no cluster file 'failovr' is bundled \(did you mean 'failover'\?\); there are"):
        make_config("bundled:failovr", {})


@pytest.mark.parametrize(
    ("gpu", "tp", "gb_per_s"), [("h100_sxm", 1, 50), ("h100_sxm", 2, 100), ("a100_sxm", 1, 25), ("l4", 2, 50)]
)
def test_each_gpu_loads_kv_from_the_host_over_pcie_of_its_generation(gpu: str, tp: int, gb_per_s: float) -> None:
    settings = {"model": "llama-3.1-8b", "gpu": gpu, "tensor_parallel_size": tp, "host_kv_gib": 64.0}
    [pool] = plan(make_config(None, settings))
    [tier] = pool.tiers
    assert (tier.read_bytes_per_s, tier.write_bytes_per_s) == (gb_per_s * 1e9, gb_per_s * 1e9)
