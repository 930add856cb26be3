"""/metrics: the engines' names, sums that fit what was served, a format that Prometheus reads."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from llmirage_server.telemetry.metric_names import one_two_five
from llmirage_server.telemetry.pace import BLOCK_S, LoopWatch
from llmirage_server.telemetry.scrape import PrometheusHistogram

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
OF_THE_CLUSTER = ("llmirage:instances", "vllm:cache_config_info", "vllm:engine_sleep_state")
SAMPLE = re.compile(r'([a-z_:0-9]+)(?:\{((?:[a-z_]+="[^"]*",?)+)\})? (\S+)')


def samples(text: str) -> dict[tuple[str, str], float]:
    """Each sample by its name and its labels; all lines must be samples, HELP or TYPE."""
    found = {}
    for line in text.splitlines():
        if re.match("# (HELP|TYPE) (vllm:|sglang:|trtllm_|llmirage:)", line):
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        found[match[1], match[2] or ""] = float(match[3])
    return found


def total(found: dict[tuple[str, str], float], name: str, part: str = "", prefix: str = "vllm:") -> float:
    return sum(value for (key, labels), value in found.items() if key == prefix + name and part in labels)


def scrape(api: Any) -> dict[tuple[str, str], float]:
    response = api.request("GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return samples(response.text)


def test_before_any_request_everything_is_there_and_zero(make_api: Callable[..., Any]) -> None:
    found = scrape(make_api())
    assert {value for (key, _), value in found.items() if key not in OF_THE_CLUSTER} == {0.0}
    assert found["llmirage:instances", f'model_name="{MODEL}",state="up"'] == 2
    assert sum(value for (key, _), value in found.items() if key == "llmirage:instances") == 2
    assert total(found, "num_requests_running") == 0
    assert {labels for key, labels in found if key == "vllm:num_requests_running"} == {
        f'engine="{index}",model_name="{MODEL}"' for index in (0, 1)
    }


def test_hits_outside_the_gpus_are_counted_by_tier(make_api: Callable[..., Any]) -> None:
    small = {"num_gpu_blocks_override": 400, "router": "round_robin", "host_kv_gib": 1.0, "kv_store_gib": 1.0}
    api = make_api(ttft_ms=None, itl_ms=None, speed=float("inf"), **small)
    for _ in range(2):  # the one instance computes it, the other loads it
        api.complete("word " * 200, max_tokens=1)
    found = scrape(api)
    assert {labels.rpartition(",")[2] for key, labels in found if "kv_tier" in key} == {'tier="host"', 'tier="store"'}
    for name in ("hit", "loaded"):
        by_tier = [total(found, f"kv_tier_{name}_tokens_total", tier, "llmirage:") for tier in ("host", "store")]
        assert by_tier[0] == 0
        assert by_tier[1] >= 192  # whole blocks


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_served_is_counted(make_api: Callable[..., Any], stream: bool) -> None:
    api = make_api(ttft_ms=None, itl_ms=None, speed=float("inf"), lenient=True)
    api.complete("word " * 200, max_tokens=5, stream=stream)
    used = api.complete("word " * 200, max_tokens=11).json()["usage"]
    found = scrape(api)
    assert total(found, "prompt_tokens_total") == 2 * used["prompt_tokens"]
    assert total(found, "generation_tokens_total") == 16
    assert total(found, "request_success_total", 'finished_reason="length"') == 2
    assert total(found, "prefix_cache_queries_total") == 2 * used["prompt_tokens"]
    assert total(found, "prefix_cache_hits_total") == used["prompt_tokens_details"]["cached_tokens"] > 0
    for name, times in (("time_to_first_token_seconds", 2), ("e2e_request_latency_seconds", 2)):
        assert total(found, f"{name}_count") == total(found, f"{name}_bucket", 'le="+Inf"') == times
    assert total(found, "inter_token_latency_seconds_count") == 4 + 10
    ttft_s, decode_s = (
        total(found, f"{name}_sum") for name in ("time_to_first_token_seconds", "request_decode_time_seconds")
    )
    assert ttft_s + decode_s == pytest.approx(total(found, "e2e_request_latency_seconds_sum"))
    assert total(found, "inter_token_latency_seconds_sum") == pytest.approx(decode_s)


def test_buckets_only_grow_to_the_count(make_api: Callable[..., Any]) -> None:
    api = make_api(ttft_ms=30.0, itl_ms=20.0, speed=float("inf"))
    api.complete("Hello", max_tokens=5)
    found = scrape(api)
    buckets = {labels.rpartition('le="')[2]: value for (key, labels), value in found.items()
               if key == "vllm:inter_token_latency_seconds_bucket" and 'engine="0"' in labels}  # fmt: skip
    assert (buckets['0.01"'], buckets['0.025"'], buckets['+Inf"']) in {(0, 4, 4), (0, 0, 0)}
    assert list(buckets.values()) == sorted(buckets.values())


def test_a_running_request_shows_and_a_left_one_is_an_abort(make_api: Callable[..., Any], runner: asyncio.Runner) -> None:
    api = make_api(itl_ms=100_000.0)

    async def scenario() -> str:
        async with api.client() as client:
            body = json.dumps({"model": MODEL, "prompt": "Hello", "max_tokens": 9})
            waiting = asyncio.ensure_future(client.post("/v1/completions", content=body))
            await api.until_produced(1)
            text = (await client.get("/metrics")).text
            await client.post("/sleep")
            await waiting
            return text

    during = samples(runner.run(scenario()))
    assert total(during, "num_requests_running") == 1
    assert total(during, "generation_tokens_total") == 1
    assert total(during, "prompt_tokens_total") > 0
    assert total(during, "request_success_total") == 0
    after = scrape(api)
    assert total(after, "num_requests_running") == 0
    assert total(after, "request_success_total", 'finished_reason="abort"') == 1
    assert total(after, "generation_tokens_total") == 1
    assert not api.app.service.responses.under_way


def test_a_gateway_refuses_or_queues_and_tells_how_many(make_api: Callable[..., Any], runner: asyncio.Runner) -> None:
    settings = {"gateway_queue_depth": 1, "objective_priorities": (("batch", -1), ("chat", 2)), "max_num_seqs": 1}
    settings |= {"gateway_sheddable_max_requests": 0}
    api = make_api(gateway_queue=True, instances=1, ttft_ms=None, itl_ms=None, speed=0.01, **settings)

    async def scenario() -> tuple[httpx.Response, str]:
        async with api.client() as client:
            body = {"model": MODEL, "prompt": "Hello", "max_tokens": 900, "ignore_eos": True}

            def ask(objective: str) -> Any:
                headers = {"x-gateway-inference-objective": objective, "x-gateway-inference-fairness-id": "a%20b"}
                return client.post("/v1/completions", json=body, headers=headers)

            waiting = [asyncio.ensure_future(ask("chat")) for _ in range(4)]
            while len(api.app.service.responses.requests()) < 4:
                await asyncio.sleep(0.01)
            shed = await ask("batch")
            text = (await client.get("/metrics")).text
            await client.post("/sleep")
            await asyncio.gather(*waiting)
            return shed, text

    shed, text = runner.run(scenario())
    assert (shed.status_code, shed.json()["error"]["code"]) == (429, "rejected-saturated")
    assert shed.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
    name = "llm_d_epp_flow_control_"
    labels = f'inference_pool="{MODEL}",model_name="{MODEL}",target_model_name="{MODEL}"'
    assert text.count(name) == text.count("inference_extension_flow_control_") > 20
    stay = f'{{fairness_id="a b",priority="-1",{labels},outcome="RejectedCapacity"'
    assert f'{name}request_queue_duration_seconds_bucket{stay},le="0.0001"}} 1.0' in text
    assert f"{name}request_queue_duration_seconds_sum{stay}}} 0.0" in text
    assert re.search(name + r'queue_bytes\{fairness_id="a b",priority="2",.*\} (\d\d+\.0)', text)
    found = re.findall(name + r'queue_size\{fairness_id="a b",priority="2",(.*)\} (\d)', text)
    assert len(found) == 1
    assert found[0][0] == labels
    assert int(found[0][1]) in (2, 3)  # one runs or waits at the instance, and perhaps one more
    assert f'{name}pool_saturation{{inference_pool="{MODEL}",stage="effective"}} 1.0' in text


def test_a_stream_begins_when_the_gateway_lets_it_through(make_api: Callable[..., Any], runner: asyncio.Runner) -> None:
    settings = {"gateway_queue_depth": 1, "gateway_request_ttl_s": 1, "max_num_seqs": 1, "speed": 20.0}
    api = make_api(gateway_queue=True, instances=1, ttft_ms=None, itl_ms=None, **settings)

    async def scenario() -> list[httpx.Response]:
        async with api.client() as client:
            body = {"model": MODEL, "prompt": "Hi", "max_tokens": 900, "ignore_eos": True, "stream": True}
            return await asyncio.gather(*[client.post("/v1/completions", json=body) for _ in range(4)])

    statuses = {response.status_code: response for response in runner.run(scenario())}
    assert sorted(statuses) == [200, 429]
    assert statuses[429].json()["error"]["code"] == "rejected-ttl-expired"
    assert statuses[200].text.endswith("data: [DONE]\n\n")
    assert not api.app.service.responses.open


def test_the_decisions_of_autoscaling_are_told(make_api: Callable[..., Any]) -> None:
    settings = {"scale_on_ttft_ms": 100.0, "scale_interval_s": 1.0, "max_gpu_budget": 2, "speed": 50.0}
    api = make_api(instances=3, ttft_ms=500.0, itl_ms=10.0, **settings)
    api.post("/v1/completions", {"model": MODEL, "prompt": "Hi", "max_tokens": 400, "ignore_eos": True})
    decisions = api.request("GET", "/llmirage/autoscaling").json()["decisions"]
    late = next(decided for decided in decisions if decided["observed"]["ttft_ms"])
    assert late["observed"]["ttft_ms"] >= 500  # with the time of the front end
    assert (late["targets"], late["current"], late["desired"]) == ({"ttft_ms": 100.0}, 1, 2)
    assert late["reason"] == "ttft_ms above target, 3 is the most, 2 GPUs are the budget"
    variant = '{variant_name="default",namespace="llmirage",accelerator_type="h100_sxm"}'
    found, last = api.request("GET", "/metrics").text, decisions[-1]
    assert f"wva_desired_replicas{variant} {last['desired']}.0\n" in found
    assert f"wva_desired_ratio{variant} {last['desired'] / last['current']}\n" in found


def test_background_responses_count_too(make_api: Callable[..., Any]) -> None:
    api = make_api()
    made = api.post("/v1/responses", {"model": MODEL, "input": "Hi", "background": True, "max_output_tokens": 16}).json()
    for _ in range(100):
        if api.request("GET", f"/v1/responses/{made['id']}").json()["status"] == "incomplete":
            break
    assert total(scrape(api), "generation_tokens_total") == 16
    assert not api.app.service.responses.under_way


def test_vllm_tells_of_its_cache_and_of_what_was_asked_for(make_api: Callable[..., Any]) -> None:
    api = make_api(dialect="vllm", engine="vllm", ttft_ms=None, itl_ms=None, speed=float("inf"), instances=1)
    api.complete("word " * 200, max_tokens=5)
    used = api.complete("word " * 200, max_tokens=11, n=2).json()["usage"]
    found = scrape(api)
    [(labels, value)] = [(labels, value) for (key, labels), value in found.items() if key == "vllm:cache_config_info"]
    assert value == 1.0
    told = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    blocks = api.app.limits.kv_tokens // 16
    expected = {"block_size": "16", "num_gpu_blocks": str(blocks), "enable_prefix_caching": "True", "engine": "0"}
    assert told == expected | {
        "cache_dtype": "bf16",
        "gpu_memory_utilization": str(api.app.deployment.gpu_memory_utilization),
    }
    assert total(found, "request_params_max_tokens_sum") == 5 + 11 + 11
    assert total(found, "request_params_max_tokens_count") == 3
    assert (total(found, "request_params_n_count"), total(found, "request_params_n_sum")) == (2, 3)
    assert total(found, "request_max_num_generation_tokens_sum") == 5 + 11
    cached = total(found, "prompt_tokens_cached_total")
    assert cached >= used["prompt_tokens_details"]["cached_tokens"] > 0
    assert total(found, "request_prefill_kv_computed_tokens_sum") == total(found, "prompt_tokens_total") - cached
    inference_s, prefill_s, decode_s = (
        total(found, f"request_{part}_time_seconds_sum") for part in ("inference", "prefill", "decode")
    )
    assert inference_s == pytest.approx(prefill_s + decode_s)
    assert inference_s > 0


@pytest.mark.parametrize(("dialect", "prefix"), [("sglang", "sglang:"), ("trtllm", "trtllm_"), ("openai", "vllm:")])
def test_each_dialect_has_its_engines_names_and_llmirages(make_api: Callable[..., Any], dialect: str, prefix: str) -> None:
    found = scrape(make_api(dialect=dialect))
    assert {re.match("[a-z]+[:_]", key)[0] for key, _ in found} == {prefix, "llmirage:"}  # type: ignore[index]


def test_sglang_has_its_schedulers_and_its_tokenizers_metrics(make_api: Callable[..., Any]) -> None:
    api = make_api(dialect="sglang", ttft_ms=None, itl_ms=None, speed=float("inf"))
    api.complete("word " * 200, max_tokens=5)
    used = api.complete("word " * 200, max_tokens=11).json()["usage"]
    found = scrape(api)
    model = f'engine_type="unified",model_name="{MODEL}"'
    cached = used["prompt_tokens_details"]["cached_tokens"]
    assert found["sglang:prompt_tokens_total", model] == 2 * used["prompt_tokens"]
    assert found["sglang:generation_tokens_total", model] == 16
    assert found["sglang:num_requests_total", model] == 2
    assert found["sglang:cached_tokens_total", f'cache_source="device",{model}'] == cached > 0
    for name, times in (("time_to_first_token", 2), ("e2e_request_latency", 2), ("inter_token_latency", 14)):
        assert found[f"sglang:{name}_seconds_count", model] == times
    ranks = {labels for key, labels in found if key == "sglang:num_running_reqs"}
    assert ranks == {
        f'dp_rank="{index}",engine_type="unified",model_name="{MODEL}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
        for index in (0, 1)
    }
    rates = [value for (key, _), value in found.items() if key == "sglang:cache_hit_rate"]
    assert max(rates) == pytest.approx(cached / (2 * used["prompt_tokens"]))
    assert total(found, "max_total_num_tokens", prefix="sglang:") == 2 * api.app.limits.kv_tokens
    assert total(found, "queue_time_seconds_count", prefix="sglang:") == 2


def test_sglangs_throughput_is_that_of_what_is_under_way(make_api: Callable[..., Any], runner: asyncio.Runner) -> None:
    api = make_api(dialect="sglang", itl_ms=50.0)

    async def scenario() -> tuple[str, float]:
        async with api.client() as client:
            body = json.dumps({"model": MODEL, "prompt": "Hello", "max_tokens": 900})
            waiting = asyncio.ensure_future(client.post("/v1/completions", content=body))
            await api.until_produced(4)
            text = (await client.get("/metrics")).text
            await client.post("/sleep")
            await waiting
            return text, (await client.get("/metrics")).text

    during, after = (samples(text) for text in runner.run(scenario()))
    assert 10 < total(during, "gen_throughput", prefix="sglang:") <= 20
    assert total(during, "num_requests_total", prefix="sglang:") == 0
    assert total(after, "gen_throughput", prefix="sglang:") == 0
    assert total(after, "num_aborted_requests_total", prefix="sglang:") == 1


@pytest.mark.parametrize("path", ["/metrics", "/prometheus/metrics"])
def test_tensorrt_llm_tells_of_all_instances_together(make_api: Callable[..., Any], path: str) -> None:
    api = make_api(dialect="trtllm", ttft_ms=None, itl_ms=None, speed=float("inf"))
    api.complete("word " * 200, max_tokens=5)
    used = api.complete("word " * 200, max_tokens=11).json()["usage"]
    found = samples(api.request("GET", path).text)
    model = f'engine_type="undefined",model_name="{MODEL}"'
    assert found["trtllm_request_success_total", f'finished_reason="length",{model}'] == 2
    cached = used["prompt_tokens_details"]["cached_tokens"]
    assert found["trtllm_kv_cache_hit_rate", model] == pytest.approx(cached / (2 * used["prompt_tokens"]))
    assert found["trtllm_kv_cache_utilization", model] == 0
    for name in ("e2e_request_latency", "time_to_first_token", "time_per_output_token", "request_queue_time"):
        assert found[f"trtllm_{name}_seconds_count", model] == 2


def test_a_histogram_counts_values_up_to_each_bound() -> None:
    histogram = PrometheusHistogram((1, 2, 5))
    for value in (0.5, 1, 1.5, 7):
        histogram.add(value)
    histogram.add(4, times=10)
    assert list(histogram.buckets()) == [("1.0", 2), ("2.0", 3), ("5.0", 13), ("+Inf", 14)]
    assert (histogram.count, histogram.sum) == (14, 50)
    assert one_two_five(60) == [1, 2, 5, 10, 20, 50]


@pytest.mark.parametrize(
    ("dialect", "prefix", "expected"),
    [
        (
            "vllm",
            "vllm:",
            {
                "spec_decode_num_drafts_total": 3,
                "spec_decode_num_draft_tokens_total": 8,
                "spec_decode_num_accepted_tokens_total": 8,
                'spec_decode_num_accepted_tokens_per_pos_total{position="0"': 3,
                'spec_decode_num_accepted_tokens_per_pos_total{position="2"': 2,
                "iteration_tokens_total_count": 4,
            },
        ),
        ("sglang", "sglang:", {"spec_accept_length": 1 + 8 / 3, "spec_accept_rate": 1.0}),
        (
            "trtllm",
            "trtllm_",
            {
                "spec_decode_num_draft_tokens_total": 8,
                "spec_decode_num_accepted_tokens_total": 8,
                "spec_decode_acceptance_length": 1 + 8 / 3,
            },
        ),
    ],
)
def test_drafts_are_counted_under_the_engines_names(
    make_api: Callable[..., Any], dialect: str, prefix: str, expected: dict[str, float]
) -> None:
    model = "deepseek-ai/DeepSeek-V3"
    hardware = {"model": model, "gpu": "h200_sxm", "tensor_parallel_size": 8, "instances": 1}
    timing = {"ttft_ms": None, "itl_ms": None, "speed": float("inf")}
    api = make_api(dialect=dialect, engine=dialect, **hardware, **timing, num_speculative_tokens=3, acceptance_rate=1)
    api.complete("Hello", model=model, max_tokens=12)
    found = scrape(api)
    for name, value in expected.items():
        family, _, label = name.partition("{")
        assert total(found, family, label, prefix) == pytest.approx(value), name


def test_without_drafts_vllm_says_nothing_of_them(make_api: Callable[..., Any]) -> None:
    api = make_api(dialect="vllm", ttft_ms=None, itl_ms=None, speed=float("inf"))
    assert not any("spec_decode" in key for key, _ in scrape(api))


def test_tokens_of_steps_are_prompts_and_generated_ones(make_api: Callable[..., Any]) -> None:
    api = make_api(dialect="vllm", ttft_ms=None, itl_ms=None, speed=float("inf"), instances=1)
    used = api.complete("word " * 200, max_tokens=5).json()["usage"]
    found = scrape(api)
    assert total(found, "iteration_tokens_total_sum") == used["prompt_tokens"] + 5
    assert total(found, "iteration_tokens_total_count") == 5
    assert total(found, "iteration_tokens_total_bucket", 'le="1.0"') == 4
    assert total(found, "iteration_tokens_total_bucket", 'le="256.0"') == 5


def test_sglangs_server_info_has_the_acceptance_length_that_its_benchmark_reads(make_api: Callable[..., Any]) -> None:
    model = "deepseek-ai/DeepSeek-V3"
    hardware = {"model": model, "gpu": "h200_sxm", "tensor_parallel_size": 8, "instances": 1}
    timing = {"ttft_ms": None, "itl_ms": None, "speed": float("inf")}
    api = make_api(dialect="sglang", engine="sglang", **hardware, **timing, num_speculative_tokens=3, acceptance_rate=1)
    [state] = api.request("GET", "/get_server_info").json()["internal_states"]
    assert "avg_spec_accept_length" not in state
    api.complete("Hello", model=model, max_tokens=12)
    [state] = api.request("GET", "/get_server_info").json()["internal_states"]
    assert state["avg_spec_accept_length"] == pytest.approx(1 + 8 / 3)


# Those of vLLM 0.26.0: kubernetes-sigs/inference-perf, e2e/testdata/vllm_metric_families/v0.26.0.txt.
VLLM_FAMILIES = {
    "gauge": "cache_config_info engine_sleep_state kv_cache_usage_perc num_requests_running num_requests_waiting "
    "num_requests_waiting_by_reason",
    "counter": "estimated_flops_per_gpu estimated_read_bytes_per_gpu estimated_write_bytes_per_gpu "
    "external_prefix_cache_hits external_prefix_cache_queries generation_tokens mm_cache_hits mm_cache_queries "
    "num_preemptions prefix_cache_hits prefix_cache_queries prompt_tokens_by_source prompt_tokens_cached prompt_tokens "
    "request_success",
    "histogram": "e2e_request_latency_seconds inter_token_latency_seconds iteration_tokens_total "
    "request_decode_time_seconds request_generation_tokens request_inference_time_seconds "
    "request_max_num_generation_tokens request_params_max_tokens request_params_n request_prefill_kv_computed_tokens "
    "request_prefill_time_seconds request_prompt_tokens request_queue_time_seconds "
    "request_time_per_output_token_seconds time_to_first_token_seconds",
}


def test_prometheus_client_reads_every_family_of_vllm(make_api: Callable[..., Any]) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    api = make_api(dialect="vllm", ttft_ms=None, itl_ms=None, speed=float("inf"))
    api.complete("word " * 200, max_tokens=5)
    families = [
        each
        for each in parser.text_string_to_metric_families(api.request("GET", "/metrics").text)
        if each.name.startswith("vllm:")
    ]
    kinds: dict[str, set[str]] = {}
    for family in families:
        kinds.setdefault(family.type, set()).add(family.name.removeprefix("vllm:"))
        assert all(
            {"engine", "model_name"} <= sample.labels.keys() for sample in family.samples if "info" not in sample.name
        )
    assert kinds == {kind: set(names.split()) for kind, names in VLLM_FAMILIES.items()}


def test_prompt_tokens_are_told_by_source(make_api: Callable[..., Any]) -> None:
    small = {"num_gpu_blocks_override": 400, "router": "round_robin", "kv_store_gib": 1.0}
    api = make_api(ttft_ms=None, itl_ms=None, speed=float("inf"), lenient=True, **small)
    for _ in range(3):  # one instance computes it, the other loads it, the first has it
        used = api.complete("word " * 200, max_tokens=1).json()["usage"]
    found, prompt = scrape(api), used["prompt_tokens"]
    cached = used["prompt_tokens_details"]["cached_tokens"]
    computed, local, external = (
        total(found, "prompt_tokens_by_source_total", f'source="{source}"')
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    )
    assert (local, external) == (cached, cached)
    assert computed + local + external == total(found, "prompt_tokens_total") == 3 * prompt
    assert total(found, "external_prefix_cache_hits_total") == external
    assert total(found, "external_prefix_cache_queries_total") == 3 * prompt - local


def test_a_known_image_hits_the_cache_of_media(make_api: Callable[..., Any]) -> None:
    api = make_api(dialect="vllm")
    for url in ("a", "b", "a"):
        image = {"type": "image_url", "image_url": {"url": f"https://example.com/{url}.png"}}
        api.post("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": [image]}]})
    found = scrape(api)
    assert (total(found, "mm_cache_queries_total"), total(found, "mm_cache_hits_total")) == (3, 1)


@pytest.mark.parametrize(("level", "state"), [("1", "weights_offloaded"), ("2", "discard_all")])
def test_the_sleep_state_is_told(make_api: Callable[..., Any], level: str, state: str) -> None:
    def states() -> set[str]:
        found = scrape(api)
        return {labels for (key, labels), value in found.items() if key == "vllm:engine_sleep_state" and value}

    api = make_api(dialect="vllm", instances=1)
    awake = states()
    assert {label.partition(",")[0] for label in awake} == {'sleep_state="awake"'}
    api.request("POST", f"/sleep?level={level}")
    assert {label.partition(",")[0] for label in states()} == {f'sleep_state="{state}"'}
    api.request("POST", "/wake_up")
    assert states() == awake


def test_work_of_a_gpu_is_estimated_from_shapes(make_api: Callable[..., Any]) -> None:
    """A dense model whose one request computes 99 + 10 tokens: 2 operations a weight and token, weights read each step."""
    model = "Qwen/Qwen3-32B"
    api = make_api(dialect="vllm", engine="vllm", model=model, ttft_ms=None, itl_ms=None, speed=float("inf"), instances=1)
    used = api.complete("word " * 99, model=model, max_tokens=11).json()["usage"]
    found, spec = scrape(api), api.app.deployment.model
    prompt = used["prompt_tokens"]
    layers = spec.active_parameters - 2 * spec.embedding_weights
    context = sum(range(1, prompt + 11))
    flops = 2 * layers * (prompt + 10) + 2 * spec.embedding_weights * 11 + 4 * 64 * 64 * 128 * context
    assert total(found, "estimated_flops_per_gpu_total") == pytest.approx(flops)
    weights = 11 * api.app.deployment.memory.weights_bytes
    assert weights < total(found, "estimated_read_bytes_per_gpu_total") < 1.02 * weights
    kv = (prompt + 10) * api.app.deployment.kv_bytes_per_token
    assert kv < total(found, "estimated_write_bytes_per_gpu_total") < 20 * kv


def test_only_late_wake_ups_count() -> None:
    ready = False
    watch = LoopWatch(lambda: ready)
    assert not watch.late(0.5, 0.5)
    ready = True
    assert [watch.late(late_s, 1.0) for late_s in (0.0, BLOCK_S, 0.11, 3.0, 0.2)] == [False, False, True, True, True]
    assert not watch.late(5.0, 0.01)  # the machine was busy, not this process
    assert (watch.blocks, watch.longest_s) == (3, 3.0)
    assert "\nllmirage:event_loop_blocks_total 3.0\n" in watch.exposition()
    assert "\nllmirage:event_loop_block_seconds_max 3.000000\n" in watch.exposition()


def test_a_loop_that_is_held_up_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch()

    async def held_up() -> None:
        watch.start()
        await asyncio.sleep(0)
        until_s = time.process_time() + 3 * BLOCK_S
        while time.process_time() < until_s:
            pass
        while not watch.blocks:
            await asyncio.sleep(0.01)
        watch.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(held_up())
    assert "held up" in caplog.text


def test_the_metrics_of_a_server_have_the_counts(api: object) -> None:
    assert "llmirage:event_loop_blocks_total 0.0" in api.request("GET", "/metrics").text  # type: ignore[attr-defined]
