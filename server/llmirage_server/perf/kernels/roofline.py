"""What all kernels share: units, and the choice of what bounds a call."""

from __future__ import annotations

from llmirage_server.perf.kernels.kernel import Bound, Work

US = 1e-6
NS = 1e-9
MMA_ROWS = 16  # rows of a tensor-core tile: that many query heads share one pass over their keys


def explain(
    seconds: float,
    flops: float,
    moved: float,
    arithmetic_s: float,
    traffic_s: float,
    *,
    compute: float = 0.0,
    memory: float = 0.0,
    launch: float = 0.0,
    network: float = 0.0,
) -> Work:
    """Return the Work of a call; its bound is the longest of the parts (seconds) that `seconds` is made of.

    arithmetic_s, traffic_s: at the GPU's peak rates. The compute part also holds what no arithmetic takes: the tiles that a
    few rows leave empty. Where it is the longest though the bytes take longer at the peak rates, memory is the bound.
    """
    parts: dict[Bound, float] = {"compute": compute, "memory": memory, "launch": launch, "network": network}
    bound = max(parts, key=parts.__getitem__)
    if bound == "compute" and traffic_s > arithmetic_s:
        bound = "memory"
    return Work(seconds, flops, moved, max(arithmetic_s, traffic_s), bound)


def round_up(rows: float, block: int) -> int:
    """The smallest multiple of `block` that holds `rows`."""
    return int(-(-rows // block)) * block
