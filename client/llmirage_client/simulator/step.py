"""One forward pass, as `llmirage step` explains it."""

from __future__ import annotations

from llmirage_server.commands.step_report import as_table, explain, explained_step
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.steps.step_model import StepBatch

__all__ = ["Deployment", "StepBatch", "as_table", "explain", "explained_step"]
