"""Studies: the points of a file, what is refused, results on disk, and carrying on where a study was stopped."""

import csv
import json
import os
from pathlib import Path

import pytest
from invoked import invoke, refusal, text_of

from llmirage_client.settings.simulation import SweepSettings
from llmirage_client.simulator.engine import ClusterConfig, ConfigError
from llmirage_client.sweep.file import Study, read_study
from llmirage_client.sweep.point import Task, measured_steadily, problems_of, work
from llmirage_client.sweep.sweep import Processes, RayTasks, Row, Sweep, WorkerDied, sweep

STUDY = """\
name: two GPUs
model: llama-3.1-8b
weights: bf16
instances: 1
isl: 200
osl: 20
requests: 20
slo: ttft_p99<5s
grid:
  gpu: [h100_sxm, b200_sxm]
  tp: [1, 3]
  request_rate: {slow: 2, fast: 8}
"""


def study_of(tmp_path: Path, text: str = STUDY) -> Study:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return read_study(str(path))


def swept(study: Study, folder: Path, most: int = 1000) -> tuple[Sweep, int]:
    """Return the results, and how many points were worked out; the user interrupts it after `most`."""
    worked: list[Row] = []

    def on_point(row: Row, done: int, total: int) -> None:
        worked.append(row)
        if len(worked) == most:
            raise KeyboardInterrupt

    return sweep(study, folder, SweepSettings(workers=1), on_point), len(worked)


def printed(tmp_path: Path, text: str, *more: str) -> str:
    """Return in one line what the command prints of a study, whose results are in the folder `out`."""
    study_of(tmp_path, text)
    return text_of("sweep", tmp_path / "study.yaml", "--artifact-dir", tmp_path / "out", "--workers", "1", *more)


def table_in(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "results.csv").read_text().splitlines()))


