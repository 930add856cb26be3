"""What follows from `stream_interval` of an instance."""

import pytest

from llmirage_server.cluster.limits import StreamInterval
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.assembly import front_end_of
from llmirage_server.config.planning import ServedPool, plan

MTP = {"model": "deepseek-ai/DeepSeek-V3", "gpu": "h200_sxm", "tensor_parallel_size": 8, "num_speculative_tokens": 1}


def planned(**settings: object) -> ServedPool:
    [pool] = plan(ClusterConfig(**{"model": "Qwen/Qwen3-8B", **settings}))  # type: ignore[arg-type]
    return pool


def test_engines_count_from_the_first_token_or_from_the_one_behind_it() -> None:
    assert planned().limits.stream is None
    assert planned(stream_interval=10).limits.stream == StreamInterval(10)
    assert planned(stream_interval=10, engine="sglang").limits.stream == StreamInterval(10)
    assert planned(stream_interval=10, engine="trtllm").limits.stream == StreamInterval(10, from_start=True)
    with pytest.raises(ConfigError, match="stream_interval must be at least 1"):
        planned(stream_interval=0)


def test_vllm_counts_tokens_and_the_others_steps() -> None:
    drafted = MTP | {"stream_interval": 10, "acceptance_rate": 0.8}
    found = {engine: planned(engine=engine, **drafted).limits.stream for engine in ("vllm", "sglang", "trtllm")}
    assert found == {"vllm": StreamInterval(10), "sglang": StreamInterval(18), "trtllm": StreamInterval(18, from_start=True)}


def test_the_front_end_is_busy_with_chunks() -> None:
    for engine, token_s in (("trtllm", 0.0), ("sglang", 46e-6)):
        one, ten = planned(engine=engine), planned(engine=engine, stream_interval=10)
        output_s = [front_end_of(pool.deployment.engine, pool.limits).output_s for pool in (one, ten)]
        assert output_s == pytest.approx([token_s, token_s / 10])
