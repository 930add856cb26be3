"""The KV pools that vLLM wrote into its log, beside ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accuracy.agents import QWEN, TAU
from accuracy.reduce import DEPLOYMENTS
from llmirage_server.perf.catalogue.gpus import GIB
from llmirage_server.perf.deployment import Deployment


@dataclass(frozen=True, slots=True)
class LoggedPool:
    """pool_gib: all KV memory of one GPU, windows and states too; weights_gib: 0 where the log was not published."""

    name: str
    deployment: dict[str, Any]
    pool_gib: float
    weights_gib: float
    source: str
    remark: str


RTX4090 = DEPLOYMENTS["rtx4090_llama31-8b_tp1"] | {"num_gpu_blocks_override": None}
GPT_OSS_BLOCK = 16 * 18 * 2048 / GIB  # of one of the two groups of layers
# vLLM tells tokens as blocks over those of a request of max_model_len: 125 of attention, 2 of each of three groups of states
HYBRID_BLOCKS = 125 + 3 * 2
LOGGED = (
    LoggedPool(
        "Llama-3.1-8B, RTX 4090",
        RTX4090,
        2588 * 16 * 131072 / GIB,
        0,
        "2,588 blocks (LLMServingSim's meta.json)",
        "the reserve is fitted on this one",
    ),
    LoggedPool(
        "gpt-oss-120b, H200",
        TAU | {"gpu_memory_utilization": 0.9},
        57.24,
        66.14,
        "GloriaXimingLu, gptoss_tp1_c4_1k1k.log",
        "Marlin pads the experts' 2,880 rows and columns to 2,944 and 3,072",
    ),
    LoggedPool(
        "gpt-oss-120b, H200, utilization 0.92",
        TAU,
        109473 * GPT_OSS_BLOCK,
        66.14,
        "109,473 blocks (gptoss120b_h200_tau.csv)",
        "as above",
    ),
    LoggedPool(
        "Qwen3.6-35B-A3B, H100 PCIe",
        QWEN,
        2_230_000 / 131072 * HYBRID_BLOCKS * 1056 * 20480 / GIB,
        20.4,
        "2,230,000 tokens (qwen36_rtx5090_gb10.csv); weights: spark_server_persist.log",
        "0.8 of the weights are the vision encoder's",
    ),
)


def logged_rows() -> list[list[str]]:
    """Weights and KV pool, logged and ours, in GiB."""
    rows = []
    for logged in LOGGED:
        memory = Deployment.create(**logged.deployment).memory
        weights, pool = memory.weights_bytes / GIB, memory.pool_bytes / GIB
        measured = f"{logged.weights_gib:.1f}" if logged.weights_gib else "not published"
        error = f"{(pool / logged.pool_gib - 1) * 100:+.1f}"
        rows.append([logged.name, measured, f"{weights:.1f}", f"{logged.pool_gib:.1f}", f"{pool:.1f}", error, logged.remark])
    return rows
