"""The verdict on an endpoint's prefix cache, of simulated servers whose caches are as they are told."""

from typing import Any

import pytest
from made_runs import record

import llmirage
from llmirage_client.measure.mismatch import cache_verdict

ENGINE = {"engine": "vllm", "model": "Qwen/Qwen3-8B", "gpu": "h100_sxm", "speed": "max"}
LOAD: dict[str, Any] = {"isl": 400, "osl": 8, "turns": 6, "requests": 240, "concurrency": 4, "set": {"verify_cache": True}}


@pytest.mark.parametrize(
    ("cluster", "verdict"),
    [
        ({"instances": 2, "router": "session"}, "fine"),
        ({"instances": 1, "enable_prefix_caching": False}, "off"),
        ({"instances": 6, "router": "random"}, "scattered"),
        ({"instances": 1, "num_gpu_blocks_override": 300, "max_model_len": 4096}, "evicted"),
        ({"instances": 1, "num_gpu_blocks_override": 250, "max_model_len": 3000}, "evicted"),
        ({"instances": 5, "router": "round_robin"}, "scattered"),  # one more than users: none stays at an instance
        ({"instances": 7, "router": "round_robin"}, "scattered"),
        ({"instances": 3, "router": "power_of_two"}, "scattered"),
    ],
)
def test_the_verdict_names_what_is_wrong(cluster: dict[str, Any], verdict: str) -> None:
    with llmirage.Server(port=0, **ENGINE, **cluster) as server:
        report = llmirage.run(url=server.base_url, **LOAD)
    found = report.summary["cache"]
    assert found["verdict"] == verdict, found
    assert any(note.startswith("Prefix cache: ") for note in report.notes)


def sent(*cached: int | None, prompt: int = 2000) -> list[Any]:
    """A conversation of one growing prompt, one request after the other, with these cached tokens."""
    pairs = []
    for turn, count in enumerate(cached):
        one = record(turn=turn, start_s=float(turn), prompt=prompt, cached=count)
        if count is None:
            one.exchange.usage = {"prompt_tokens": prompt, "completion_tokens": 11}
        pairs.append((one, {"messages": [{"role": "user", "content": "word " * 2000}]}))
    return pairs


@pytest.mark.parametrize(
    ("cached", "prompt", "counters", "verdict", "counted_by"),
    [
        ((0, 2000, 2000), 2000, None, "fine", "usage"),
        ((0, 0, 0), 2000, None, "off", "usage"),
        ((0, 10, 0), 2000, None, "scattered", "usage"),  # a cache that is off has none at all
        ((0, 0, 0), 2000, 3900, "fine", "/metrics"),  # usage says 0 where it says nothing
        ((None, None, None), 2000, None, "not reported", None),
        ((None, None, None), 2000, 0, "off", "/metrics"),
        ((None, None, None), 2000, 1500, "too few hits", "/metrics"),
        ((0, 0, 0), 200, None, "not reported", None),  # hosted APIs do not cache so little
        ((0,), 2000, None, "nothing to judge", None),
    ],
)
def test_what_usage_and_metrics_say(
    cached: tuple[int | None, ...], prompt: int, counters: int | None, verdict: str, counted_by: str | None
) -> None:
    found = cache_verdict(sent(*cached, prompt=prompt), counters)
    assert (found.verdict, found.counted_by) == (verdict, counted_by)
    assert found.notes


def test_only_prompts_whose_first_token_had_come_count() -> None:
    pairs = sent(0, 2000)
    pairs[1][0].exchange.start_s = pairs[0][0].exchange.token_s[0] - 0.01
    assert cache_verdict(pairs, None).verdict == "nothing to judge"
