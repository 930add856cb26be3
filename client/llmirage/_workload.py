"""Workloads: loaded from files, and generated."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from llmirage._commands import parsed
from llmirage._results import Result
from llmirage_client.commands.actions.inspect import distribution_rows, facts_lines
from llmirage_client.commands.actions.output import write_output
from llmirage_client.commands.actions.table import table_of
from llmirage_client.operations import convert, inspect
from llmirage_client.operations import generate as generation
from llmirage_client.operations.workload import load_workload as loaded
from llmirage_client.operations.workload import readable
from llmirage_client.report.html.page import PageHead, Section, notes, page, table
from llmirage_client.report.screen import Block
from llmirage_client.settings.workload import GenerateSettings, InspectSettings
from llmirage_client.workload.session import Turn, Workload
from llmirage_shared.settings import instance_of

if TYPE_CHECKING:
    from typing import Unpack

    from llmirage._options import GenerateOptions, InspectOptions


class LoadedWorkload(Result):
    """Conversations, for `simulate`, `size` and `run`. The figures of `llmirage inspect --json` are attributes."""

    _workload: Workload

    def __init__(self, workload: Workload, counting: InspectSettings, file: bytes | None = None) -> None:
        """counting: how `inspect` counts. file: what `generate` wrote."""
        self._workload = workload
        self._counting = counting
        self._file = file

    @property
    def path(self) -> str:
        """Where it is from."""
        return self._workload.path

    @property
    def notes(self) -> list[str]:
        """What one must know to read the figures."""
        return list(self._facts.notes)

    def __len__(self) -> int:
        """Conversations that start on their own."""
        return len(self._workload.roots)

    def save(self, path: str | os.PathLike[str], to: str | None = None) -> None:
        """Write it; compressed if the name ends in .gz. to: another format, by its name. Raises ConfigError."""
        if to is None and self._file is not None:
            write_output(self._file, os.fspath(path))
            return
        made = convert.convert(self._workload, to or self._workload.format, self._counting.tokenizer)
        write_output(made.data, os.fspath(path))

    @cached_property
    def _facts(self) -> inspect.WorkloadFacts:
        return inspect.inspect(self._workload, self._counting)

    def _data(self) -> Mapping[str, Any]:
        return self._facts.json()

    def _columns(self) -> Mapping[str, Any]:
        """One row a turn."""
        rows = [(session, at, turn) for session in self._workload.sessions.values() for at, turn in enumerate(session.turns)]
        return {
            "conversation": [session.id for session, _, _ in rows],
            "turn": [at for _, at, _ in rows],
            "arrival_s": [session.arrival_s if turn.arrival_s is None else turn.arrival_s for session, _, turn in rows],
            "delay_s": [turn.delay_s for _, _, turn in rows],
            "model": [turn.model for _, _, turn in rows],
            "messages": [len(turn.messages) for _, _, turn in rows],
            "input_tokens": [_input_tokens(turn) for _, _, turn in rows],
            "output_tokens": [turn.tokens.output_tokens if turn.tokens else turn.max_tokens for _, _, turn in rows],
        }

    def _page(self, *, brief: bool = False) -> str:
        counts = {name.capitalize(): value for name, value in self._facts.facts.items() if value}
        facts = {name: f"{value:,}" if isinstance(value, int) else value for name, value in counts.items()}
        rows = distribution_rows(self._facts)
        shown = [table([*rows[0]], [[*row.values()] for row in rows])] if rows else []
        sections = [Section("Distributions", shown), Section("Notes", [notes(self.notes)])]
        return page(PageHead(self.path, facts), sections)

    def _blocks(self, width: int) -> Iterable[Block]:
        yield self.path
        yield from facts_lines(self._facts)
        if rows := distribution_rows(self._facts):
            yield from ("", table_of(rows))
        yield from (f"note: {note}" for note in self.notes)

    def _line(self) -> str:
        turns = sum(len(session.turns) for session in self._workload.sessions.values())
        return f"{len(self):,} conversations of {self.path}, {turns:,} requests"


def _input_tokens(turn: Turn) -> int | None:
    """Where the file says; else they are counted when the prompt is known."""
    if turn.tokens is not None:
        return turn.tokens.input_tokens
    return None if turn.synthetic is None else turn.synthetic.tokens


def load_workload(file: str | os.PathLike[str], **settings: Unpack[InspectOptions]) -> LoadedWorkload:
    """Read a workload file, bundled:NAME, or a preset. Settings are those of `llmirage inspect`. Raises ConfigError."""
    given = parsed("inspect", [file], settings)
    counting = instance_of(InspectSettings, given)
    with readable():
        workload = loaded(given["file"], counting, tokenizer=counting.tokenizer)
    return LoadedWorkload(workload, counting)


def generate(preset: str | os.PathLike[str] = "agent-chain", **settings: Unpack[GenerateOptions]) -> LoadedWorkload:
    """Make a synthetic workload from a preset or a YAML file. Settings are those of `llmirage generate`.

    Parameters are set by `set={"turns.mean": 12}`. Raises ConfigError with all problems.
    """
    given = parsed("generate", [preset], settings)
    chosen = instance_of(GenerateSettings, given)
    made = generation.generate(given["preset"], chosen)
    return LoadedWorkload(made.workload, InspectSettings(tokenizer=chosen.tokenizer), made.file)
