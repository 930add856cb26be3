"""simulate, size, sweep, step: what the commands answer, from Python; results as figures, frames, pages, charts."""

import ast
import gc
import html
import importlib.util
import io
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invoked import invoke
from rich.console import Console

import llmirage
from llmirage_client.measure.submission import Coverage, Submission
from llmirage_client.simulate import simulation

MODEL = "Qwen/Qwen3-8B"
LOAD: dict[str, Any] = {"model": MODEL, "isl": 512, "osl": 32, "requests": 40, "request_rate": 8}
STUDY = {"model": MODEL, "isl": 256, "osl": 16, "requests": 30, "request_rate": 5, "grid": {"instances": [1, 2]}}


def printed(*words: str) -> str:
    done = invoke(*words)
    return done.stdout


def simulated() -> llmirage.SimulationResult:
    return llmirage.simulate(**LOAD)


def sized() -> llmirage.SizeResult:
    return llmirage.size(model=MODEL, isl=256, osl=16, request_rate=5, slo="ttft_p99<500ms", gpus=["l40s"], requests=100)


def swept() -> llmirage.SweepResult:
    return llmirage.sweep(STUDY, workers=1)


def explained() -> llmirage.StepResult:
    return llmirage.step(model=MODEL, decode=[(8, 1024)], prefill="512@0")


def loaded() -> llmirage.LoadedWorkload:
    return llmirage.generate("chat", conversations=5)


RESULTS: list[Callable[[], llmirage.Result]] = [simulated, sized, swept, explained, loaded]
each = pytest.mark.parametrize("made", RESULTS, ids=lambda made: made.__name__)


def test_a_simulation_is_the_commands() -> None:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in LOAD.items()]
    result = simulated()
    assert json.loads(result.to_json()) == json.loads(printed("simulate", *words, "--json"))
    assert result.ttft_ms.p99 == result.summary["ttft_ms"]["p99"] > 0
    assert (result.requests, result.passed, result.stopped) == (40, True, None)
    assert result.cluster["running"].shape == (1, len(result.cluster["edges_s"]) - 1)


def test_a_simulation_that_its_scenario_fails_has_not_passed() -> None:
    result = simulated()
    result._simulation.submission = Submission("agentx", (), coverage=Coverage(900.0, 0.5, 0.5, 400.0))
    assert not result.passed


def test_a_step_is_the_commands() -> None:
    told = printed("step", "--model", MODEL, "--decode", "8@1024", "--prefill", "512@0", "--json")
    assert json.loads(explained().to_json()) == json.loads(told)
    assert explained().memory.kv_tokens > 100_000


def test_a_size_is_the_commands() -> None:
    words = ["--isl=256", "--osl=16", "--request-rate=5", "--slo=ttft_p99<500ms", "--gpus=l40s", "--requests=100", "--json"]
    told, result = json.loads(printed("size", "--model", MODEL, *words)), sized()
    assert json.loads(result.to_json())["answer"] == told["answer"]
    assert (result.answered, result.answer.gpu, result.answer.gpus) == (True, "l40s", 1)


def test_a_size_draws_lengths_that_have_a_deviation() -> None:
    load = {"model": MODEL, "osl": 16, "request_rate": 5, "slo": "ttft_p99<500ms", "gpus": "l40s", "tps": 1, "requests": 60}
    result = llmirage.size(isl=256, isl_stddev=64.0, **load)
    assert result.traffic.requests == "normal(mean=256, std=64, min=1) tokens in, 16 out"
    assert result.answer == llmirage.size(isl="normal(mean=256, std=64, min=1)", **load).answer


def test_a_sweep_takes_data_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = swept()
    assert [(point["instances"], point["status"]) for point in result.points] == [("1", "ok"), ("2", "ok")]
    assert result.passed
    assert not list(tmp_path.iterdir())


def test_a_sweep_keeps_results_where_it_is_told_to(tmp_path: Path) -> None:
    first = llmirage.sweep(STUDY, workers=1, artifact_dir=tmp_path)
    again = llmirage.sweep(STUDY, workers=1, artifact_dir=tmp_path)
    assert again.points == first.points
    assert (tmp_path / "results.jsonl").exists()


