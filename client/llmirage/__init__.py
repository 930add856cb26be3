"""llmirage: a simulated LLM cluster, and what-if studies of one, in Python. docs/python.md shows how to use it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from llmirage_shared.settings import ConfigError

if TYPE_CHECKING:
    from llmirage._requests import ClientVerdict, ExpectationError, JudgedRule, ServedRequest, ToolCall, ToolResult
    from llmirage._server import FaultOnOrder, Server, run_in_virtual_time

_PLACES = {
    "ExpectationError": "_requests",
    "FaultOnOrder": "_server",
    "JudgedRule": "_requests",
    "ServedRequest": "_requests",
    "Server": "_server",
    "ToolCall": "_requests",
    "ToolResult": "_requests",
    "ClientVerdict": "_requests",
    "run_in_virtual_time": "_server",
}

__all__ = [
    "ClientVerdict",
    "ConfigError",
    "ExpectationError",
    "FaultOnOrder",
    "JudgedRule",
    "ServedRequest",
    "Server",
    "ToolCall",
    "ToolResult",
    "run_in_virtual_time",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """What is used is imported then: `import llmirage` takes next to no time."""
    if name not in _PLACES:
        raise AttributeError(f"module 'llmirage' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"llmirage.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