def test_every_combination_is_a_point(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    assert study.varied == ["gpu", "tp", "request_rate"]
    assert [tuple(point.varied.values()) for point in study.points[:3]] == [
        ("h100_sxm", "1", "slow"),
        ("h100_sxm", "1", "fast"),
        ("h100_sxm", "3", "slow"),
    ]
    assert len(study.points) == 8
    last = study.points[-1]
    assert last.load["request_rate"] == 8.0
    assert (last.config.gpu, last.config.tensor_parallel_size, last.config.weights) == ("b200_sxm", 3, "bf16")


def test_points_have_what_is_said_of_them_and_every_combination(tmp_path: Path) -> None:
    text = """\
isl: 10
osl: 5
seed: 3
points:
  - {router: random, concurrency: 2}
  - {name: best, concurrency: 4}
grid:
  instances: [2, 3]
"""
    points = study_of(tmp_path, text).points
    assert [point.name for point in points] == [
        "router random, concurrency 2, instances 2",
        "router random, concurrency 2, instances 3",
        "point best, instances 2",
        "point best, instances 3",
    ]
    config = points[1].config
    assert (config.router, config.instances, config.seed) == ("random", 3, 3)


def test_one_pool_of_a_cluster_and_its_events_can_be_varied(tmp_path: Path) -> None:
    text = """\
cluster: bundled:disaggregated
isl: 100
osl: 10
grid:
  decode.instances: [1, 3]
  events:
    calm: []
    crash: [{at_s: 1, action: crash, pool: decode, instance: 0, restart_after_s: 5}]
"""
    from llmirage_client.simulator.cluster_settings import read_cluster_file

    pools = [pool["name"] for pool in read_cluster_file("bundled:disaggregated")["pools"]]
    text = text.replace("decode", pools[-1])
    points = study_of(tmp_path, text).points
    assert [point.varied["events"] for point in points] == ["calm", "crash", "calm", "crash"]
    configs = [point.config for point in points if point.config is not None]
    assert [config.pools[-1].instances for config in configs] == [1, 1, 3, 3]
    assert [len(config.events) for config in configs] == [0, 1, 0, 1]


def test_all_that_is_wrong_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    wrong = "isl: 0\nrequest_rate: .inf\nslo: ttft<1\n"
    text = f"modell: x\n{wrong}grid:\n  tp: 4\n  gpu: [h100_sxm, h100_sxm, h10]\n  rooter: [a]\n"
    with pytest.raises(ConfigError) as refused:
        study_of(tmp_path, text)
    told = [problem.removeprefix(str(tmp_path / "study.yaml")) for problem in refused.value.problems]
    assert [": ".join(line.split(": ")[:2]) for line in told] == [
        ":1: modell",
        ":2: isl",
        ":3: request_rate",
        ":4: slo",
        ":6: tp",
        ":7: gpu",
        ":7: gpu",
        ":8: rooter",
    ]
    assert "unknown key (did you mean 'model'?)" in told[0]
    assert "infinite loads are not allowed" in told[2]
    assert "must be a list of values, or a mapping from names to values" in told[4]
    assert told[5].endswith("has h100_sxm twice")
    assert "unknown GPU 'h10'" in told[6]


def test_an_unknown_key_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        study_of(tmp_path, "base: 3\nworkload: bundled:coding-agent\ngrid: {kv_store_gib: [0]}\n")
    [told] = refused.value.problems
    assert told.endswith(":1: base: unknown key; it is neither a setting of cluster files nor of a load")


def test_an_impossible_deployment_is_refused_and_the_study_goes_on(tmp_path: Path) -> None:
    result, _ = swept(study_of(tmp_path), tmp_path / "out")
    assert [row.status for row in result.rows] == ["ok", "ok", "refused", "refused"] * 2
    assert "tp 3 does not divide" in result.rows[2].reason
    assert result.rows[0].figures["requests"] == 20
    assert result.rows[0].figures["slo_met"] is True


def test_it_carries_on_where_it_was_stopped(tmp_path: Path) -> None:
    study, out = study_of(tmp_path), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        swept(study, out, 3)
    with (out / "results.jsonl").open("a") as file:
        file.write('{"key": "cut o')
    result, worked = swept(study, out)
    assert (worked, result.reused) == (5, 3)
    assert {row.status for row in result.rows} == {"ok", "refused"}
    same, worked = swept(study, out)
    assert (worked, same.reused) == (0, 8)
    assert [row.figures for row in same.rows] == [row.figures for row in result.rows]


def test_other_settings_are_other_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept(study_of(tmp_path), tmp_path / "out")
    _, changed = swept(study_of(tmp_path, STUDY.replace("b200_sxm", "h200_sxm")), tmp_path / "out")
    assert changed == 4
    monkeypatch.setattr("llmirage_client.sweep.sweep.version", lambda name: "a newer one")
    _, newer = swept(study_of(tmp_path), tmp_path / "out")
    assert newer == 8


def test_loads_without_requests_are_told_before_anything_runs(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    problems = problems_of(study_of(tmp_path, f"workload: {empty}\n").points)
    assert len(problems) == 1
    assert "empty.jsonl" in problems[0]
    assert problems_of(study_of(tmp_path, "isl: 5\n").points) == [
        "osl missing: a load is a workload, or lengths by isl and osl"
    ]


def test_a_point_that_would_not_end_is_stopped(tmp_path: Path) -> None:
    text = "model: llama-3.1-8b\nisl: 100\nosl: 50\nrequests: 200\nrequest_rate: 1\nmax_time: 20\n"
    row = swept(study_of(tmp_path, text), tmp_path / "out")[0].rows[0]
    assert row.status == "stopped"
    assert "20 s of the cluster's time" in row.reason


def test_the_command_writes_tables_and_a_page(tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = printed(tmp_path, STUDY)
    assert "two GPUs: 8 points, 4 done, 4 refused" in shown
    rows = table_in(out)
    assert len(rows) == 8
    assert rows[0]["gpu"] == "h100_sxm"
    assert float(rows[0]["user_tok_per_s"]) == pytest.approx(1e3 / float(rows[0]["tpot_mean_ms"]))
    factor = float(rows[0]["tpot_factor_90"])
    assert factor > 1
    least = min(float(row["ttft_factor_90"]) for row in rows if row["ttft_factor_90"])
    band = f"Error bands: 90 % of measured means lie within a factor of TTFT {least:.2f}"
    page = (out / "study.html").read_text()
    assert "Llama-3.1-8B-Instruct</dd><dt>Cluster</dt><dd>TP1, bf16 weights, bf16 KV" in page
    assert band in shown
    assert band in page
    assert "Throughput per GPU against speed per user" in page
    assert "tp 3 does not divide" in page
    assert "ready" not in shown  # without autoscaling
    assert "Instances ready" not in page
    again = invoke("sweep", tmp_path / "study.yaml", "--artifact-dir", out, "--json")
    assert [json.loads(line)["status"] for line in again.stdout.splitlines()] == [row["status"] for row in rows]


@pytest.mark.parametrize("kept", [True, False])
def test_the_files_of_each_run_are_kept_if_asked_for(kept: bool, tmp_path: Path) -> None:
    study = "model: llama-3.1-8b\nisl: 100\nosl: 10\nrequests: 20\nrequest_rate: 5\n"
    printed(tmp_path, study, *["--keep-runs"] * kept)
    assert (tmp_path / "out" / "runs" / "point_0001" / "profile_export.jsonl").exists() == kept


def test_a_bad_study_is_refused_with_status_2(tmp_path: Path) -> None:
    assert "cannot be read" in refusal("sweep", tmp_path / "none.yaml")


def _half(number: int) -> float:
    if number == 3:
        os._exit(9)
    return number / 2


def test_a_process_that_dies_costs_its_own_item_alone() -> None:
    found = dict(Processes(2).map(_half, [1, 2, 3, 4, 5]))
    assert isinstance(found.pop(2), WorkerDied)
    assert found == {0: 0.5, 1: 1.0, 3: 2.0, 4: 2.5}


def test_a_ray_worker_that_dies_costs_its_own_item_alone() -> None:
    ray = pytest.importorskip("ray")

    def half(number: int) -> float:  # in the test: a worker imports no module of tests
        if number == 3:
            os._exit(9)
        return number / 2

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        found = dict(RayTasks(ray, 2).map(half, [1, 2, 3, 4, 5]))
    finally:
        ray.shutdown()
    assert isinstance(found.pop(2), WorkerDied)
    assert found == {0: 0.5, 1: 1.0, 3: 2.0, 4: 2.5}


SCALED = """\
model: llama-3.1-8b
gpu: h100_sxm
instances: 3
isl: 500
osl: 100
requests: 200
request_rate: 40
grid:
  requests: [150, 200]
points:
  - {name: all the time}
  - {name: as needed, scale_on_concurrency: 10, min_instances: 1, start_up_s: 1, scale_interval_s: 0.5}
"""


def test_what_autoscaling_did_is_in_the_table_and_in_the_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "3 GPUs at most in every point. ready: mean" in printed(tmp_path, SCALED)
    rows = table_in(out)
    steady, scaled = rows[0], rows[2]
    assert [row["number"] for row in rows] == ["1", "2", "3", "4"]
    assert (steady["point"], scaled["point"]) == ("all the time", "as needed")
    assert (steady["requests"], steady["result_requests"]) == ("150", "150")
    assert (float(steady["instances_ready"]), int(steady["instances_most"])) == (3.0, 3)
    assert 1.0 < float(scaled["instances_ready"]) < 3.0
    assert float(scaled["gpu_hours"]) < float(steady["gpu_hours"])
    assert "Instances ready" in (out / "study.html").read_text()


def test_parquet_has_the_rows_of_the_csv_with_numbers_as_numbers(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="results.parquet needs pyarrow: pip install 'llmirage[parquet]'")
    out = tmp_path / "out"
    assert "results.csv, results.parquet" in printed(tmp_path, STUDY.replace("{slow: 2, fast: 8}", "[2, 0.5]"))
    table = parquet.read_table(out / "results.parquet").to_pylist()
    rows = table_in(out)
    assert [list(row) for row in table] == [list(row) for row in rows]
    for typed, text in zip(table, rows, strict=True):
        assert typed["gpu"] == text["gpu"]
        assert typed["tp"] == int(text["tp"])
        assert typed["request_rate"] == float(text["request_rate"])
        assert typed["ttft_p99_ms"] == (float(text["ttft_p99_ms"]) if text["ttft_p99_ms"] else None)
    assert table[0]["slo_met"] is True
    assert table[2]["status"] == "refused"


def test_a_folder_that_cannot_be_is_told_in_words(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    assert f"{path} is not a folder" in refusal("sweep", path, "--artifact-dir", path / "below")


def test_the_usual_folder_that_cannot_be_is_told_with_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "artifacts").write_text("a file")
    monkeypatch.chdir(tmp_path)
    for words in (["sweep", "study.yaml"], ["simulate", "--isl", "5", "--osl", "5"]):
        assert "artifacts is not a folder; choose another folder with --artifact-dir" in refusal(*words)


def test_a_rate_that_was_not_sent_meets_no_objective() -> None:
    """1,000 requests of ten turns each: too few conversations for 20 turns/s, most of which wait for their think time."""
    load = {"isl": 500, "osl": 50, "turns": "10", "think_time": "30", "request_rate": 20.0, "requests": 1000}
    task = Task(ClusterConfig(model="llama-3.1-8b", weights="bf16"), load | {"slo": "ttft_p99<10s"})
    row = work(task)
    assert row["figures"]["slo_met"] is False
    assert "of 20 turns/s were there to send" in row["figures"]["slo_missed"]
    assert "of 20 turns/s were there to send" in row["reason"]
    assert row["figures"]["offered_per_s"] == 20.0
    assert row["figures"]["delivered_per_s"] < 5.0
    single = {key: load[key] for key in load if key not in ("turns", "think_time")} | {"slo": "ttft_p99<10s"}
    assert work(Task(task.config, single))["figures"]["slo_met"] is True


def test_offered_and_delivered_rates_stand_side_by_side(tmp_path: Path) -> None:
    path, out = tmp_path / "study.yaml", tmp_path / "out"
    words = ["sweep", str(path), "--artifact-dir", str(out), "--workers", "1"]
    load = "name: rates\nmodel: llama-3.1-8b\nisl: 500\nosl: 50\nrequests: 300\ngrid:\n  request_rate: [2, 20]\n"
    path.write_text(load + "turns: 10\nthink_time: 30\nsteady_state: false\n")
    shown = invoke(*words).stdout
    head, low, high = (line.replace("*", " ").split() for line in shown.splitlines()[2:6] if "---" not in line)
    assert head[1:3] == ["offered", "delivered"]
    assert [float(row[1]) for row in (low, high)] == [2.0, 20.0]
    assert [float(row[2]) < 1.5 for row in (low, high)] == [True, True]
    path.write_text(load.replace("think_time: 30\n", ""))
    assert "All request rates were delivered." in invoke(*words, "--fresh").stdout


def test_sessions_at_a_rate_are_measured_in_the_steady_state(tmp_path: Path) -> None:
    """300 requests of ten turns with 30 s between them: alone they would be the start of 30 conversations, and their end."""
    load = "model: llama-3.1-8b\nweights: bf16\nisl: 500\nosl: 50\nturns: 10\nthink_time: 30\nrequests: 300\n"
    load += "slo: ttft_p99<90s\n"
    (light, heavy), [off] = (
        [work(Task(point.config, point.load))["figures"] for point in study.points if point.config]
        for study in (
            measured_steadily(study_of(tmp_path, load + "grid:\n  request_rate: [2, 20]\n")),
            measured_steadily(study_of(tmp_path, load + "request_rate: 2\nsteady_state: false\n")),
        )
    )
    assert (light["steady_state"], off["steady_state"]) == (True, False)
    assert light["requests"] == heavy["requests"] == 300
    assert light["delivered_per_s"] == pytest.approx(2.0, rel=light["shortfall_allowed"])
    assert light["slo_met"] is True
    assert light["cached_token_share"] > 0.7
    assert off["delivered_per_s"] < 1.5
    assert heavy["saturated"] is True
    assert heavy["slo_met"] is False  # though nobody waited for 90 s so far


def test_only_loads_without_a_start_or_an_end_of_their_own_are_measured_steadily(tmp_path: Path) -> None:
    load = "isl: 500\nosl: 50\nrequests: 300\n"
    for more, steadily in (
        ("request_rate: 2\n", True),
        ("concurrency: 8\n", True),
        ("concurrency: 1\n", None),
        ("concurrency: 8\nconcurrency_ramp_duration: 0\n", None),
        ("request_rate: 2\nwarmup_request_count: 5\n", None),
        ("request_rate: 2\nsteady_state: false\n", False),
        ("request_rate: 2\nmin_instances: 1\nscale_on_queue: 4\ninstances: 2\n", None),
    ):
        [point] = measured_steadily(study_of(tmp_path, load + more)).points
        assert point.load.get("steady_state") is steadily, more


def test_users_of_a_closed_loop_start_one_by_one_unless_the_study_says_otherwise(tmp_path: Path) -> None:
    text = """\
model: llama-3.1-8b
weights: bf16
instances: 1
isl: 2000
osl: 100
requests: 400
concurrency: 64
points:
  - {name: gradual}
  - {name: at once, concurrency_ramp_duration: 0}
"""
    gradual, at_once = (
        work(Task(point.config, point.load))["figures"]["ttft_p99_ms"]
        for point in study_of(tmp_path, text).points
        if point.config is not None
    )
    assert gradual < 0.5 * at_once
