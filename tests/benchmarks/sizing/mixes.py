"""Thirty traffic mixes of which `size` is asked how many instances they need."""

from dataclasses import dataclass, field
from typing import Any

from llmirage_client.load.options import RunOptions
from llmirage_client.simulator.deployments import InstanceShape, PoolShape, Shape
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.traffic import Kind, RequestSource, Traffic, file_source, synthetic_source
from llmirage_client.workload.registry import load

_HEAVY_IN = "lognormal(p50=2000, p95=12000, max=60000)"
_HEAVY_OUT = "lognormal(p50=300, p95=1500, max=6000)"


@dataclass(frozen=True)
class Mix:
    """amount: requests/s, or users at once. cluster: settings of ClusterConfig. requests: of one long simulation."""

    name: str
    amount: float
    slo: str
    isl: str = "2000"
    osl: str = "500"
    turns: str = "1"
    think_s: str = "0"
    shared_prefix: int = 0
    file: str | None = None
    kind: Kind = "request_rate"
    requests: int = 30_000
    cluster: dict[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> ClusterConfig:
        settings = {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100_sxm", "weights": "bf16"}
        return ClusterConfig(**{**settings, **self.cluster})

    @property
    def shape(self) -> Shape:
        base = self.base
        sizes = base.tensor_parallel_size, base.pipeline_parallel_size, base.data_parallel_size, base.expert_parallel_size
        return InstanceShape(base.gpu, base.engine, base.weights, *sizes)

    def source(self, seed: int) -> RequestSource:
        if self.file is not None:
            return file_source(load(self.file))
        return synthetic_source(self.isl, self.osl, self.turns, self.think_s, self.shared_prefix, seed)

    def traffic(self, seed: int) -> Traffic:
        return Traffic(self.source(seed), self.kind, self.amount, RunOptions(seed=seed))


@dataclass(frozen=True)
class PoolMix(Mix):
    """A mix for separate prefill and decode instances. tps: of the candidates. pair: what answers, with its ratio."""

    tps: tuple[int, ...] = (1, 2)
    pair: PoolShape | None = None

    @property
    def shapes(self) -> list[InstanceShape]:
        base = self.base
        return [InstanceShape(base.gpu, base.engine, base.weights, tp) for tp in self.tps]

    @property
    def shape(self) -> Shape:
        assert self.pair is not None
        return self.pair


def _moe(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "weights": "auto", **more}


_USERS: dict[str, Any] = {"kind": "concurrency"}
_GPT_20B, _QWEN_30B = _moe("openai/gpt-oss-20b"), _moe("Qwen/Qwen3-30B-A3B")
_LLAMA_70B = {"model": "meta-llama/Llama-3.1-70B-Instruct", "tensor_parallel_size": 4}

MIXES = (
    Mix("single", 20, "ttft_p99<300ms, tpot_mean<12ms"),
    Mix("single, tight TPOT", 20, "tpot_p95<8ms"),
    Mix("single, short", 150, "ttft_p95<60ms", "500", "150"),
    Mix("single, long replies", 6, "tpot_p99<9ms", "100", "1500", requests=15_000),
    Mix("single, long prompts", 6, "ttft_p90<1500ms", "16000", "100", requests=20_000),
    Mix("single, shared prefix", 40, "ttft_p99<400ms, tpot_p90<15ms", "5000", "200", shared_prefix=4000),
    Mix("single, latency", 30, "latency_p95<5s", "1000", "400"),
    Mix("single, median", 30, "ttft_p50<50ms, tpot_p50<12ms", "1000", "300"),
    Mix("single, ranges", 25, "ttft_p99<400ms, tpot_p99<20ms", "100:4000", "50:600"),
    Mix("heavy prompts, mean", 20, "ttft_mean<400ms", _HEAVY_IN, "200"),
    Mix("heavy prompts, p99", 16, "ttft_p99<4s", _HEAVY_IN, "200"),
    Mix("heavy replies", 10, "tpot_p95<12ms, latency_p90<12s", "1500", _HEAVY_OUT),
    Mix("heavy both", 15, "ttft_p95<2s, tpot_p95<25ms", _HEAVY_IN, _HEAVY_OUT),
    Mix("users", 200, "ttft_p99<1s, tpot_mean<14ms", **_USERS, requests=20_000),
    Mix("users, heavy", 120, "tpot_p95<15ms", "1500", _HEAVY_OUT, **_USERS, requests=20_000),
    Mix("sessions, 10/s", 10, "ttft_p99<500ms, tpot_mean<20ms", turns="6", think_s="20", requests=40_000),
    Mix("sessions, 20/s", 20, "ttft_p99<500ms, tpot_mean<20ms", turns="6", think_s="20", requests=60_000),
    Mix("sessions, long think", 10, "ttft_p95<400ms, tpot_mean<15ms", turns="10", think_s="30", requests=60_000),
    Mix("sessions, ranges", 15, "ttft_p95<400ms, tpot_p95<20ms", "500:2000", "100:400", "2:8", "5:30", requests=60_000),
    Mix("sessions, no think", 25, "ttft_p95<300ms, tpot_mean<12ms", "1500", "200", "4", "0", requests=40_000),
    Mix("sessions, loose", 15, "ttft_p99<3s, tpot_mean<30ms", turns="4", think_s="10", requests=40_000),
    Mix("session users", 64, "ttft_p95<500ms, tpot_mean<12ms", turns="5", think_s="5", **_USERS, requests=20_000),
    Mix("coding agents", 160, "ttft_p95<500ms, tpot_mean<20ms", file="bundled:coding-agent", requests=30_000),
    Mix("flat and agentic", 60, "ttft_p95<200ms, tpot_mean<12ms", file="bundled:mixed-flat-agentic"),
    Mix("MoE 20B", 60, "ttft_p99<300ms, tpot_p95<10ms", cluster=_GPT_20B),
    Mix("MoE 30B", 20, "ttft_p99<500ms, tpot_mean<15ms", cluster=_QWEN_30B),
    Mix(
        "MoE 30B, sessions",
        15,
        "ttft_p95<500ms, tpot_mean<15ms",
        turns="5",
        think_s="15",
        requests=50_000,
        cluster=_QWEN_30B,
    ),
    Mix("MoE 20B, heavy", 25, "ttft_p95<1s, tpot_p95<15ms", _HEAVY_IN, _HEAVY_OUT, cluster=_GPT_20B),
    Mix("70B, TP4", 15, "ttft_p95<800ms, tpot_mean<25ms", cluster=_LLAMA_70B),
    Mix("SGLang, H200", 30, "ttft_p99<400ms, tpot_mean<12ms", cluster={"gpu": "h200_sxm", "engine": "sglang"}),
)

_VLLM, _SGLANG = {"engine": "vllm"}, {"engine": "sglang"}
_FEW: dict[str, Any] = {"requests": 10_000}

_70B = {**_LLAMA_70B, **_VLLM}
POOL_MIXES = (
    PoolMix("pools", 20, "ttft_p95<800ms, tpot_p95<15ms", "4000", "300", cluster=_VLLM, **_FEW),
    PoolMix("pools, long prompts", 4, "ttft_p90<3s, tpot_p90<15ms", "16000", "200", cluster=_VLLM, **_FEW),
    PoolMix("pools, long replies", 10, "ttft_p99<500ms, tpot_p99<12ms", "500", "1000", cluster=_VLLM, **_FEW),
    PoolMix("pools, tight TTFT", 15, "ttft_p99<300ms, tpot_mean<20ms", "2000", "200", cluster=_VLLM, **_FEW),
    PoolMix("pools, ranges", 20, "ttft_p95<1s, tpot_p95<15ms", "500:6000", "50:500", cluster=_VLLM, **_FEW),
    PoolMix("pools, latency", 15, "latency_p95<5s", "2000", "300", cluster=_SGLANG, **_FEW),
    PoolMix("pools, SGLang", 20, "ttft_p95<800ms, tpot_p95<12ms", "3000", "300", cluster=_SGLANG, **_FEW),
    PoolMix("pools, prefix", 30, "ttft_p95<500ms, tpot_p95<12ms", "4000", "200", shared_prefix=2000, cluster=_VLLM, **_FEW),
    PoolMix("pools, H200", 30, "ttft_p95<800ms, tpot_p95<15ms", "3000", "300", cluster={"gpu": "h200_sxm", **_VLLM}, **_FEW),
    PoolMix("pools, 70B", 5, "ttft_p95<2s, tpot_p95<30ms", "3000", "300", tps=(4, 8), cluster=_70B, **_FEW),
)
