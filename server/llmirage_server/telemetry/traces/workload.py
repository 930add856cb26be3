"""Live traffic as a workload file that `run` and `simulate` replay: mooncake_trace with whole messages, a line a request."""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from llmirage_server.telemetry.traces.served import MOST_SESSIONS, TracedRequest
from llmirage_server.telemetry.traces.trace_file import json_line, milliseconds, opened

_NOTICED_S = 0.05  # after its end: by then a proxy has noticed that a response is over, of which the client acts at once


@dataclass(slots=True, frozen=True)
class RecordedCall:
    """One request of a client. Exactly one of messages, text and payload is set. Times are seconds on any one clock.

    session: as its headers name it; None: that of the last request whose messages it continues. extra: further parameters.
    labels: tenant and service class.
    """

    arrival_s: float
    end_s: float
    output_tokens: int | None
    session: str | None = None
    messages: Sequence[Mapping[str, Any]] = ()
    text: str | None = None
    payload: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


class WorkloadWriter:
    """The file. A session's first request has its time, each later one its delay from the end of the one before."""

    def __init__(self, path: Path, setting: str = "record_workload") -> None:
        """Create the file. Raises ConfigError, which names the setting, if it cannot be made."""
        self._file = opened(path, setting)
        self._origin_s = math.inf
        self._ends_s: OrderedDict[str, float] = OrderedDict()
        self._continued: OrderedDict[bytes, str] = OrderedDict()  # by digest of the messages: the session
        self._sessions = 0

    def begun(self, at_s: float) -> None:
        """Take in that a request came. Times count from the first one, though others may end, and be written, before it."""
        self._origin_s = min(self._origin_s, at_s)

    def write(self, requests: Iterable[TracedRequest]) -> None:
        for served in requests:
            if served.output_tokens:
                self.begun(served.since_s)
                self.add([replace(_call_of(served), labels=served.labels)])

    def add(self, calls: Iterable[RecordedCall]) -> None:
        """Write the calls. Raises OSError."""
        for call in calls:
            self._file.add(json_line(self._row(call)))

    def _row(self, call: RecordedCall) -> dict[str, Any]:
        self.begun(call.arrival_s)
        row: dict[str, Any] = dict(call.labels)
        ended_s = None
        if call.text is None:
            kind = "" if call.payload is None else "/payload"
            name = (call.session or self._found(call.messages) or self._new()) + kind
            ended_s = self._ends_s.get(name)
            if ended_s is not None and ended_s > call.arrival_s + _NOTICED_S:  # two at once: the format has none
                name, ended_s = f"{name}/{self._new()}", None
            row["session_id"] = name
            self._ends_s[name] = call.end_s
            if call.session is None and call.messages:
                self._continued[_digest(call.messages)] = name
            for known in (self._ends_s, self._continued):
                if len(known) > MOST_SESSIONS:
                    known.popitem(last=False)
        if ended_s is None:
            row["timestamp"] = milliseconds(call.arrival_s - self._origin_s)
        else:
            row["delay"] = max(milliseconds(call.arrival_s - ended_s), 0.0)
        if call.payload is not None:
            return row | {"payload": call.payload}
        row |= {"text_input": call.text} if call.text is not None else {"messages": list(call.messages)}
        if call.tools and call.text is None:
            row["tools"] = list(call.tools)
        if call.output_tokens:
            row["output_length"] = call.output_tokens
        return row | ({"extra": dict(call.extra)} if call.extra else {})

    def _new(self) -> str:
        self._sessions += 1
        return f"session-{self._sessions}"

    def _found(self, messages: Sequence[Mapping[str, Any]]) -> str | None:
        """Return the session of the last request that had the messages before one of the assistant."""
        for place in range(len(messages) - 1, 0, -1):
            if messages[place].get("role") == "assistant" and (name := self._continued.get(_digest(messages[:place]))):
                return name
        return None


def _digest(messages: Sequence[Mapping[str, Any]]) -> bytes:
    return hashlib.blake2b(json.dumps(messages, sort_keys=True).encode(), digest_size=16).digest()


# Fields of a body that a row has a key of its own for, or that a run chooses.
_TOLD = ("model", "messages", "prompt", "stream", "stream_options", "tools", "functions", "max_tokens", "n")
_BY_BODY = {"/chat/completions": "messages", "/completions": "prompt"}  # by ending of the path: the field of the prompt


def recorded_call(
    path: str, body: Mapping[str, Any], arrival_s: float, end_s: float, output_tokens: int | None, session: str | None
) -> RecordedCall:
    """Return a request by its body: one of chat or completions in the format's terms, one of another API as it is."""
    told = next((field for ending, field in _BY_BODY.items() if path.partition("?")[0].endswith(ending)), None)
    prompt = body.get(told or "")
    times = arrival_s, end_s, output_tokens, session
    extra = {name: value for name, value in body.items() if name not in (*_TOLD, "max_completion_tokens")}
    match prompt:
        case [{}, *_] if told == "messages":
            tools = [*(body.get("tools") or ()), *({"type": "function", "function": f} for f in body.get("functions") or ())]
            return RecordedCall(*times, messages=prompt, tools=tools, extra=extra)
        case str() if told == "prompt":
            return RecordedCall(*times, text=prompt, extra=extra)
        case _:
            return RecordedCall(*times, payload=body)


def _call_of(served: TracedRequest) -> RecordedCall:
    """Return a request that this server has served, with the length that its reply had."""
    exact: dict[str, Any] = {}
    if served.finish in ("stop", "length"):  # of a call of a tool the schema says how long it is
        exact = {"min_tokens": served.output_tokens, "ignore_eos": True}
    times = served.arrival_s, served.end_s, served.output_tokens, served.session
    call = recorded_call(served.path, served.body, *times)
    if call.payload is None:
        return replace(call, extra={**call.extra, **exact})
    if not served.messages and not served.text:  # a prompt of token ids
        ids = np.frombuffer(served.prompt, np.int32).tolist()
        return RecordedCall(*times, payload={**served.body, "prompt": ids, "n": 1})
    if not served.messages:
        return RecordedCall(*times, text=served.text, extra=exact)
    tools = [
        {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}}
        for tool in served.tools
        if tool.kind == "function"
    ]
    return RecordedCall(*times, messages=served.messages, tools=tools, extra=exact)
