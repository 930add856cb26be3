"""Served requests as the recorder of traces makes them, without a server."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmirage_server.replies.reply import Reply
from llmirage_server.telemetry.traces.served import TracedRequest
from llmirage_shared.wire.sampling import Sampling


def traced(
    id: str, arrival_s: float, end_s: float, prompt: Sequence[int], output_tokens: int = 8, **other: Any
) -> TracedRequest:
    """A request with a prompt of these token ids. other: further fields of a TracedRequest."""
    fields: dict[str, Any] = {
        "caller_id": "",
        "path": "/v1/chat/completions",
        "model": "toy/model",
        "asked_model": "toy",
        "instance": 0,
        "choice": 0,
        "admitted_s": arrival_s,
        "first_token_s": (arrival_s + end_s) / 2,
        "cached_tokens": 0,
        "finish": "stop",
        "since_s": 0.0,
        "session": None,
        "parent": None,
        "affinity": None,
        "traceparent": None,
        "sampling": Sampling(stream=True),
        "max_tokens": None,
        "body": {},
        "text": "",
        "messages": ({"role": "user", "content": f"question {id}"},),
        "tools": (),
        "reply": Reply(np.zeros(output_tokens, np.int32), [f"{id} "] * output_tokens, "stop"),
    }
    key = np.array(prompt, np.int32).tobytes()
    return TracedRequest(
        id=id,
        arrival_s=arrival_s,
        end_s=end_s,
        prompt=key,
        prompt_tokens=len(prompt),
        output_tokens=output_tokens,
        **(fields | other),
    )


def overlaps(events: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Slices of one thread that overlap though neither lies within the other: viewers drop the second."""
    found = []
    around: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in sorted((event for event in events if event["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
        open_now = around.setdefault((event["pid"], event["tid"]), [])
        while open_now and open_now[-1]["ts"] + open_now[-1]["dur"] <= event["ts"]:
            open_now.pop()
        if open_now and event["ts"] + event["dur"] > open_now[-1]["ts"] + open_now[-1]["dur"]:
            found.append((open_now[-1], event))
        open_now.append(event)
    return found
