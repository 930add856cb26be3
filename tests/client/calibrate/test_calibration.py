"""Calibration: a server with other factors is recognised; readers of foreign results; what is said of what is not known."""

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from invoked import invoke, json_of, refusal

from llmirage_client.calibrate.calibration import FactorFit, System, calibrate
from llmirage_client.calibrate.measured_run import FIGURES, MeasuredRunError, read_measured
from llmirage_client.load.options import RunOptions
from llmirage_client.operations.calibrate import changed_fields, engine_text, replays
from llmirage_client.report.files import write_artifacts
from llmirage_client.simulate.simulation import simulate
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.simulator.replay import engine_fields
from llmirage_client.workload.synthetic_load import synthetic_load

TRUE = "base: vllm\ndecode_scale: 1.3\nprefill_scale: 0.8\nfront_end_ms: 5\n"
DEPLOYMENT = {"model": "llama-3.1-8b", "gpu": "h100_sxm", "instances": 1}
AS_PUBLISHED = ClusterConfig(engine="vllm", **DEPLOYMENT)
PROFILE = engine_fields(AS_PUBLISHED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run through the whole protocol against a server that is not as the profile says."""
    place = tmp_path_factory.mktemp("calibration")
    (place / "true.yaml").write_text(TRUE)
    workload = synthetic_load("200:3000", "10:60", 70, turns="2", wait_s="0.2", shared_prefix_tokens=0, seed=1)
    config = ClusterConfig(engine=str(place / "true.yaml"), **DEPLOYMENT)  # type: ignore[arg-type]
    simulation = simulate(config, workload, RunOptions(request_rate_per_s=2.0), via="api")
    write_artifacts(simulation.result, place / "run", metrics=simulation.metrics)
    return place


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of as few requests as can be calibrated on."""
    workload = synthetic_load("200:900", "5:9", 20, turns="1", wait_s="0", shared_prefix_tokens=0, seed=1)
    simulation = simulate(AS_PUBLISHED, workload, RunOptions(request_rate_per_s=2.0))
    place = tmp_path_factory.mktemp("few")
    write_artifacts(simulation.result, place, metrics=simulation.metrics)
    return place


def test_the_requests_of_a_run_are_served_again_as_they_were(folder: Path) -> None:
    run = read_measured(str(folder / "run"))
    values = {"decode_scale": 1.3, "prefill_scale": 0.8, "front_end_ms": 5.0, "host_step_ms": 0.5}
    with replays(AS_PUBLISHED, PROFILE, PROFILE, [run]) as serve:
        [answer] = serve(values)
    for name in FIGURES:
        np.testing.assert_allclose(answer[name], run.figures[name], rtol=1e-5)


def test_the_factors_of_a_server_are_found_within_a_few_percent(folder: Path) -> None:
    out = folder / "calibrated.yaml"
    report = json_of("calibrate", folder / "run", "-o", out)
    assert (
        report["deployment"] == "meta-llama/Llama-3.1-8B-Instruct on 1x H100 SXM, bf16 weights, bf16 KV"
    )  # as the run says
    assert report["factors"]["decode_scale"]["after"] == pytest.approx(1.3, rel=0.03)
    assert report["factors"]["prefill_scale"]["after"] == pytest.approx(0.8, rel=0.03)
    assert report["factors"]["front_end_ms"]["after"] == pytest.approx(5.0, rel=0.05)  # launching layers hides a part
    errors = report["errors_pct"]
    assert errors["before"]["tpot"]["median"] > 10 > 1 > errors["held_out"]["tpot"]["median"]

    # The file is an engine, and a simulation with it behaves as the server did.
    workload = synthetic_load("1000", "20", 5, turns="1", wait_s="0", shared_prefix_tokens=0, seed=2)
    ttfts = []
    for engine in (str(out), str(folder / "true.yaml")):
        config = ClusterConfig(engine=engine, **DEPLOYMENT)  # type: ignore[arg-type]
        ttfts.append(simulate(config, workload, RunOptions(concurrency=1)).summary["ttft_ms"]["mean"])
    assert ttfts[0] == pytest.approx(ttfts[1], rel=0.02)


def test_a_machine_that_is_late_now_and_then_does_not_count_as_front_end(folder: Path) -> None:
    """A third of the first tokens some milliseconds late, never early: means would have it all in the front end."""
    run = read_measured(str(folder / "run"))
    draw = np.random.default_rng(3)
    late_s = np.where(draw.random(len(run.requests)) < 0.33, draw.exponential(0.004, len(run.requests)), 0.0)
    figures = {"ttft": run.figures["ttft"] + late_s, "tpot": run.figures["tpot"], "latency": run.figures["latency"] + late_s}
    with replays(AS_PUBLISHED, PROFILE, PROFILE, [replace(run, figures=figures)]) as serve:
        values = calibrate([replace(run, figures=figures)], serve, PROFILE).values
    assert late_s.mean() > 0.001
    assert values["decode_scale"] == pytest.approx(1.3, rel=0.01)
    assert values["prefill_scale"] == pytest.approx(0.8, rel=0.03)
    assert values["front_end_ms"] == pytest.approx(5.0, abs=0.3)


def test_requests_of_one_moment_keep_the_order_in_which_they_went_out(tmp_path: Path) -> None:
    """Records are written as replies end; a batch that begins at once must be asked for again in its own order."""
    workload = synthetic_load("500:4000", "20:90", 40, turns="1", wait_s="0", shared_prefix_tokens=0, seed=6)
    simulation = simulate(AS_PUBLISHED, workload, RunOptions(concurrency=8))
    write_artifacts(simulation.result, tmp_path / "run", metrics=simulation.metrics)
    run = read_measured(str(tmp_path / "run"))
    assert np.count_nonzero((run.requests.due_s == 0) & (run.requests.after < 0)) == 8
    with replays(AS_PUBLISHED, PROFILE, PROFILE, [run]) as serve:
        [answer] = serve({})
    for name in FIGURES:
        np.testing.assert_allclose(answer[name], run.figures[name], rtol=1e-4)


def test_a_client_that_was_late_is_told_of(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    file = tmp_path / "run" / "profile_export_aiperf.json"
    summary = json.loads(file.read_text())
    for late_ms, told in ((1.4, False), (3.25, True)):
        summary["llmirage"]["client"]["timers_late_p95_ms"] = late_ms
        file.write_text(json.dumps(summary))
        assert any("its timers by 3.2 ms" in note for note in read_measured(str(tmp_path / "run")).notes) is told


def test_who_is_alone(tmp_path: Path) -> None:
    content = {
        "input_lens": [9, 9, 9, 9],
        "output_lens": [2, 2, 2, 2],
        "ttfts": [0.5, 0.5, 0.5, 0.5],
        "itls": [[0.5], [0.5], [0.5], [2.5]],
        "start_times": [0.0, 0.75, 3.0, 3.25],
        "request_rate": 2.0,
    }
    file = tmp_path / "vllm.json"
    file.write_text(json.dumps(content))
    # The first: the next begins when its first token is there. The second comes while that one still decodes.
    assert read_measured(str(file)).unloaded.tolist() == [True, False, False, False]


def test_what_runs_cannot_show_keeps_its_value(folder: Path, tmp_path: Path) -> None:
    """Short prompts say nothing of prefill, and one user nothing of the host."""
    workload = synthetic_load("8:16", "40", 30, turns="1", wait_s="0", shared_prefix_tokens=0, seed=3)
    config = ClusterConfig(engine=str(folder / "true.yaml"), **DEPLOYMENT)  # type: ignore[arg-type]
    simulation = simulate(config, workload, RunOptions(concurrency=1))
    write_artifacts(simulation.result, tmp_path / "run", metrics=simulation.metrics)
    options = ["--model", "llama-3.1-8b", "--gpu", "h100_sxm", "--instances", "1", "--engine", "vllm"]
    outcome = invoke("calibrate", tmp_path / "run", *options, "-o", tmp_path / "e.yaml")
    text = (tmp_path / "e.yaml").read_text()
    assert "# host: not fitted" in text
    assert "Host keeps the profile's value" in outcome.output
    assert "host_step_ms" not in text.split("base:")[1]


def test_results_of_vllm(tmp_path: Path) -> None:
    content = {
        "input_lens": [100, 200, 300, 50],
        "output_lens": [3, 1, 2, 5],
        "ttfts": [0.5, 0.25, 1.0, 0.0],
        "itls": [[0.1, 0.2], [], [0.5], []],
        "errors": ["", "", "", "timeout"],
        "start_times": [10.0, 11.0, 10.5, 10.1],
        "request_rate": 2.0,
    }
    file = tmp_path / "vllm.json"
    file.write_text(json.dumps(content))
    run = read_measured(str(file))
    assert run.requests.prompt.tolist() == [100, 300, 200]
    assert run.requests.due_s.tolist() == [0.0, 0.5, 1.0]
    assert run.figures["ttft"].tolist() == [0.5, 1.0, 0.25]
    np.testing.assert_allclose(run.figures["tpot"], [0.15, 0.5, np.nan])
    np.testing.assert_allclose(run.figures["latency"], [0.8, 1.5, 0.25])
    assert "1 of 4 requests failed" in run.notes[0]

    del content["start_times"]
    file.write_text(json.dumps(content))
    with pytest.raises(MeasuredRunError, match=r"does not say when requests were sent"):
        read_measured(str(file))
    file.write_text(json.dumps(content | {"request_rate": "inf", "max_concurrency": 2}))
    closed = read_measured(str(file))
    # Two at a time: the third begins when the first of the two is over, after 0.25 s.
    assert closed.requests.after.tolist() == [-1, -1, 1]
    assert closed.requests.due_s.tolist() == [0.0, 0.0, 0.0]
    file.write_text('{"input_lens": [1], "duration": 3}')
    with pytest.raises(MeasuredRunError, match=r"no list output_lens, ttfts, itls.*--save-detailed"):
        read_measured(str(file))


def test_results_of_evalscope(tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / "benchmark_data.db")
    base.execute(
        "create table result (request text, start_time real, success int, completed_time real, latency real, "
        "first_chunk_latency real, prompt_tokens int, completion_tokens int)"
    )
    base.executemany(
        "insert into result values ('', ?, ?, ?, ?, ?, ?, ?)",
        [
            (100.0, 1, 102.0, 2.0, 1.0, 500, 11),
            (101.0, 0, 101.0, None, None, None, None),
            (103.0, 1, 104.0, 1.0, 0.5, 40, 2),
        ],
    )
    base.commit()
    base.close()
    run = read_measured(str(tmp_path))
    assert run.requests.due_s.tolist() == [0.0, 3.0]
    assert run.figures["ttft"].tolist() == [1.0, 0.5]
    np.testing.assert_allclose(run.figures["tpot"], [0.1, 0.5])


def test_cached_tokens_are_shared_again(folder: Path) -> None:
    run = read_measured(str(folder / "run"))
    second = run.requests.continues >= 0
    assert second.any()
    assert (run.requests.shared[second] > 0).all()
    assert (run.requests.shared[~second] == 0).all()
    assert (run.requests.after[second] == run.requests.continues[second]).all()


def test_an_engine_file_says_only_what_differs() -> None:
    named = {"name": "vllm", "base": "vllm", "host_step_ms": 0.5, "decode_scale": 1.0, "max_num_seqs": {0: 256, 70: 1024}}
    own = named | {"name": "mine", "max_num_seqs": {0: 64}}
    assert changed_fields(own, named, {"decode_scale": 1.23456, "host_step_ms": 0.5}) == {
        "max_num_seqs": {0: 64},
        "decode_scale": 1.235,
    }
    assert engine_text("vllm", {"max_num_seqs": {0.0: 64}, "decode_scale": 1.2}, ["why", ""]) == (
        "# why\n#\nbase: vllm\nmax_num_seqs: {0: 64}\ndecode_scale: 1.2\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere: "),
        (["RUN", "--set", "ttft_ms=5", "--gpu", "h100_sxm"], "fixed times (ttft_ms, itl_ms) have nothing to calibrate"),
        (["few.json", "--gpu", "h100_sxm", "--model", "llama-3.1-8b"], "3 requests are not enough: at least 20 are needed"),
        (["bad.json"], "bad.json: not valid JSON"),
        (["few.json"], "the runs do not say which model and GPU was measured: give --model and --gpu, or --cluster FILE"),
        (["OLD"], "the runs do not say which GPU was measured: give --gpu, or --cluster FILE"),
        (["B200"], "B200 measured b200_sxm, and the cluster to be calibrated has h100_sxm: give the --gpu that was"),
        (["RUN", "--model", "qwen3-8b", "--gpu", "h100_sxm"], "measured meta-llama/Llama-3.1-8B-Instruct, and the cluster"),
        (["RUN", "--weights", "fp8"], "run measured weights bf16, and the cluster to be calibrated has weights fp8"),
        (["RUN", "--tp", "2"], "run measured tensor_parallel_size 1, and the cluster to be calibrated has tensor_"),
        (["RUN", "--instances", "2"], "give the --instances that was measured, or its --cluster FILE"),
    ],
)
def test_bad_input(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    few = {"input_lens": [9] * 3, "output_lens": [2] * 3, "ttfts": [0.1] * 3, "itls": [[0.1]] * 3, "request_rate": "inf"}
    Path("few.json").write_text(json.dumps(few))
    Path("bad.json").write_text("{")
    for name, options in (("OLD", {}), ("B200", {"gpu": "b200"})):
        shutil.copytree(folder / "run", name)
        summary = Path(name, "profile_export_aiperf.json")
        content = json.loads(summary.read_text())
        content["input_config"]["options"] = options
        del content["llmirage"]["deployment"]
        summary.write_text(json.dumps(content))
    given = [str(folder / "run") if argument == "RUN" else argument for argument in arguments]
    given += ["--gpu", "h100_sxm"] if given == ["B200"] else []
    assert said in refusal("calibrate", *given)


def test_what_has_no_effect_is_told_where_the_user_gave_it(few: Path) -> None:
    line = ["calibrate", str(few), "-o", str(few / "idle.yaml")]
    assert "host_kv_gb_per_s has no effect here: it needs host_kv_gib" in refusal(*line, "--set", "host_kv_gb_per_s=5")
    told = invoke(*line, "--router", "session")
    assert "router has no effect here: it needs several instances" in " ".join(told.stdout.split())


def test_a_run_of_another_deployment_is_refused_and_what_it_does_not_tell_is_said(few: Path, tmp_path: Path) -> None:
    """A run against three L40S in fp8, as vLLM tells, does not calibrate one H100 in bf16."""
    shutil.copytree(few, tmp_path / "run")
    file = tmp_path / "run" / "profile_export_aiperf.json"
    summary = json.loads(file.read_text())
    words = ["calibrate", str(tmp_path / "run"), "--model", "llama-3.1-8b", "--gpu", "h100_sxm", "-o", str(tmp_path / "e")]
    summary["llmirage"]["deployment"] = [{"engine": "vllm", "model": "llama-3.1-8b", "weights": "fp8"}]
    file.write_text(json.dumps(summary))
    assert "measured weights fp8, and the cluster to be calibrated has weights bf16" in refusal(*words, "--weights", "bf16")
    summary["llmirage"]["deployment"] = [{"engine": "vllm", "model": "llama-3.1-8b"}]
    file.write_text(json.dumps(summary))
    [note] = [note for note in json_of(*words)["notes"] if "could not be checked" in note]
    assert "does not tell gpu, weights, kv_cache_dtype, tensor_parallel_size" in note


def test_a_factor_of_which_single_requests_show_nothing_is_not_fitted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The means of groups knew it; the fit by requests, which decides, does not."""

    def blind(fit: FactorFit, wide: System) -> System:
        jacobian = wide.jacobian.copy()
        for place, factor in enumerate(fit.free):
            if factor.name == "front_end_ms":
                jacobian[:, :, place] *= 1e-9
        return replace(wide, jacobian=jacobian)

    monkeypatch.setattr(FactorFit, "by_request", blind)
    run = read_measured(str(folder / "run"))
    with replays(AS_PUBLISHED, PROFILE, PROFILE, [run]) as serve:
        result = calibrate([run], serve, PROFILE)
    [front_end] = [one for one in result.fitted if one.factor.name == "front_end_ms"]
    assert front_end.why_not is not None
    assert (front_end.after, front_end.uncertainty) == (front_end.before, None)
    assert all(one.uncertainty is None or one.uncertainty < 10 for one in result.fitted)
