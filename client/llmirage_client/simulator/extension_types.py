"""The types that extensions are made of, which `import llmirage` has.

docs/extensions.md shows routers, workload formats, faults, reply sources and metrics of the user's own.
"""

from __future__ import annotations

from llmirage_client.measure.catalogue import Metric
from llmirage_client.workload.format import Format as WorkloadFormat
from llmirage_client.workload.format import Option as FormatOption
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError
from llmirage_server.cluster.routers import Router, make_router
from llmirage_server.cluster.routers.custom import InstanceView, RequestView
from llmirage_server.faults.fault import Close, EditedReply, FaultAtToken, InjectedFault, Pause, StreamEvent
from llmirage_server.faults.fault import parameter as fault_parameter
from llmirage_server.replies.reply import ReplyRequest

__all__ = [
    "Close", "EditedReply", "FaultAtToken", "FormatOption", "InjectedFault", "InstanceView", "Metric", "Pause", "Problem",
    "ReplyRequest", "RequestView", "Router", "Session", "StreamEvent", "Turn", "Workload", "WorkloadError", "WorkloadFormat",
    "fault_parameter", "make_router",
]  # fmt: skip