def test_workloads_go_from_one_function_to_the_next(tmp_path: Path) -> None:
    made = llmirage.generate("chat", conversations=6, set={"turns.mean": 2})
    made.save(tmp_path / "chat.jsonl")
    read = llmirage.load_workload(tmp_path / "chat.jsonl")
    assert len(read) == len(made) == 6
    assert read.turns == made.turns == len(read._columns()["turn"])
    assert llmirage.simulate(read, model=MODEL).summary == llmirage.simulate(tmp_path / "chat.jsonl", model=MODEL).summary
    assert llmirage.simulate(read, model=MODEL, num_conversations=2).requests < read.turns
    read.save(tmp_path / "dag.jsonl", to="dag_jsonl")
    assert llmirage.load_workload(tmp_path / "dag.jsonl", format="dag_jsonl").turns == read.turns


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"modle": "x"}, "modle: there is no such setting (did you mean 'model'?)"),
        ({"isl": 1, "osl": 1, "tp": "x"}, "tp must be a whole number, not 'x'"),
        ({"isl": 1, "osl": 1, "tp": True}, "tp must be a whole number, not True"),
        ({"isl": [1], "osl": 1}, "isl must be a number or a distribution, not [1]"),
        ({"isl": 1, "osl": 1, "set": {"kv_store_gib": -1}}, "kv_store_gib must be at least 0, not -1"),
        ({"isl": 1, "osl": 1, "kv_store_gib": -1}, "kv_store_gib must be at least 0, not -1"),
        ({"isl": 1, "osl": 1, "concurrency": []}, "concurrency must have at least one number"),
        ({"isl": 1, "osl": 1, "steady_state": 1}, "steady_state must be true or false, not 1"),
        ({"isl": 1, "osl": 1, "tp": 1, "tensor_parallel_size": 2}, "tensor_parallel_size: given twice"),
        ({"isl": 1, "osl": 1, "tp": 1, "set": {"tensor_parallel_size": 2}}, "tensor_parallel_size: given twice"),
        ({"isl": 1}, "give a workload (a file, bundled:NAME or a preset), or --isl and --osl"),
        ({"workload": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"isl": 1, "osl": 1, "model": "nope"}, "model: unknown model 'nope'"),
        ({"isl": 1, "osl": 1, "concurrency": [1, 2]}, "--concurrency has several values"),
        ({"isl": 1, "osl": 1, "progress": 3}, "progress must be true, false or a function, not 3"),
    ],
)
def test_mistakes_are_errors_that_name_the_field(
    given: dict[str, Any], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(llmirage.ConfigError) as raised:
        llmirage.simulate(**given)
    assert any(problem in one for one in raised.value.problems), raised.value.problems
    assert capsys.readouterr() == ("", "")


def test_mistakes_of_the_others() -> None:
    for wrong in (
        lambda: llmirage.size(isl=1, osl=1),
        lambda: llmirage.size(isl=1, osl=1, slo="ttft<1s", model=MODEL),
        lambda: llmirage.sweep({"modle": 1}),
        lambda: llmirage.sweep("nowhere.yaml"),
        lambda: llmirage.step(model=MODEL),
        lambda: llmirage.step(model="nope", decode="1@1"),
        lambda: llmirage.calibrate("nowhere", model=MODEL),
        lambda: llmirage.calibrate(),
        lambda: llmirage.generate("nope"),
        lambda: llmirage.load_workload("nowhere.jsonl"),
        lambda: loaded().save("x.jsonl", to="nope"),
        lambda: loaded().save("/dev/null/x.jsonl"),
    ):
        with pytest.raises(llmirage.ConfigError):
            wrong()  # type: ignore[no-untyped-call]


@each
def test_results_show(made: Callable[[], llmirage.Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = made()
    assert repr(result).startswith(f"<{type(result).__name__}: ")
    assert max(map(len, str(result).splitlines())) <= 100 or made is explained
    stream = io.StringIO()
    Console(file=stream, width=120, force_terminal=True).print(result)
    assert len(stream.getvalue()) > 100
    html = result._repr_html_()
    assert html.startswith("<iframe srcdoc=")
    assert ("&lt;table" if made in (loaded, sized) else "data-chart=") in html
    page = result.report(tmp_path / "pages" / "x.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert len(page) > 5_000
    assert result.to_json() == json.dumps(json.loads(result.to_json()))
    assert capsys.readouterr() == ("", "")


@each
def test_a_result_is_a_frame(made: Callable[[], llmirage.Result], monkeypatch: pytest.MonkeyPatch) -> None:
    result, asked = made(), []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: asked.append(name))
    with pytest.raises(ImportError, match=r"this needs pandas or polars: pip install pandas"):
        result.to_frame()
    assert asked == ["pandas", "polars"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "polars" else None)
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(DataFrame=dict))
    frame = result.to_frame()
    assert len(frame) > 3
    assert len({len(column) for column in frame.values()}) == 1
    with pytest.raises(llmirage.ConfigError, match="library must be one of pandas, polars"):
        result.to_frame("arrow")  # type: ignore[arg-type]


def test_figures_are_attributes_and_say_what_there_is() -> None:
    result = explained()
    with pytest.raises(AttributeError, match=r"StepResult has no 'step_m' \(did you mean 'step_ms'\?\)"):
        _ = result.step_m
    with pytest.raises(AttributeError, match=r"there is no figure 'kv_token' \(did you mean 'kv_tokens'\?\)"):
        _ = result.memory.kv_token
    assert "step_ms" in dir(result)
    assert "kv_tokens" in dir(result.memory)


def test_progress_goes_to_a_function_or_a_notebook_and_never_to_the_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    llmirage.sweep(STUDY, workers=1, progress=lines.append)
    assert lines == ["1 of 2 points, instances 1: ok", "2 of 2 points, instances 2: ok"]
    shown: list[dict[str, Any]] = []
    publisher = SimpleNamespace(publish=lambda **told: shown.append(told))
    shell = SimpleNamespace(kernel=object(), display_pub=publisher)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    llmirage.sweep(STUDY, workers=1)
    assert [one["update"] for one in shown] == [False, True]
    assert shown[1]["data"]["text/plain"] == lines[1]
    assert shown[0]["transient"] == shown[1]["transient"]
    llmirage.sweep(STUDY, workers=1, progress=False)
    assert len(shown) == 2
    monkeypatch.setattr("llmirage_client.simulate.progress.QUIET_S", -1.0)
    lines.clear()
    llmirage.simulate(**LOAD, progress=lines.append)
    assert lines
    assert "of 40 requests" in lines[-1]
    assert capsys.readouterr() == ("", "")


def test_simulations_in_threads_are_those_of_one_thread() -> None:
    handler, loads = signal.getsignal(signal.SIGINT), [{**LOAD, "random_seed": seed} for seed in range(6)]
    known = threading.enumerate()  # other tests' servers among them
    alone = [llmirage.simulate(**load).to_json() for load in loads]
    with ThreadPoolExecutor(3) as pool:
        assert [result.to_json() for result in pool.map(lambda load: llmirage.simulate(**load), loads)] == alone
    assert signal.getsignal(signal.SIGINT) is handler
    assert not [one for one in threading.enumerate() if "llmirage" in one.name and one not in known]


def test_a_sweep_over_processes_needs_no_guard_in_the_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"print('once')\nimport llmirage\nprint(llmirage.sweep({STUDY!r}, workers=2).passed, __file__)\n")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"once\nTrue {program}\n", "")


