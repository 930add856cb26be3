"""`llmirage step`: the table, the JSON, and what it says to a mistake."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llmirage_server.commands.step import step
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_server.perf.steps.step_model import StepBatch

EXAMPLE = (
    "--model Qwen/Qwen3-32B --gpu h100_sxm --engine vllm --tp 2 --weights fp8 --kv fp8 --decode 64@4096 --prefill 2048@0"
)


def run(line: str) -> Result:
    return CliRunner().invoke(step, line.split())


def explained(line: str) -> dict[str, Any]:
    result = run(f"{line} --json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_json_is_the_step_of_the_deployment() -> None:
    found = explained(EXAMPLE)
    deployment = Deployment.create("Qwen3-32B", "h100", tp=2, weights="fp8", kv_cache_dtype="fp8")
    assert found["step_ms"] == pytest.approx(1e3 * deployment.step_model().step_s([(2048, 0)], [4096] * 64))
    assert sum(op["ms"] for op in found["ops"]) == pytest.approx(found["step_ms"])
    assert sum(op["share"] for op in found["ops"]) == pytest.approx(1)
    for op in found["ops"]:
        assert {"name", "ms", "bound", "flops", "bytes", "ideal_ms"} <= set(op)
        assert op["bound"] in ("memory", "compute", "launch", "network")
        assert 0 <= op["ideal_ms"] <= op["ms"]
    memory = deployment.memory
    assert found["memory"]["weights_gb"] == pytest.approx(memory.weights_bytes / 1e9)
    assert found["memory"]["kv_tokens"] == memory.kv_tokens
    assert found["memory"]["kv_gb"] == pytest.approx(memory.kv_tokens * memory.kv_bytes_per_token / 1e9, rel=1e-4)


def test_flops_are_two_for_each_weight_and_token() -> None:
    found = explained(EXAMPLE)
    flops = {op["name"]: op["flops"] for op in found["ops"]}
    tokens = 2048 + 64
    assert flops["mlp gate and up"] == 64 * 2 * tokens * 5120 * 2 * 25_600 / 2
    assert flops["lm_head"] == 2 * 65 * 5120 * 151_936 / 2
    assert flops["prefill attention"] == pytest.approx(64 * 4 * 128 * 32 * 2048 * 2049 / 2)


def test_the_table_shows_every_operation_and_the_memory() -> None:
    result, found = run(EXAMPLE), explained(EXAMPLE)
    assert result.exit_code == 0
    assert result.stdout.startswith("Qwen/Qwen3-32B on 2x H100 SXM, fp8 weights, fp8 KV, vLLM\n")
    assert "64 sequences decoding at 4,096 tokens, a chunk of 2,048 prompt tokens" in result.stdout
    lines = result.stdout.splitlines()
    for op in found["ops"]:
        assert any(line.startswith(f"{op['name']} ") and op["bound"] in line for line in lines)
    assert f"{found['memory']['kv_tokens']:,} tokens of 64 KiB" in result.stdout
    assert "fitted: gemm fp8" in result.stdout
    low, high = found["band"]["90"]
    assert low * high == pytest.approx(found["step_ms"] ** 2)
    assert f"band: 90 % of measured TPOT within {low:.3g} to {high:.3g} ms, of" in result.stdout
    assert max(map(len, lines)) < 160


def test_decodes_and_chunks_may_be_repeated() -> None:
    found = explained("--model Qwen3-8B --gpu h100 --decode 2@100 --decode 3@2_000 --prefill 10@0 --prefill 20@1,000")
    deployment = Deployment.create("Qwen3-8B", "h100")
    whole = deployment.step_model().step_s([(10, 0), (20, 1000)], [100, 100, 2000, 2000, 2000])
    assert found["step_ms"] == pytest.approx(1e3 * whole)
    assert found["decode"] == [{"sequences": 2, "context": 100}, {"sequences": 3, "context": 2000}]


def test_kernels_of_experts_can_be_chosen() -> None:
    line = "--model gpt-oss-120b --gpu h100 --tp 2 --decode 64@4096"
    auto, marlin = (explained(line + more)["step_ms"] for more in ("", " --moe-backend marlin"))
    deployment = Deployment.create("gpt-oss-120b", "h100", tp=2, moe_backend="marlin")
    assert marlin == pytest.approx(1e3 * deployment.step_model().step_s([], [4096] * 64))
    assert marlin != pytest.approx(auto)


def test_every_attention_rank_gets_the_batch_and_every_stage_its_time() -> None:
    ranks = explained("--model DeepSeek-V3 --gpu h200 --engine sglang --dp 8 --ep 8 --decode 32@8192")
    deployment = Deployment.create("DeepSeek-V3", "h200", engine="sglang", dp=8, ep=8)
    times = deployment.step_model().stages_s([StepBatch((), [8192] * 32)] * 8)
    assert ranks["step_ms"] == pytest.approx(1e3 * sum(times))
    assert ranks["tokens"] == 256
    stages = explained("--model Llama-3.1-405B --gpu h100 --tp 8 --pp 2 --decode 8@1000")
    assert len(stages["stages_ms"]) == 2
    assert sum(stages["stages_ms"]) == pytest.approx(stages["step_ms"])
    table = run("--model Llama-3.1-405B --gpu h100 --tp 8 --pp 2 --decode 8@1000").stdout
    assert "on 2 nodes, tp 8, pp 2" in table
    assert "pipeline stages: " in table


def test_speculation_shows_who_drafts() -> None:
    mtp = explained("--model DeepSeek-V3 --gpu h200 --tp 8 --decode 8@1000 --num-speculative-tokens 2")
    assert any(op["name"] == "draft joining projection" for op in mtp["ops"])
    small = explained("--model Llama-3.1-70B --gpu h100 --tp 4 --decode 8@1000 --speculate 3 --draft-model Llama-3.1-8B")
    assert next(op["calls"] for op in small["ops"] if op["name"] == "draft mlp down") == 3 * 32


def test_measured_tables_give_one_sum_beside_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    class Measured:
        ranks, stages = 1, 1

        def step_s(self, prefill: Any, decode_contexts: Any) -> float:
            return 0.020

        def stages_s(self, batches: Any) -> list[float]:
            return [0.020]

    monkeypatch.setattr("llmirage_server.perf.steps.silicon.silicon_step_model", lambda *_, **__: Measured())
    found = explained("--model Qwen3-8B --gpu h100 --decode 10@1000 --perf-model silicon")
    host_ms = 1e3 * find_engine("vllm").host_s(math.inf, 10)
    assert found["step_ms"] == pytest.approx(20)
    assert {op["name"]: op["ms"] for op in found["ops"]} == {
        "kernels, from measured tables": pytest.approx(20 - host_ms),
        "host": pytest.approx(host_ms),
    }
    roofline = explained("--model Qwen3-8B --gpu h100 --decode 10@1000")
    assert found["ideal_ms"] == pytest.approx(roofline["ideal_ms"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--model Qwen3-8B --gpu h100", "give at least one --decode N@CONTEXT or --prefill TOKENS@CONTEXT"),
        ("--model Qwen3-8B --gpu h100 --decode 64", "'64' is not of the form N@CONTEXT, two whole numbers"),
        ("--model Qwen3-8B --gpu h100 --decode 0@5", "'0@5': 0 is not between 1 and 10,000,000"),
        ("--model Qwen3-8B --gpu h100 --prefill 5@x", "'5@x' is not of the form TOKENS@CONTEXT"),
        (
            "--model Qwen3-8B --gpu h100 --decode 1@1 --draft-model Qwen3-0.6B",
            "--draft-model needs --num-speculative-tokens N",
        ),
        (
            "--model Qwen3-8C --gpu h100 --decode 1@1",
            "llmirage step: model: unknown model 'Qwen3-8C'; did you mean Qwen/Qwen3-8B",
        ),
        ("--model Llama-3.1-70B --gpu h100 --decode 1@1", "; it needs tp 2"),
        ("--model Qwen3-30B-A3B --gpu h100 --moe-backend trtllm --decode 1@1", "moe_backend trtllm: measured beside"),
        (
            "--model Qwen3-8B --gpu h100 --moe-backend marlin --decode 1@1",
            "moe_backend has no effect here: it needs a model with",
        ),
        ("--model Qwen3-8B --gpu h100 --tp 5 --decode 1@1", "tp 5 does not divide the 32 attention heads"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(line: str, words: str) -> None:
    result = run(line)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_what_could_not_be_otherwise_is_a_note() -> None:
    line = "--model Qwen3-8B --gpu h100 --no-peer-to-peer --decode 1@1"
    note = "peer_to_peer has no effect here: it needs an instance of several GPUs."
    assert f"Note: {note}" in run(line).stdout
    assert json.loads(run(f"{line} --json").stdout)["notes"] == [note]


def test_everything_wrong_is_told_at_once() -> None:
    lines = run("--model Qwen9 --gpu h1000 --engine vlm --kv int3 --weights fp7 --decode 1@1").stderr.splitlines()
    assert len(lines) == 5
    named = [line.removeprefix("llmirage step: ").partition(": unknown ")[0] for line in lines]
    assert named == ["model", "gpu", "engine", "weights", "kv_cache_dtype"]


def test_help_needs_no_performance_model() -> None:
    code = (
        "import sys; from llmirage_server.commands.step import step\n"
        "try: step(['--help'])\n"
        "except SystemExit: pass\n"
        "loaded = {m for m in sys.modules if m.startswith(('llmirage_server.perf', 'numpy', 'yaml', 'transformers'))}\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent, capture_output=True)


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        ("--decode 200@100000", "it needs 20,000,000 tokens of KV cache, and there is room for 438,631"),
        ("--prefill 1000@200000", "201,000 tokens are more than the model's context of 131,072"),
        ("--decode 2000@10", "2,000 sequences are more than max_num_seqs, 1,024"),
        ("--prefill 9000@0", "9,000 new tokens are more than max_num_batched_tokens, 8,192"),
        (
            "--prefill 1000@0 --decode 30@9 --max-num-batched-tokens 1024",
            "1,030 new tokens are more than max_num_batched_tokens, 1,024",
        ),
        ("--engine sglang --prefill 9000@0", "9,000 new tokens are more than max_num_batched_tokens, 8,192"),
    ],
)
def test_a_step_that_no_engine_forms_says_so_above_its_times(batch: str, why: str) -> None:
    step = f"--model Llama-3.1-8B-Instruct --gpu h100 {batch}"
    told = run(step).stdout.splitlines()
    assert f"No engine forms this step: {why}" in told[:4]
    assert why in json.loads(run(f"{step} --json").stdout)["impossible"]


def test_a_step_that_engines_form_says_nothing_of_the_kind() -> None:
    assert "No engine forms" not in run("--model Qwen3-8B --gpu h100 --decode 8@100 --prefill 512@0").stdout
    alone = "--model Qwen3-8B --gpu h100 --engine sglang --max-num-batched-tokens 512 --decode 8@100 --prefill 512@0"
    assert "No engine forms" not in run(alone).stdout  # SGLang limits prompt tokens alone
