"""What `import llmirage` promises: names, signatures, types, and that it takes next to no time."""

import dataclasses
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llmirage
from llmirage._settings import known_settings
from llmirage_client.operations.calibrate import CalibrateSettings
from llmirage_client.operations.simulate import SimulateSettings
from llmirage_client.operations.size import SizeSettings
from llmirage_client.settings.run import RunSettings
from llmirage_client.settings.simulation import SweepSettings
from llmirage_client.settings.workload import GenerateSettings, InspectSettings
from llmirage_client.simulator.pools import ClusterConfig, StepSettings

ROOT = Path(__file__).resolve().parents[3]

NAMES = [
    "CalibrationResult", "ClientVerdict", "Close", "Cluster", "ConfigError", "EditedReply", "ExpectationError",
    "FaultAtToken",
    "FaultOnOrder", "FormatOption", "InjectedFault", "InstanceView", "JudgedRule", "LoadedWorkload", "Metric",
    "Pause", "Problem", "ReplyRequest", "RequestView", "Result", "Router", "RunReport", "RunSweep",
    "ServedRequest", "Server", "Session", "SimulationResult", "SizeResult", "StepResult", "StreamEvent",
    "SummaryFigures", "SweepResult", "ToolCall", "ToolResult", "Turn", "Workload", "WorkloadError",
    "WorkloadFormat", "calibrate", "fault_parameter", "generate", "load_workload", "make_router", "run",
    "run_async", "run_in_virtual_time", "simulate", "size", "step", "sweep",
]  # fmt: skip
FUNCTIONS = {
    "calibrate": "*runs, engine_log",
    "generate": "preset='agent-chain', *, set",
    "fault_parameter": "default, help, **about",
    "load_workload": "file, *, format",
    "make_router": "name, seed=0",
    "run": "workload=None, *, progress=None, url",
    "run_async": "workload=None, *, progress=None, url",
    "run_in_virtual_time": "main",
    "simulate": "workload=None, *, progress=None, cluster",
    "size": "workload=None, *, slo, progress=None, max_rate",
    "step": "*, model, gpu",
    "sweep": "study, *, progress=None, workers",
}
RESULTS = {
    "CalibrationResult": ["engine_file", "save"],
    "Cluster": ["server", "simulate", "step"],
    "LoadedWorkload": ["__len__", "notes", "path", "save"],
    "Result": ["report", "summary", "to_frame", "to_json"],
    "RunReport": ["folder", "notes", "passed"],
    "RunSweep": ["best", "folder", "loads", "notes", "passed", "runs"],
    "SimulationResult": ["cluster", "notes", "passed", "stopped"],
    "SizeResult": ["answered"],
    "StepResult": [],
    "SweepResult": ["passed"],
}
SERVER = {
    "__init__": None,
    "advance": ["seconds"],
    "anthropic": ["options"],
    "app": None,
    "async_anthropic": ["options"],
    "async_openai": ["options"],
    "async_transport": None,
    "base_url": None,
    "close": [],
    "expect": ["times", "fields"],
    "fault": ["kind", "parameters"],
    "metrics": [],
    "models": None,
    "now_s": None,
    "openai": ["options"],
    "requests": None,
    "reset": [],
    "script": ["script", "replace"],
    "start": [],
    "transport": None,
    "url": None,
    "verdict": ["unused_s"],
}


def test_the_names() -> None:
    assert sorted(llmirage.__all__) == NAMES
    assert all(hasattr(llmirage, name) for name in NAMES)
    assert all(getattr(llmirage, name).__doc__ for name in NAMES)


def test_the_server() -> None:
    found = {}
    for name, member in vars(llmirage.Server).items():
        if name == "__init__" or not name.startswith("_"):
            callable_ = inspect.isfunction(member)
            found[name] = list(inspect.signature(member).parameters)[1:] if callable_ and name != "__init__" else None
    assert found == SERVER


def test_the_functions() -> None:
    found = {}
    for name in NAMES:
        if inspect.isfunction(value := getattr(llmirage, name)):
            bare = [
                each.replace(annotation=inspect.Parameter.empty) for each in inspect.signature(value).parameters.values()
            ]
            found[name] = str(inspect.Signature(bare))[1:-1]
    assert set(found) == set(FUNCTIONS)
    assert all(found[name].startswith(first) for name, first in FUNCTIONS.items()), found


def test_the_results() -> None:
    found = {
        name: sorted(one for one in vars(value) if not one.startswith("_") or one == "__len__")
        for name in NAMES
        if inspect.isclass(value := getattr(llmirage, name)) and issubclass(value, llmirage.Result)
    }
    assert found == RESULTS


def test_the_fields_of_a_request() -> None:
    assert [each.name for each in dataclasses.fields(llmirage.ServedRequest)] == [
        "number", "at_s", "arrived_s", "method", "path", "model", "stream", "system", "user", "results", "status", "error",
        "outcome", "reply", "tool_calls", "finish_reason", "prompt_tokens", "cached_tokens", "output_tokens", "ttft_ms",
        "duration_s", "elapsed_s", "rule", "fault", "headers", "raw",
    ]  # fmt: skip


SETTINGS = {
    llmirage.simulate: (SimulateSettings, {"workload", "progress", "set"}),
    llmirage.run: (RunSettings, {"workload", "progress", "set"}),
    llmirage.run_async: (RunSettings, {"workload", "progress", "set"}),
    llmirage.size: (SizeSettings, {"workload", "progress", "set"}),
    llmirage.sweep: (SweepSettings, {"study", "progress"}),
    llmirage.calibrate: (CalibrateSettings, {"runs", "set"}),
    llmirage.step: (StepSettings, set()),
    llmirage.generate: (GenerateSettings, {"preset"}),
    llmirage.load_workload: (InspectSettings, {"file"}),
    llmirage.Server: (ClusterConfig, {"cluster", "port", "host", "virtual_time", "set"}),
    llmirage.Cluster: (ClusterConfig, {"cluster", "set"}),
}


@pytest.mark.parametrize("function", SETTINGS, ids=lambda one: one.__name__)
def test_help_explains_every_argument(function: Callable[..., Any]) -> None:
    kind, own = SETTINGS[function]
    by_name = {name: about for about in known_settings(kind).values() for name in about.keys}
    text = inspect.getdoc(function.__init__ if inspect.isclass(function) else function) or ""
    explained, settings = (" ".join(part.split()) for part in text.split("\nSettings:\n"))
    for name in inspect.signature(function).parameters:
        if name not in own and name in by_name and f"{name}: " not in explained:
            first = by_name[name].help.split()[0].replace("--", "")
            assert f"{name}: {first}" in settings, name
        else:
            assert name in explained or name == "self", name
    assert "--" not in settings


@pytest.mark.parametrize("function", SETTINGS, ids=lambda one: one.__name__)
def test_every_argument_is_a_setting_of_its_type(function: Callable[..., Any]) -> None:
    kind, own = SETTINGS[function]
    known = known_settings(kind)
    by_name = {name: about for about in known.values() for name in about.keys}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in own:
            continue
        about, annotation = by_name[name], str(parameter.annotation)
        for plain in (int, float, bool):
            if about.kinds in ((plain,), (plain, type(None))) and about.read is None:
                assert re.search(rf"\b{plain.__name__}\b", annotation), name
        assert all(repr(choice) in annotation or "Literal" not in annotation for choice in about.choices), name


def test_importing_it_imports_next_to_nothing() -> None:
    code = "import sys, llmirage; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numpy", "httpx", "starlette", "uvicorn", "click", "yaml", "llmirage_server", "llmirage_client"} & set(
        loaded
    )