def test_a_library_leaves_the_collector_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "_owned", False)
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with simulation.few_collections():
        with simulation.few_collections():
            assert gc.get_threshold() != before
        assert gc.get_threshold() != before
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() <= frozen


def test_the_end_of_a_process_does_not_walk_what_simulations_left() -> None:
    code = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count()))  # the last to be called
import llmirage
result = llmirage.simulate(model="Qwen/Qwen3-8B", gpu="h100_sxm", isl=100, osl=10, request_rate=9, requests=50)
print(gc.get_freeze_count())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    running, ended = map(int, done.stdout.split())
    assert running == 0, "a process that is not ours keeps its own collector"
    assert ended > 10_000


NOTEBOOKS = sorted((Path(__file__).resolve().parents[3] / "docs/notebooks").glob("*.ipynb"))


def displayed(source: str, names: dict[str, Any], name: str) -> Any:
    """Run a cell as a kernel does; return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), names)


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    charts = 0
    for number, cell in enumerate(cells):
        assert not cell["outputs"], "committed without outputs"
        source = re.sub(r"(conversations=|requests=|\"(?:requests|osl)\": )\d+", r"\g<1>4", "".join(cell["source"]))
        source = source.replace("coding-agent", "agent-chain")  # all to be quick
        value = displayed(source, names, f"{path.name}[{number}]")
        if hasattr(value, "_repr_html_"):
            frame = re.fullmatch(r'<iframe srcdoc="([^"]*)" .*</iframe>', value._repr_html_(), re.DOTALL)
            page = html.unescape(frame[1])
            assert page.startswith("<!DOCTYPE html>")
            assert len(page) < 1_000_000
            charts += page.count("data-chart=")
    assert charts > 3
