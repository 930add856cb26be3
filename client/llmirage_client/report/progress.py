"""Progress of a run: a few lines redrawn on a terminal, with live rates and latencies; a plain line at times elsewhere.

Drawn by hand: `rich.progress` takes 60 ms to import before the first request, and redraws from a thread, which delays
timers. Here a line is drawn only from a call; calling update() again with the same figures keeps the clock on it moving.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from llmirage_shared.plural import plural, rounded
from llmirage_shared.statistics import LogHistogram

if TYPE_CHECKING:
    from llmirage_client.measure.record import Exchange, Record

SPARK_CELLS = 20
_SPARKS = "▁▂▃▄▅▆▇█"
_RATE_OVER = 5  # slots


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

    def see(self, exchange: Exchange, tokens: int) -> None:
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
    return rounded(of.quantile(share) * 1000, 3)


REDRAW_S = 0.1  # on a terminal: ten times a second at most
PLAIN_LINE_S = 5.0  # elsewhere, such as the log of a CI job
_BAR_CELLS = 24
_LEAST_FOR_BAR = 60  # columns: on fewer the figures need the room


class StatusLine:
    """A progress line with further lines below it, redrawn ten times a second on a terminal.

    Elsewhere the line is written every few seconds.

    stream: where to draw, by default stderr; a closed or broken one is left alone. quiet_s: it starts now, and is drawn from
    then on; None: it is started later.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic, quiet_s: float | None = None
    ) -> None:
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._clock = clock
        self._terminal = _is_terminal(self._stream)
        self._every_s = REDRAW_S if self._terminal else PLAIN_LINE_S
        self._started_s: float | None = None
        self._next_s = float("inf")
        if quiet_s is not None:
            self._started_s = clock()
            self._next_s = self._started_s + quiet_s
        self._drawn = False
        self._below = 0  # lines that were drawn below the first

    def interrupt(self) -> None:
        """Begin anew below text that others wrote to the terminal."""
        self._below = 0

    def _lines_below(self, elapsed_s: float) -> list[str]:
        """Return the lines below the progress line, on a terminal with room for them."""
        return []

    def _line(self, elapsed_s: float) -> str:
        """Return the text of the progress line."""
        raise NotImplementedError

    def _draw_if_due(self) -> None:
        now = self._clock()
        if now >= self._next_s:
            self._draw(now)

    def _draw(self, now: float) -> None:
        self._next_s, self._drawn = now + self._every_s, True
        if self._stream is None:
            return
        assert self._started_s is not None
        text = self._line(now - self._started_s)
        if self._terminal:
            self._draw_lines([text, *self._lines_below(now - self._started_s)])
        else:
            self._write(text + "\n")

    @property
    def _has_room_for_a_bar(self) -> bool:
        return self._terminal and self._stream is not None and _size(self._stream)[0] >= _LEAST_FOR_BAR

    @property
    def _has_lines_below(self) -> bool:
        """True if the stream is a terminal; a notebook, which is like one, shows one line."""
        return self._terminal and not hasattr(self._stream, "columns")

    @property
    def _has_sparks(self) -> bool:
        return (getattr(self._stream, "encoding", None) or "").lower().startswith("utf")

    def _draw_lines(self, lines: list[str]) -> None:
        """Draw lines over those drawn before."""
        assert self._stream is not None
        columns, rows = _size(self._stream)
        if rows <= len(lines):
            lines = lines[:1]
        # The last column stays empty: a terminal that wraps there would scroll at every redraw.
        drawn = "\n".join(f"{line[: max(columns - 1, 0)]}\x1b[K" for line in lines)
        self._write("\r" + self._up() + drawn + ("\x1b[J" if len(lines) <= self._below else ""))
        self._below = len(lines) - 1

    def _up(self) -> str:
        """Return the control codes that move the cursor to the first line."""
        return f"\x1b[{self._below}A" if self._below else ""

    def _end(self, last: str) -> None:
        """Write what comes last on a terminal that has the line, and nothing more."""
        if self._terminal and self._drawn:
            self._write(last)
        self._stream, self._below = None, 0
        self._next_s = float("inf")

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # broken pipe, closed file: the run matters, its progress line does not
            self._stream = None


class Progress(StatusLine):
    """Shows how far a run is. total: requests the run will make, None when that is not known."""

    def __init__(self, total: int | None, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock)
        self.total = total
        self._counts = (0, 0, 0)
        self._live: LiveFigures | None = None
        self._speed = 1.0

    def watch(self, speed: float) -> None:
        """Show figures, too, if there is a terminal. speed: that of the cluster."""
        if self._has_lines_below:
            self._live, self._speed = LiveFigures(speed, slot_s=speed), speed

    def see(self, record: Record) -> None:
        """Count a finished request."""
        exchange = record.exchange
        if self._live is not None and exchange.error is None:
            usage = exchange.usage or {}
            self._live.see(exchange, usage.get("completion_tokens") or len(exchange.token_s))

    def tell(self, text: str) -> None:
        """Write a line that stays, before the progress starts."""
        self._write(text + "\n")

    def start(self) -> None:
        if self._started_s is not None:
            return
        self._started_s = self._clock()
        self._draw(self._started_s)

    def update(self, done: int, errors: int, in_flight: int) -> None:
        """Update the counts, once per request. done: requests finished, well or not; errors: how many of them failed."""
        self._counts = (done, errors, in_flight)
        self._draw_if_due()

    def stop(self) -> None:
        """Draw the last state and leave the stream at the start of a fresh line. Safe to call twice."""
        if self._started_s is None or self._stream is None:
            return
        self._live = None
        self._draw(self._clock())
        self._end("\n")

    def _lines_below(self, elapsed_s: float) -> list[str]:
        if self._live is None or self._stream is None:
            return []
        return self._live.lines(elapsed_s * self._speed, sparks=self._has_sparks)

    def _line(self, elapsed_s: float) -> str:
        done, errors, in_flight = self._counts
        parts = [f"{done}/{plural(self.total, 'request')}" if self.total is not None else plural(done, "request")]
        if errors:
            parts.append(f"{errors} failed")
        parts.append(f"{in_flight} in flight")
        if done and elapsed_s > 0:
            parts.append(f"{done / elapsed_s:.1f}/s")
        parts.append(minutes(elapsed_s))
        text = ", ".join(parts)
        return f"{bar(done / self.total)} {text}" if self.total and self._has_room_for_a_bar else text


def bar(share: float) -> str:
    """Return a progress bar. share: of the work, 1 at most."""
    filled = min(int(share * _BAR_CELLS), _BAR_CELLS)
    return f"[{'#' * filled}{'-' * (_BAR_CELLS - filled)}]"


def minutes(seconds: float) -> str:
    """Return a text such as 3:07."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except (OSError, ValueError):
        return False


def _size(stream: TextIO) -> tuple[int, int]:
    """Return columns and lines."""
    if isinstance(columns := getattr(stream, "columns", None), int):  # no terminal, but one who knows
        return columns, 1
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return size.columns or 80, size.lines or 24
