"""What `import llmirage` promises: names, signatures, types, and that it takes next to no time."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path

import llmirage

ROOT = Path(__file__).resolve().parents[3]

NAMES = [
    "CalibrationResult", "ClientVerdict", "Cluster", "ConfigError", "ExpectationError", "FaultOnOrder", "JudgedRule",
    "LoadedWorkload", "Result", "RunReport", "RunSweep", "ServedRequest", "Server", "SimulationResult", "SizeResult",
    "StepResult",
    "SummaryFigures", "SweepResult", "ToolCall", "ToolResult", "calibrate", "generate", "load_workload",
    "run", "run_async", "run_in_virtual_time", "simulate", "size", "step", "sweep",
]  # fmt: skip
FUNCTIONS = {
    "calibrate": "*runs, **settings",
    "generate": "preset='agent-chain', **settings",
    "load_workload": "file, **settings",
    "run": "workload=None, *, progress=None, **settings",
    "run_async": "workload=None, *, progress=None, **settings",
    "run_in_virtual_time": "main",
    "simulate": "workload=None, *, progress=None, **settings",
    "size": "workload=None, *, progress=None, **settings",
    "step": "**settings",
    "sweep": "study, *, progress=None, **settings",
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
    "__init__": ["cluster", "port", "host", "virtual_time", "script", "faults", "settings"],
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
            found[name] = list(inspect.signature(member).parameters)[1:] if callable_ else None
    assert found == SERVER


def test_the_functions() -> None:
    found = {}
    for name in NAMES:
        if inspect.isfunction(value := getattr(llmirage, name)):
            bare = [
                each.replace(annotation=inspect.Parameter.empty) for each in inspect.signature(value).parameters.values()
            ]
            found[name] = str(inspect.Signature(bare))[1:-1]
    assert found == FUNCTIONS


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
        "outcome", "reply", "tool_calls", "finish_reason", "prompt_tokens", "cached_tokens", "output_tokens", "ttft_s",
        "duration_s", "elapsed_s", "rule", "fault", "headers", "raw",
    ]  # fmt: skip


def test_the_types_of_settings_are_those_that_the_server_declares() -> None:
    made = subprocess.run(
        [sys.executable, "-c", "from python_options import python_options; print(python_options(), end='')"],
        cwd=ROOT / "tools", check=True, capture_output=True, text=True,
    )  # fmt: skip
    there = (ROOT / "client/llmirage/_options.py").read_text(encoding="utf-8")
    assert there == made.stdout, "run `make docs`"


def test_importing_it_imports_next_to_nothing() -> None:
    code = "import sys, llmirage; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numpy", "httpx", "starlette", "uvicorn", "click", "yaml", "llmirage_server", "llmirage_client"} & set(
        loaded
    )


def test_a_users_program_passes_mypy_strict(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import llmirage\n"
        "def ask() -> str:\n"
        '    with llmirage.Server(virtual_time=True, gpu="h100_sxm", tp=2, speed=None) as server:\n'
        '        [request] = server.expect(1, user="weather")\n'
        "        return request.reply\n"
        'llmirage.Server(gpus="H100")\n'
    )
    env = {**os.environ, "MYPYPATH": ":".join([str(ROOT / side) for side in ("client", "server", "shared")])}
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent"]
    found = subprocess.run(
        [*command, str(program)], cwd=tmp_path, env=env, capture_output=True, text=True
    ).stdout.splitlines()
    errors = [line for line in found if ": error: " in line]
    assert len(errors) == 1, found
    assert 'program.py:6: error: Unexpected keyword argument "gpus"' in errors[0]
