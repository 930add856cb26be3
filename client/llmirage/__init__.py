"""llmirage: a simulated LLM cluster, and what-if studies of one, in Python. docs/python.md shows how to use it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from llmirage_shared.settings import ConfigError

if TYPE_CHECKING:
    from llmirage._cluster import Cluster, StepResult, step
    from llmirage._plans import CalibrationResult, SizeResult, SweepResult, calibrate, size, sweep
    from llmirage._requests import ClientVerdict, ExpectationError, JudgedRule, ServedRequest, ToolCall, ToolResult
    from llmirage._results import Result, SummaryFigures
    from llmirage._run import RunReport, RunSweep, run, run_async
    from llmirage._server import FaultOnOrder, Server, run_in_virtual_time
    from llmirage._simulate import SimulationResult, simulate
    from llmirage._workload import LoadedWorkload, generate, load_workload
    from llmirage_client.simulator.extension_types import (
        Close,
        EditedReply,
        FaultAtToken,
        FormatOption,
        InjectedFault,
        InstanceView,
        Metric,
        Pause,
        Problem,
        ReplyRequest,
        RequestView,
        Router,
        Session,
        StreamEvent,
        Turn,
        Workload,
        WorkloadError,
        WorkloadFormat,
        fault_parameter,
        make_router,
    )

_PLACES = {
    "_cluster": ["Cluster", "StepResult", "step"],
    "_plans": ["CalibrationResult", "SizeResult", "SweepResult", "calibrate", "size", "sweep"],
    "_requests": ["ClientVerdict", "ExpectationError", "JudgedRule", "ServedRequest", "ToolCall", "ToolResult"],
    "_results": ["Result", "SummaryFigures"],
    "_run": ["RunReport", "RunSweep", "run", "run_async"],
    "_server": ["FaultOnOrder", "Server", "run_in_virtual_time"],
    "_simulate": ["SimulationResult", "simulate"],
    "_workload": ["LoadedWorkload", "generate", "load_workload"],
}
_PLACE_OF = {name: f"llmirage.{place}" for place, names in _PLACES.items() for name in names}

__all__ = [
    "CalibrationResult", "ClientVerdict", "Close", "Cluster", "ConfigError", "EditedReply", "ExpectationError",
    "FaultAtToken", "FaultOnOrder", "FormatOption", "InjectedFault", "InstanceView", "JudgedRule", "LoadedWorkload",
    "Metric", "Pause", "Problem", "ReplyRequest", "RequestView", "Result", "Router", "RunReport", "RunSweep",
    "ServedRequest", "Server", "Session", "SimulationResult", "SizeResult", "StepResult", "StreamEvent", "SummaryFigures",
    "SweepResult", "ToolCall", "ToolResult", "Turn", "Workload", "WorkloadError", "WorkloadFormat", "calibrate",
    "fault_parameter", "generate", "load_workload", "make_router", "run", "run_async", "run_in_virtual_time", "simulate",
    "size", "step", "sweep",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: `import llmirage` takes next to no time."""
    if name not in __all__:
        raise AttributeError(f"module 'llmirage' has no attribute {name!r}")
    place = _PLACE_OF.get(name, "llmirage_client.simulator.extension_types")
    value = getattr(importlib.import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
