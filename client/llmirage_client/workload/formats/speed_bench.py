"""speed_bench: prompts to measure speculative decoding by, a question a line (NVIDIA SPEED-Bench, also by way of AIPerf).

Every message of a question is a turn, with the live replies between them; one of role system is a request, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.conversation_lines import LeftOut
from llmirage_client.workload.files import read_rows
from llmirage_client.workload.format import Format, Option
from llmirage_client.workload.request_graph import free_name
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError

_ID_CHARACTERS = 32
_SPLIT = re.compile(r"(qualitative|throughput_\d+k)(_|$)")  # a file of the benchmark, as AIPerf names it with its category
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"


def load(path: str, *, category: str | None = None) -> Workload:
    """Load every question of the file. category: only those of one. Raises WorkloadError with all problems."""
    problems: list[Problem] = []
    category = category and _SPLIT.sub("", category)
    left_out = LeftOut()
    sessions: list[Session] = []
    names: set[str] = set()
    for row, check in read_rows(path, problems):
        name = check.text(check.required(row, "question_id"), "question_id")
        if name is not None and len(name) != _ID_CHARACTERS:
            check.fail("question_id", f"String should have {_ID_CHARACTERS} characters, not {len(name)}")
        kind = check.text(check.required(row, "category"), "category", may_be_empty=False)
        turns = _turns(row, check)
        if category and kind != category:
            left_out.add(f"questions of another category than {category}")
        elif name is not None and turns:
            sessions.append(Session(free_name(name, names), turns, line=check.line))
    if not sessions and not problems:
        problems.append(Problem("; ".join(["has no question that can run", *left_out.notes()])))
    if problems:
        raise WorkloadError(path, problems)
    return Workload.of_roots(FORMAT.name, path, sessions, left_out.notes())


def _turns(row: Mapping[str, Any], check: Checker) -> tuple[Turn, ...]:
    turns = []
    for i, entry in enumerate(check.items(check.required(row, "messages"), "messages", may_be_empty=False) or []):
        at = f"messages.{i}."
        message = check.mapping(entry, at[:-1])
        if message is None:
            continue
        role = check.text(check.required(message, "role", at), f"{at}role", may_be_empty=False)
        content = check.text(check.required(message, "content", at), f"{at}content", may_be_empty=False)
        if content is not None and content.strip() == _PLACEHOLDER:
            check.fail(f"{at}content", "is a placeholder: fetch the texts with the benchmark's own script")
        turns.append(Turn(({"role": role, "content": content},)))
    return tuple(turns)


def recognises(keys: Collection[str]) -> bool:
    """Return whether an object with these keys is of this format."""
    return {"question_id", "category", "messages"} <= set(keys)


FORMAT = Format(
    name="speed_bench",
    named="category",
    summary="SPEED-Bench: questions of one or several messages, by category",
    needs="'question_id', 'category' and 'messages' on every line",
    recognises=recognises,
    load=load,
    order=35,
    options=(Option("category", "text", "only questions of this category"),),
    fetch="huggingface.co/datasets/nvidia/SPEED-Bench, written as JSON lines by its script",
)
