"""What a GPU without measured kernels of its own can expect: whole runs under the constants of another GPU."""

from __future__ import annotations

from dataclasses import replace

from llmirage_server.perf.deployment import Deployment

# Each measured GPU of the runs, and the one whose constants stand in for its own: the most alike of another chip or memory.
STAND_INS = {"h100_sxm": "h200_sxm", "h200_sxm": "h100_sxm", "b200_sxm": "h200_sxm"}


def without_own_constants(deployment: Deployment) -> Deployment:
    """The same deployment as if nobody had measured a kernel on its GPU."""
    gpu = deployment.gpu
    return replace(deployment, gpu=replace(gpu, key=f"{gpu.key}_unmeasured", constants_of=STAND_INS[gpu.key]))
