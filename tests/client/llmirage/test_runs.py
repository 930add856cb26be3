"""run and run_async against a server of this process; calibrate on what they measured; Cluster."""

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llmirage

MODEL = "Qwen/Qwen3-8B"
LOAD: dict[str, Any] = {"isl": 64, "osl": 8, "requests": 12, "concurrency": 3, "random_seed": 1, "speed": 20.0}


@pytest.fixture(scope="module")
def server() -> Iterator[llmirage.Server]:
    with llmirage.Server(model=MODEL, port=0, speed=20) as started:
        yield started


def test_a_run_measures_and_leaves_nothing(
    server: llmirage.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    result = llmirage.run(url=server.url, slo="ttft_p99<1000s", **LOAD)
    assert (result.requests, result.failed_requests, result.passed) == (12, 0, True)
    assert 0 < result.ttft_ms.p50 <= result.latency_ms.p50
    assert result.slo.met
    assert "tpot_ms" in result._columns()
    assert "12 requests ok" in str(result)
    assert "data-chart=" in result._repr_html_()
    assert result.report(tmp_path / "page.html").stat().st_size > 10_000
    folder = result.folder
    assert (folder / "profile_export.jsonl").exists()
    del result
    assert not folder.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert capsys.readouterr() == ("", "")


def test_a_run_keeps_its_files_where_it_is_told_to(server: llmirage.Server, tmp_path: Path) -> None:
    result = llmirage.run(url=server.url, artifact_dir=tmp_path / "run", **LOAD)
    assert result.folder == tmp_path / "run"
    del result
    assert (tmp_path / "run" / "profile_export.jsonl").exists()
    with pytest.raises(llmirage.ConfigError, match="the folder is not empty"):
        llmirage.run(url=server.url, artifact_dir=tmp_path / "run", **LOAD)


async def test_runs_go_side_by_side_on_one_loop_and_a_plain_one_works_there_too(server: llmirage.Server) -> None:
    found = await asyncio.gather(*(llmirage.run_async(url=server.url, **LOAD) for _ in range(2)))
    assert [one.requests for one in found] == [12, 12]
    assert llmirage.run(url=server.url, **LOAD).requests == 12  # as in a notebook's cell


def test_runs_in_threads(server: llmirage.Server) -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(llmirage.run(url=server.url, **LOAD).requests)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [12, 12]


def test_progress_of_a_run(server: llmirage.Server) -> None:
    lines: list[str] = []
    llmirage.run(url=server.url, progress=lines.append, **LOAD)
    assert "12/12 requests" in lines[-1]


def test_several_loads_are_a_sweep(
    server: llmirage.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = llmirage.run(url=server.url, **LOAD | {"concurrency": [1, 4]})
    assert isinstance(result, llmirage.RunSweep)
    assert (result.variable, result.loads, result.passed, result.best) == ("concurrency", [1, 4], True, None)
    assert [one.requests for one in result.runs] == [12, 12]  # of each load
    assert all(one.output_tok_per_s > 0 for one in result.runs)
    points = json.loads(result.to_json())["points"]
    assert [point["concurrency"] for point in points] == [1, 4]
    columns = result._columns()
    assert columns["concurrency"] == [1, 4]
    assert columns["ttft_p99_ms"] == [one.ttft_ms.p99 for one in result.runs]
    assert "concurrency" in str(result)
    assert "TTFT p50" in str(result)
    assert ">Against load<" in result.report(tmp_path / "page.html").read_text()
    assert "data-chart=" in result._repr_html_()
    folder = result.folder
    assert {"sweep.json", "sweep.csv", "01_concurrency1", "02_concurrency4"} == {path.name for path in folder.iterdir()}
    del result
    assert not folder.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert capsys.readouterr() == ("", "")


def test_a_rate_that_delivers_more_than_asked_says_so_beside_the_figure(server: llmirage.Server) -> None:
    load = LOAD | {"concurrency": None, "request_rate": [0.5, 400.0], "requests": 4, "arrival_pattern": "constant"}
    result = llmirage.run(url=server.url, **load)
    slow, fast = (one._outcome.metrics.whole_run["request_throughput"] for one in result.runs)
    shown = str(result)
    assert slow > 0.55  # four requests, three gaps
    assert f"{slow:.2f} for 0.5" in " ".join(shown.split())
    [note] = [note for note in result.notes if "were delivered" in note]
    assert note.startswith("request rate 0.5: ")
    assert fast < 440
    assert " for 400" not in shown


def test_a_run_of_a_sweep_keeps_its_files_while_it_is_needed(server: llmirage.Server, tmp_path: Path) -> None:
    runs = llmirage.run(url=server.url, **LOAD | {"concurrency": [1, 2]}).runs
    assert (runs[1].folder / "profile_export.jsonl").exists()
    stays = llmirage.run(url=server.url, artifact_dir=tmp_path / "out", **LOAD | {"concurrency": [1, 2]}).folder
    assert stays == tmp_path / "out"
    assert (stays / "sweep.json").exists()


def test_a_search_has_an_answer(server: llmirage.Server) -> None:
    lines: list[str] = []
    more = {"concurrency": 1, "find_max": "error_rate<2%", "find_max_upper_bound": 4, "vary": True}
    result = llmirage.run(url=server.url, progress=lines.append, **LOAD | more)
    assert sorted(set(result.loads)) == [1, 2, 4]
    assert result.loads.count(4) > 1  # the first run alone confirms nothing
    assert result.best is result.runs[-1]
    assert result.search.highest_met == 4
    assert "no higher one was tried" in repr(result)
    assert any("meets the SLO" in line for line in lines)


def test_no_load_that_meets_is_an_answer_too(server: llmirage.Server) -> None:
    result = llmirage.run(url=server.url, find_max="ttft_p50<1us", **LOAD | {"concurrency": 1})
    assert (result.passed, result.best, result.search.highest_met) == (False, None, None)


async def test_sweeps_on_the_callers_loop(server: llmirage.Server) -> None:
    rates = {"concurrency": None, "request_rate": [40.0, 80.0]}
    found = await asyncio.gather(*(llmirage.run_async(url=server.url, **LOAD | rates) for _ in range(2)))
    assert [one.loads for one in found] == [[40.0, 80.0]] * 2
    assert llmirage.run(url=server.url, **LOAD | {"concurrency": [1, 2]}).loads == [1, 2]  # as in a notebook's cell


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"url": "http://127.0.0.1:9"}, "nothing listens at 127.0.0.1:9"),
        ({"url": "ftp://x"}, "only http and https are supported"),
        ({"concurrency": [1, 2], "request_rate": [1, 2]}, "--concurrency"),
        ({"find_max": "speed<1s"}, "--find-max: "),
        ({"concurrency": [1, 2], "url": "http://127.0.0.1:9"}, "nothing listens at 127.0.0.1:9"),
        ({"num_users": 3}, "--num-users"),
    ],
)
def test_mistakes_are_config_errors(given: dict[str, Any], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(llmirage.ConfigError, match=problem):
        llmirage.run(**LOAD | given)
    assert capsys.readouterr() == ("", "")


def test_a_calibration_takes_runs(server: llmirage.Server, tmp_path: Path) -> None:
    load = LOAD | {"requests": 40, "osl": 24, "isl": 256}
    found = llmirage.calibrate(llmirage.run(url=server.url, **load), model=MODEL)
    assert found.requests == 40
    assert set(found.factors) >= {"decode_scale", "prefill_scale"}
    assert "Qwen/Qwen3-8B" in found.deployment
    path = found.save(tmp_path / "own.yaml")
    assert llmirage.Cluster(model=MODEL, engine=path).pools[0]["engine"] == "vllm"
    assert "Calibrated to 40 requests of 1 run" in str(found)
    assert "&lt;table" in found._repr_html_()


def test_a_cluster_says_what_fits_and_takes_loads() -> None:
    cluster = llmirage.Cluster(model=MODEL, gpu="h100_sxm", instances=2)
    assert (cluster.gpus, cluster.instances) == (2, 2)
    assert cluster.pools[0]["kv_tokens"] == cluster.step(decode=[(8, 1024)]).memory.kv_tokens
    assert repr(cluster).startswith("<Cluster: 2 GPUs in 2 instances, ")
    assert repr(llmirage.Cluster(model=MODEL, instances=1)).startswith("<Cluster: 1 GPU in 1 instance, ")
    assert cluster.assumed == ["TP1; bf16 weights, as published; vLLM with KV blocks of 1 token"]
    load: dict[str, Any] = {"isl": 64, "osl": 8, "requests": 20, "request_rate": 9}
    alone = llmirage.simulate(model=MODEL, gpu="h100_sxm", instances=2, **load)
    assert cluster.simulate(**load).summary == alone.summary
    assert cluster.simulate(instances=3, **load).gpus == 3
    assert "default: 2 x Qwen/Qwen3-8B" in str(cluster)
    assert "&lt;table" in cluster._repr_html_()
    with cluster.server(virtual_time=True) as server:
        assert server.models == (MODEL,)


def test_a_cluster_that_cannot_be() -> None:
    with pytest.raises(llmirage.ConfigError, match="does not fit"):
        llmirage.Cluster(model="deepseek-ai/DeepSeek-V3", gpu="l40s")
    with pytest.raises(llmirage.ConfigError, match="gpo: there is no such setting"):
        llmirage.Cluster(gpo="l40s")  # type: ignore[call-arg]
    with pytest.raises(llmirage.ConfigError, match="give at least one of decode"):
        llmirage.Cluster(model=MODEL).step()
