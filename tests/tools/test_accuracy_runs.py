"""Files of measured runs: what is read, what is refused, and how the labels of the table of real runs are put right."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from accuracy.closed_loop import Prediction, predict
from accuracy.errors import Spread
from accuracy.reduce import longest_prefix
from accuracy.runs import MeasuredRun, RunsError, load_runs, save_runs
from accuracy.truth import find_outliers, find_suspects, put_right, read_truth

GOOD = "engine,model,gpu,isl,osl,concurrency,ttft_ms,tpot_ms\nvllm,m,h100,1024,128,8,50,10\n"
TRUTH_COLUMNS = (
    "id,origin,backend,backend_version,model_path,system,precision,isl,osl,concurrency,tp_size,pp_size,attention_dp_size,"
    "moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms"
)


def run(**changes: object) -> MeasuredRun:
    return replace(MeasuredRun("vllm", "org/m", "h100_sxm", 1000, 101, 8, 50.0, 10.0), **changes)  # type: ignore[arg-type]


def problems_of(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "my.csv"
    file.write_text(text)
    with pytest.raises(RunsError) as caught:
        load_runs(file)
    return [problem.removeprefix(f"{file}") for problem in caught.value.problems]


def test_latency_is_the_first_token_and_a_tpot_for_each_other() -> None:
    assert run().latency_ms == 50 + 100 * 10


def test_columns_that_are_not_there_have_defaults(tmp_path: Path) -> None:
    file = tmp_path / "my.csv"
    file.write_text(GOOD)
    (only,) = load_runs(file)
    assert (only.tp, only.weights, only.shortest, only.max_num_seqs) == (1, "auto", 1.0, None)


def test_runs_come_back_as_they_were_written(tmp_path: Path) -> None:
    runs = [run(id="a", tp=4, max_num_seqs=64), run(id="b", shortest=0.8, kv_cache_dtype="fp8")]
    save_runs(tmp_path / "runs.csv.gz", runs)
    assert load_runs(tmp_path / "runs.csv.gz") == runs


SGLANG = {"engine": "sglang", "model": "Qwen/Qwen3-8B", "tp": 2}


@pytest.mark.parametrize(
    ("settings", "metric"),
    [
        ({**SGLANG, "max_prefill_tokens": 1000}, "ttft_ms"),
        ({**SGLANG, "enable_mixed_chunk": 1}, "tpot_ms"),
        ({**SGLANG, "allreduce_fusion": 1}, "tpot_ms"),
        ({"engine": "trtllm", "model": "Qwen/Qwen3-8B", "batch_wait_timeout_iters": 20}, "ttft_ms"),
        ({"model": "openai/gpt-oss-120b", "gpu": "b200_sxm", "mxfp4_activations": "fp8"}, "tpot_ms"),
        ({"engine": "trtllm", "model": "openai/gpt-oss-20b", "dp": 2, "settings": "InferenceX a_trt.sh"}, "ttft_ms"),
    ],
)
def test_a_setting_of_a_script_has_an_effect_that_defaults_have_not(settings: dict[str, object], metric: str) -> None:
    [last] = [name for name in settings if name not in (*SGLANG, "gpu", "dp")]
    plain = {name: value for name, value in settings.items() if name != last}
    settings, plain = {"shortest": 0.5, **settings}, {"shortest": 0.5, **plain}  # else all requests end together
    known, without = predict(run(**settings)), predict(run(**plain))
    assert not known.problem
    assert getattr(known, metric) != getattr(without, metric)
    by_default = predict(run(**settings), "default settings")
    assert getattr(by_default, metric) == getattr(predict(run(**plain), "default settings"), metric)


@pytest.mark.parametrize(
    ("script", "labels", "parallelism"),
    [
        ("gptoss_fp4_h200_trt.sh", {"tp": 4, "ep": 2}, (2, 1, 2)),
        ("gptoss_fp4_h200_trt.sh", {"tp": 4, "ep": 4}, (4, 1, 4)),
        ("dsr1_fp4_b200_trt.sh", {"tp": 8, "moe_backend": "cutlass"}, (1, 8, 8)),
        ("dsr1_fp4_b200_trt.sh", {"tp": 8, "osl": 1024, "concurrency": 16}, (8, 1, 8)),
        ("dsr1_fp4_b200_trt.sh", {"tp": 8, "osl": 8192, "concurrency": 16}, (8, 1, 1)),
        ("dsr1_fp4_b200_trt.sh", {"tp": 4, "concurrency": 64, "engine_version": "1.2.0"}, (4, 1, 1)),
    ],
)
def test_parallelism_is_that_of_the_script(script: str, labels: dict[str, object], parallelism: tuple[int, ...]) -> None:
    right = put_right(run(**{"engine": "trtllm", "engine_version": "1.1", "settings": f"InferenceX {script}", **labels}))
    assert (right.tp, right.dp, right.ep) == parallelism


def test_every_problem_is_named_with_its_line_and_field(tmp_path: Path) -> None:
    text = GOOD + "vllmm,m,h100,x,128.5,8,-50,\nvllm,m,h100,1024,128\n"
    assert problems_of(tmp_path, text) == [
        ":3: engine: unknown engine 'vllmm'; choices: vllm, sglang, trtllm",
        ":3: isl: 'x' is not a number",
        ":3: osl: '128.5' is not a whole number",
        ":3: ttft_ms: must be above 0, not -50",
        ":3: tpot_ms: must not be empty",
        ":4: the row has more or fewer cells than the header",
    ]


def test_missing_and_unknown_columns_are_named(tmp_path: Path) -> None:
    first, second = problems_of(tmp_path, "engine,model,gpu,isl,osl,concurrency,ttft_ms,tpot\n")
    assert first == ":1: tpot_ms: the column is missing"
    assert second.startswith(":1: tpot: unknown column; columns: engine, model, gpu")


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    assert problems_of(tmp_path, GOOD.splitlines()[0] + "\n") == [": has no rows"]


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunsError, match="cannot be read: No such file or directory"):
        load_runs(tmp_path / "none.csv")


def truth(tmp_path: Path, *rows: str) -> Path:
    file = tmp_path / "silicon_dev.csv"
    file.write_text("\n".join([TRUTH_COLUMNS, *rows]) + "\n")
    return file


R1 = "trtllm,1.0,deepseek-ai/DeepSeek-R1,h200_sxm,fp8,1024,1024"


def test_products_of_tensor_and_expert_parallelism_are_undone(tmp_path: Path) -> None:
    file = truth(
        tmp_path,
        f"2026_a,x,{R1},16,64,1,1,8,8,300,10",
        f"2026_b,x,{R1},32,1,1,64,8,8,300,20",
        "2026_c,x,vllm,1,MiniMaxAI/MiniMax-M2.5,b300_sxm,fp4,1024,1024,8,2,1,2,1,4,90,8",
        "2026_d,x,vllm,1,MiniMaxAI/MiniMax-M2.5,h100_sxm,fp8,1024,1024,8,4,1,4,1,16,95,9",
    )
    runs, dropped = read_truth(file)
    assert not dropped
    assert {r.id: (r.tp, r.dp, r.ep) for r in runs} == {
        "2026_a": (8, 1, 8),
        "2026_b": (1, 8, 8),
        "2026_c": (1, 2, 2),
        "2026_d": (4, 1, 4),
    }


def test_of_two_copies_the_one_with_a_plausible_label_stays(tmp_path: Path) -> None:
    file = truth(tmp_path, f"2026_a,x,{R1},16,64,1,1,8,8,300,10", f"2026_b,x,{R1},16,8,1,1,1,8,300,10")
    runs, dropped = read_truth(file)
    assert [r.id for r in runs] == ["2026_b"]
    assert [d.id for d in dropped] == ["2026_a"]


def test_settings_of_the_public_scripts_are_added(tmp_path: Path) -> None:
    row = "2026_a,x,vllm,0.19,MiniMaxAI/MiniMax-M2.5,b300_sxm,fp8,8192,1024,8,4,1,1,4,1,90,8"
    ((only,), _) = read_truth(truth(tmp_path, row))
    assert (only.kv_cache_dtype, only.max_num_batched_tokens, only.weights, only.shortest) == (
        "fp8",
        16384,
        "fp8_block",
        0.8,
    )


def test_sweeps_of_nvidia_have_the_settings_that_its_generator_writes(tmp_path: Path) -> None:
    qwen = "a,x,trtllm,1.0.0rc3,Qwen/Qwen3-235B-A22B-FP8,h100_sxm,fp8,1024,128,8,4,1,1,1,4,200,17"
    llama = "b,x,trtllm,1.0.0rc3,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,,1024,128,8,1,1,1,1,1,130,8"
    runs, _ = read_truth(truth(tmp_path, qwen, llama))
    found = {(r.max_num_batched_tokens, r.enable_chunked_prefill, r.async_scheduling) for r in runs}
    assert found == {(2560, 0, 0)}  # 8 + 1024 + 1500 in blocks of 32
    assert [r.max_num_seqs for r in runs] == [8, 7]


def test_lengths_of_sweeps_that_are_not_inference_max_are_fixed(tmp_path: Path) -> None:
    row = "meta_a,internal sweep,trtllm,1.0,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,,1024,128,8,1,1,,1,1,90,8"
    ((only,), _) = read_truth(truth(tmp_path, row))
    assert (only.shortest, only.weights) == (1.0, "bf16")


def test_a_run_slower_than_a_busier_one_is_an_outlier() -> None:
    slow, busy = run(id="slow", tpot_ms=16.0), run(id="busy", concurrency=16, tpot_ms=12.0)
    assert find_outliers([slow, busy]) == {"slow"}
    assert find_outliers([run(id="a", tpot_ms=14.0), busy]) == set()


def test_the_faster_of_two_equal_deepseek_runs_is_suspect() -> None:
    same = {"model": "deepseek-ai/DeepSeek-R1", "gpu": "b200_sxm"}
    assert find_suspects([run(id="a", tpot_ms=8.8, **same), run(id="b", tpot_ms=6.7, **same)]) == {"b"}
    assert find_suspects([run(id="a"), run(id="b", tpot_ms=5.0)]) == set()


def test_another_version_is_no_repeat_of_a_run() -> None:
    same = {"model": "deepseek-ai/DeepSeek-R1", "gpu": "b200_sxm"}
    older = run(id="a", tpot_ms=16.0, engine_version="0.5.5", **same)
    assert find_suspects([older, run(id="b", tpot_ms=10.0, engine_version="0.5.9", **same)]) == set()
    assert find_outliers([older, run(id="b", tpot_ms=10.0, engine_version="0.5.9", **same)]) == set()


@pytest.mark.parametrize(
    ("version", "isl", "clients", "speculation", "max_num_seqs"),
    [
        ("0.5.9", 8192, 4, "", 128),
        ("0.5.9", 8192, 8, "mtp", 512),
        ("0.5.9", 1024, 64, "", 128),
        ("0.5.6", 8192, 64, "", 128),
    ],
)
def test_points_that_ran_with_drafts_alone_are_known_by_their_clients(
    tmp_path: Path, version: str, isl: int, clients: int, speculation: str, max_num_seqs: int
) -> None:
    row = f"2026_a,x,sglang,{version},deepseek-ai/DeepSeek-R1,b200_sxm,fp8,{isl},1024,{clients},8,1,1,8,1,600,10"
    ((only,), _) = read_truth(truth(tmp_path, row))
    assert (only.speculation, only.max_num_seqs) == (speculation, max_num_seqs)


def test_sglang_until_the_end_of_2025_split_experts_in_fp4_over_all_gpus(tmp_path: Path) -> None:
    old = "2026_a,x,sglang,,deepseek-ai/DeepSeek-R1,b200_sxm,fp4,1024,1024,4,4,1,1,4,1,300,9"
    newer = "2026_b,x,sglang,0.5.12,deepseek-ai/DeepSeek-R1,b200_sxm,fp4,1024,1024,4,8,1,1,8,1,200,8"
    runs, _ = read_truth(truth(tmp_path, old, newer))
    assert {r.id: (r.engine_version, r.ep) for r in runs} == {"2026_a": ("0.5.3", 4), "2026_b": ("0.5.12", 1)}


def test_of_a_run_that_started_cold_tpot_alone_is_judged() -> None:
    cold = Prediction(run(cold_start=1), ttft_ms=60.0, tpot_ms=11.0)
    assert [math.isnan(cold.error(name)) for name in ("ttft", "latency", "throughput")] == [True, True, True]
    warm = Prediction(run(), ttft_ms=60.0, tpot_ms=10.0)
    assert cold.error("tpot") == pytest.approx(0.1)
    assert [Spread.of(p.error("ttft") for p in group).n for group in ([cold], [cold, warm])] == [0, 1]
    assert str(Spread.of([math.nan])) == "-"


def test_the_longest_prefix_is_found_among_all_earlier_requests() -> None:
    keys = [[1, 2, 3], [1, 9], [1, 2, 7], [5]]
    assert [longest_prefix(keys, i) for i in range(4)] == [(-1, 0), (0, 1), (0, 2), (-1, 0)]
