"""The figures of a run while it goes on, in two lines for a terminal: rates with a sparkline, and latencies so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from llmirage_shared.log_histogram import LogHistogram

SPARK_CELLS = 20
_SPARKS = "▁▂▃▄▅▆▇█"
_RATE_OVER = 5  # slots


class SeenExchange(Protocol):
    """The counted fields of `measure.record.Exchange`."""

    @property
    def start_s(self) -> float: ...

    @property
    def token_s(self) -> Sequence[float]: ...


class LiveFigures:
    """Tell it of every request that succeeded, and of the time now and then.

    speed: of the cluster: a second here is so many of its seconds, in which all figures are. slot_s: of the cluster's time,
    a cell of the sparkline.
    """

    def __init__(self, speed: float = 1.0, slot_s: float = 1.0) -> None:
        self._speed = speed
        self._slot_s = slot_s
        self._slots: deque[tuple[int, int]] = deque([(0, 0)], SPARK_CELLS + 1)  # requests and tokens; the last is open
        self._slot_end_s = slot_s
        self._ttft, self._tpot = LogHistogram(), LogHistogram()

    def see(self, exchange: SeenExchange, tokens: int) -> None:
        """Count a successful request. tokens: of its reply."""
        times = exchange.token_s
        if times:
            self._ttft.add(max(times[0] - exchange.start_s, 0.0) * self._speed)
            if tokens > 1 and len(times) > 1:
                self._tpot.add((times[-1] - times[0]) * self._speed / (tokens - 1))
        requests, before = self._slots[-1]
        self._slots[-1] = requests + 1, before + tokens

    def lines(self, elapsed_s: float, *, sparks: bool) -> list[str]:
        """Return the figures as lines. elapsed_s: of the cluster's time."""
        self._move_to(elapsed_s)
        done = list(self._slots)[:-1]
        late = done[-_RATE_OVER:]
        lines = []
        if late:
            over_s = len(late) * self._slot_s
            requests, tokens = (sum(counts) / over_s for counts in zip(*late, strict=True))
            lines.append(rate_line(requests, tokens, [tokens for _, tokens in done] if sparks else []))
        return [*lines, *latency_line(self._ttft, self._tpot)]

    def _move_to(self, elapsed_s: float) -> None:
        skipped = int((elapsed_s - self._slot_end_s) / self._slot_s) - SPARK_CELLS
        if skipped > 0:
            self._slot_end_s += skipped * self._slot_s
        while elapsed_s >= self._slot_end_s:
            self._slots.append((0, 0))
            self._slot_end_s += self._slot_s


def rate_line(requests_per_s: float, tokens_per_s: float, before: Sequence[float]) -> str:
    """Return the line of figures. before: tokens per second, for the sparkline."""
    spark = f"  {sparkline(before)}" if len(before) > 1 else ""
    return f"{requests_per_s:,.1f} requests/s, {tokens_per_s:,.0f} output tok/s{spark}"


def latency_line(ttft: LogHistogram, tpot: LogHistogram) -> list[str]:
    """Return None where there is nothing to say."""
    both = [(name, of) for name, of in (("TTFT", ttft), ("TPOT", tpot)) if of.count]
    text = "; ".join(f"{name} p50 {_ms(of, 0.5)}, p99 {_ms(of, 0.99)} ms" for name, of in both)
    return [text] if text else []


def sparkline(values: Sequence[float]) -> str:
    """Return a character for each value; the highest is a full one."""
    most = max(values)
    steps = len(_SPARKS) - 1
    return "".join(_SPARKS[round(value / most * steps)] if most > 0 else _SPARKS[0] for value in values)


def _ms(of: LogHistogram, share: float) -> str:
    return f"{of.quantile(share) * 1000:.3g}"
