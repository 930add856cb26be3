"""What all kernels share: the smooth maximum, and the choice of what bounds a call."""

from __future__ import annotations

from llmirage_server.perf.kernels.kernel import Bound, Work

US = 1e-6
NS = 1e-9


def explain(seconds: float, flops: float, bytes_: float, ideal_s: float, parts: dict[Bound, float]) -> Work:
    """Return the Work of a call whose `seconds` are made of these parts."""
    return Work(seconds, flops, bytes_, ideal_s, max(parts, key=lambda bound: parts[bound]))
