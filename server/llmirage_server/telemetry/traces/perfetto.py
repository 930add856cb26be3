"""Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open: when which instance worked on what."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from llmirage_server.telemetry.traces.block_traces import SETTING, json_line
from llmirage_server.telemetry.traces.served import TracedRequest
from llmirage_server.telemetry.traces.sessions import PlacedRequest, Sessions
from llmirage_server.telemetry.traces.trace_file import opened

_Event = dict[str, Any]


class PerfettoWriter:
    """A process an instance; in it a thread for each request that runs at once, with its phases as slices."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises ConfigError if it cannot be made."""
        self._file = opened(path, SETTING, b"[\n", b"]\n")
        self._sessions = Sessions()
        self._begun = False
        self._free_s: dict[int, list[float]] = {}  # by instance: the end of the last request of each thread
        self._origin_s: float | None = None

    def write(self, requests: Iterable[TracedRequest]) -> None:
        for served in requests:
            part = b",\n".join([json_line(event).strip() for event in self._events(self._sessions.place(served))])
            self._file.add((b",\n" if self._begun else b"") + part)
            self._begun = True

    def close(self) -> None:
        """Do nothing: the file is complete."""

    def _events(self, placed: PlacedRequest) -> Iterator[_Event]:
        served = placed.served
        self._origin_s = served.arrival_s if self._origin_s is None else self._origin_s
        process = served.instance + 1  # 0: of requests that no instance got
        if process not in self._free_s:
            self._free_s[process] = []
            name = f"instance {served.instance} ({served.model})" if process else "no instance"
            yield _named("process_name", process, 0, name)
        threads = self._free_s[process]
        thread = next((number for number, end_s in enumerate(threads) if end_s <= served.arrival_s), len(threads))
        if thread == len(threads):
            threads.append(0.0)
            yield _named("thread_name", process, thread + 1, f"slot {thread + 1}")
        threads[thread] = served.end_s
        told = {
            "request_id": served.id,
            "caller_id": served.caller_id,
            "session": placed.session.name,
            "model": served.model,
            "prompt_tokens": served.prompt_tokens,
            "cached_tokens": served.cached_tokens,
            "output_tokens": served.output_tokens,
            "finish_reason": served.finish,
            "tool_calls": [name for _, name, _ in served.calls],
        }
        if served.refusal is not None:
            told["status"], told["error"] = served.refusal
        if placed.session.parent is not None:
            told["parent_session"] = placed.session.parent.name
        yield self._slice(process, thread, "request", placed.session.name, served.arrival_s, served.end_s, told)
        times = [served.arrival_s, served.admitted_s, served.first_token_s, served.end_s]
        for number, name in enumerate(("queue", "prefill", "decode")):
            start_s = times[number]
            later = [time_s for time_s in times[number + 1 :] if not math.isnan(time_s)]
            if not math.isnan(start_s) and later:
                yield self._slice(process, thread, "phase", name, start_s, later[0], {})

    def _slice(
        self, process: int, thread: int, category: str, name: str, start_s: float, end_s: float, told: dict[str, Any]
    ) -> _Event:
        assert self._origin_s is not None
        start_us, end_us = (round((time_s - self._origin_s) * 1e6) for time_s in (start_s, end_s))
        return {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": process,
            "tid": thread + 1,
            "ts": start_us,
            "dur": max(end_us - start_us, 0),
            "args": told,
        }


def _named(what: str, process: int, thread: int, name: str) -> _Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
