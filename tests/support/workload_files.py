"""Workload files for tests of loaders: writing them, the problems they have, and mutants of valid ones."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from llmirage_client.workload.registry import load
from llmirage_client.workload.session import Workload, WorkloadError

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def write(folder: Path, *rows: Any) -> str:
    """Each row a line; a str as it is, anything else as JSON."""
    path = folder / "workload"  # no suffix: the content decides
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    return str(path)


def conversation(*texts: str, name: str = "s") -> dict[str, Any]:
    """A line of dag_jsonl: a conversation of these messages, a turn each."""
    return {"session_id": name, "turns": [{"messages": [{"role": "user", "content": text}]} for text in texts]}


def write_whole(folder: Path, content: str | bytes) -> str:
    """The content as it is, to the byte."""
    path = folder / "workload"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def problems_of(path: str, format_name: str | None = None, **options: Any) -> list[str]:
    with pytest.raises(WorkloadError) as caught:
        load(path, format_name, options)
    return [str(problem) for problem in caught.value.problems]


def assert_refused(folder: Path, format_name: str, row: Any, starts: Sequence[str]) -> None:
    """Its only line has these problems, in this order; `starts` are their beginnings."""
    found = problems_of(write(folder, row), format_name)
    assert len(found) == len(starts)
    assert all(one.startswith(f"line 1: {start}") for one, start in zip(found, starts, strict=True))


def contents(workload: Workload) -> list[list[list[Any]]]:
    """The contents of the messages of each turn of each root."""
    return [
        [[message.get("content") for message in turn.messages] for turn in workload.sessions[root].turns]
        for root in workload.roots
    ]


def mutate(value: Any, data: st.DataObject) -> Any:
    """A copy of a JSON value in which one place, anywhere inside, holds something else or is gone."""
    root: list[Any] = [json.loads(json.dumps(value))]
    holder: Any = root
    key: Any = 0
    while isinstance(holder[key], dict | list) and holder[key] and data.draw(st.integers(0, 4)):
        holder = holder[key]
        key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
    if holder is root or data.draw(st.booleans()):
        holder[key] = data.draw(ANYTHING)
    else:
        del holder[key]
    return root[0]


def loads_or_is_refused(path: str, format_name: str | None, **options: Any) -> None:
    """What every loader owes to any file: sessions that can run, or problems that name the file."""
    try:
        workload = load(path, format_name, options)
    except WorkloadError as error:
        refused = error
    else:
        assert workload.roots
        assert all(session.turns for session in workload.sessions.values())
        return
    assert refused.problems
    assert all(line.startswith(path) for line in str(refused).split("\n"))
