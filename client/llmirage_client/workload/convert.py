"""A workload as a file of another format, where its meaning survives.

A file is written with all that its format has a place for, loaded again, and compared: what is not the same then would be
lost. So no format needs a list of what it cannot say.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmirage_client.workload.meaning import differences, renamed
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
    "accumulate": "conversations whose replies are threaded in",
    "accumulate_authored": "conversations with the file's own replies",
    "server_state": "conversations whose history the server keeps",
    "isolated": "requests that are complete in themselves",
    "verbatim": "whole request bodies",
    "tokens": "calls in tokens",
}


class ConversionError(Exception):
    """The format cannot hold the workload. lost: everything that would be lost."""

    def __init__(self, format_name: str, lost: Sequence[str]) -> None:
        self.lost = tuple(lost)
        super().__init__(f"{format_name} cannot hold all of it; this would be lost or changed: {'; '.join(lost)}")


@dataclass(slots=True, frozen=True)
class Converted:
    """options: of the format, needed to load the file. notes: what is different and does not change what goes out."""

    data: bytes
    format: str
    options: Mapping[str, Any]
    notes: tuple[str, ...]


def convert(workload: Workload, format_name: str) -> Converted:
    """Raises ConversionError when the format cannot hold the workload, and KeyError when it has no writer."""
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


def _first(workload: Workload, mode: str) -> Session:
    return next(session for session in workload.sessions.values() if session.mode == mode)


def _notes(before: Workload, after: Workload) -> list[str]:
    notes = list(after.notes)
    if renamed(before, after):
        notes.append(f"conversations have other names ({before.roots[0]!r} is {after.roots[0]!r})")
    ends = {session.ends_on_failure for session in before.sessions.values()}
    if ends != {session.ends_on_failure for session in after.sessions.values()}:
        goes = "ends" if False in ends else "no longer ends"
        notes.append(f"a failed request {goes} its conversation")
    if any(t.min_tokens is not None for s in before.sessions.values() for t in s.turns) and not any(
        t.min_tokens is not None for s in after.sessions.values() for t in s.turns
    ):
        notes.append("min_tokens and ignore_eos, which only endpoints that know them were sent, go to every endpoint now")
    return notes
