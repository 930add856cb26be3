"""A workload as a file of another format, where its meaning survives.

A file is written with all that its format has a place for, loaded again, and compared: what is not the same then would be
lost. So no format needs a list of what it cannot say.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmirage_client.workload.dag.graph import references
from llmirage_client.workload.meaning import differences
from llmirage_client.workload.registry import ALIASES, load
from llmirage_client.workload.session import Session, Workload, WorkloadError
from llmirage_client.workload.writers import agentic_jsonl, authored, bodies, dag_jsonl, dialogues, trace
from llmirage_client.workload.writers.writer import Writer

WRITERS: Mapping[str, Writer] = {
    writer.format: writer
    for writer in (
        dag_jsonl.WRITER,
        authored.MULTI,
        authored.SINGLE,
        trace.WRITER,
        agentic_jsonl.WRITER,
        bodies.INPUTS,
        bodies.RAW,
        dialogues.CUSTOM,
        dialogues.SHARE_GPT,
    )
}
_KINDS = {
    "accumulate": "conversations with live replies in the history",
    "accumulate_authored": "conversations with the file's own replies",
    "server_state": "conversations whose history the server keeps",
    "server_conversation": "conversations whose history the server keeps",
    "isolated": "independent requests",
    "verbatim": "whole request bodies",
    "tokens": "calls in tokens",
}


class ConversionError(Exception):
    """The format cannot hold the workload. lost: everything that would be lost."""

    def __init__(self, format_name: str, lost: Sequence[str]) -> None:
        self.lost = tuple(lost)
        super().__init__(f"{format_name} cannot represent it; this would be lost or changed: {'; '.join(lost)}")


@dataclass(slots=True, frozen=True)
class Converted:
    """options: of the format, needed to load the file. notes: what is different and does not change what goes out."""

    data: bytes
    format: str
    options: Mapping[str, Any]
    notes: tuple[str, ...]


def convert(workload: Workload, format_name: str) -> Converted:
    """Without conversations that an offset left out.

    Raises ConversionError when the format cannot hold the workload, and KeyError when it has no writer.
    """
    workload = _without_skipped(workload)
    name = ALIASES.get(format_name, format_name)
    writer = WRITERS[name]
    foreign = dict.fromkeys(s.mode for s in workload.sessions.values() if s.turns and s.mode not in writer.modes)
    lost = [f"{_KINDS[mode]} ({_first(workload, mode).id!r})" for mode in foreign]
    if lost:
        raise ConversionError(name, lost)
    written = writer.write(workload)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "converted"
        path.write_bytes(written.data)
        try:
            after = load(str(path), name, written.options)
        except WorkloadError as error:
            raise ConversionError(name, [str(problem) for problem in error.problems[:5]]) from None
    found = differences(workload, after)
    if found:
        raise ConversionError(name, list(found))
    return Converted(written.data, name, written.options, tuple(_notes(workload, after)))


def _without_skipped(workload: Workload) -> Workload:
    """The roots that a run begins with, and what they start."""
    roots = workload.roots[: len(workload.roots) - workload.skipped]
    kept = dict.fromkeys(roots)
    waiting = list(roots)
    while waiting:
        for reference in references(workload.sessions[waiting.pop()]):
            if reference.child not in kept:
                kept[reference.child] = None
                waiting.append(reference.child)
    sessions = {name: session for name, session in workload.sessions.items() if name in kept}
    return replace(workload, sessions=sessions, roots=roots, skipped=0)


def _first(workload: Workload, mode: str) -> Session:
    return next(session for session in workload.sessions.values() if session.mode == mode)


def _notes(before: Workload, after: Workload) -> list[str]:
    notes = list(after.notes)
    names = next(((old, new) for old, new in zip(before.roots, after.roots, strict=True) if old != new), None)
    if names is not None:
        notes.append(f"conversations have other names ({names[0]!r} is {names[1]!r})")
    ends = {session.ends_on_failure for session in before.sessions.values()}
    if ends != {session.ends_on_failure for session in after.sessions.values()}:
        goes = "ends" if False in ends else "no longer ends"
        notes.append(f"a failed request {goes} its conversation")
    if any(t.min_tokens is not None for s in before.sessions.values() for t in s.turns) and not any(
        t.min_tokens is not None for s in after.sessions.values() for t in s.turns
    ):
        notes.append(
            "min_tokens and ignore_eos, which were sent only to endpoints that support them, are now sent to every endpoint"
        )
    return notes
