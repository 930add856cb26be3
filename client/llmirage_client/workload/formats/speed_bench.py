"""speed_bench: prompts to measure speculative decoding by, a question a line (NVIDIA SPEED-Bench, also by way of AIPerf).

Every message of a question is a turn, with the live replies between them; one of role system is a request, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.format import Format, Option, any_of
from llmirage_client.workload.loading import Loading
from llmirage_client.workload.request_graph import free_name
from llmirage_client.workload.session import Session, Turn, Workload

_ID_CHARACTERS = 32
_SPLIT = re.compile(r"(qualitative|throughput_\d+k)(_|$)")  # a file of the benchmark, as AIPerf names it with its category
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"


def load(path: str, *, category: str | None = None) -> Workload:
    """Load every question of the file. category: only those of one. Raises WorkloadError with all problems."""
    file = Loading(path)
    category = category and _SPLIT.sub("", category)
    sessions: list[Session] = []
    names: set[str] = set()
    for row, check in file.rows():
        name = check.need(row, "question_id", check.text)
        if name is not None and len(name) != _ID_CHARACTERS:
            check.fail("question_id", f"String should have {_ID_CHARACTERS} characters, not {len(name)}")
        kind = check.need(row, "category", check.name)
        turns = _turns(row, check)
        if category and kind != category:
            file.left_out.add(f"questions of another category than {category}")
        elif name is not None and turns:
            sessions.append(Session(free_name(name, names), turns, line=check.line))
    file.finish(sessions, "has no question that can run")
    return Workload.of_roots(FORMAT.name, path, sessions, file.notes())


def _turns(row: Mapping[str, Any], check: Checker) -> tuple[Turn, ...]:
    turns = []
    for at, message in check.each(check.need(row, "messages", check.some_items), "messages"):
        role = check.need(message, "role", check.name, at)
        content = check.need(message, "content", check.name, at)
        if content is not None and content.strip() == _PLACEHOLDER:
            check.fail(f"{at}content", "is a placeholder: fetch the texts with the benchmark's own script")
        turns.append(Turn(({"role": role, "content": content},)))
    return tuple(turns)


FORMAT = Format(
    name="speed_bench",
    named="category",
    summary="SPEED-Bench: questions of one or several messages, by category",
    needs="'question_id', 'category' and 'messages' on every line",
    recognises=any_of(("question_id", "category", "messages")),
    load=load,
    order=35,
    options=(Option("category", "text", "only questions of this category"),),
    fetch="huggingface.co/datasets/nvidia/SPEED-Bench, written as JSON lines by its script",
)
