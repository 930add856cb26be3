"""Workloads: loaded from files, and generated."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from llmirage._results import Result
from llmirage._settings import PathName, settings_from, takes_settings
from llmirage_client.commands.actions.workload_files import distribution_rows, facts_lines
from llmirage_client.operations import workload_files
from llmirage_client.operations.workload import load_workload as loaded
from llmirage_client.operations.workload import readable
from llmirage_client.report.html.page import PageHead, Section, notes, page, table
from llmirage_client.report.output_files import write_output
from llmirage_client.report.screen import Block, table_of
from llmirage_client.settings.workload import GenerateSettings, InspectSettings
from llmirage_client.workload.session import Turn, Workload
from llmirage_shared.plural import plural


class LoadedWorkload(Result):
    """Conversations, for `simulate`, `size` and `run`. The figures of `llmirage inspect --json` are attributes."""

    _workload: Workload

    def __init__(self, workload: Workload, counting: InspectSettings, file: bytes | None = None) -> None:
        """Hold conversations. counting: how `inspect` counts. file: the bytes that `generate` wrote."""
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
            write_output([self._file], os.fspath(path))
            return
        made = workload_files.convert(self._workload, to or self._workload.format, self._counting.tokenizer)
        write_output([made.data], os.fspath(path))

    @cached_property
    def _facts(self) -> workload_files.WorkloadFacts:
        return workload_files.inspect(self._workload, self._counting)

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

    def _blocks(self) -> Iterable[Block]:
        yield self.path
        yield from facts_lines(self._facts)
        if rows := distribution_rows(self._facts):
            yield from ("", table_of(rows))
        yield from (f"note: {note}" for note in self.notes)

    def _line(self) -> str:
        turns = sum(len(session.turns) for session in self._workload.sessions.values())
        return f"{plural(len(self), 'conversation')} of {self.path}, {plural(turns, 'request')}"


def _input_tokens(turn: Turn) -> int | None:
    """Where the file says; else they are counted when the prompt is known."""
    if turn.tokens is not None:
        return turn.tokens.input_tokens
    return None if turn.synthetic is None else turn.synthetic.tokens


@takes_settings(InspectSettings)
def load_workload(
    file: PathName,
    *,
    format: str | None = None,
    format_option: str | Sequence[str] | Mapping[str, object] | None = None,
    min_turns: int | None = None,
    max_turns: int | None = None,
    dataset_offset: int | None = None,
    tokenizer: str | None = None,
    reply_tokens: int | None = None,
) -> LoadedWorkload:
    """Read a workload file, bundled:NAME, or a preset.

    format: its format; None: detected from the content. format_option: options of the format, such as {"seed": 1}.
    max_turns: use only the first turns of a conversation. dataset_offset: skip the first conversations.
    tokenizer, reply_tokens: how the statistics count, and the length of replies that the file does not give.

    Raises ConfigError.
    """
    settings = settings_from(InspectSettings, locals(), but=("file",))
    with readable():
        workload = loaded(os.fspath(file), settings, tokenizer=settings.tokenizer)
    return LoadedWorkload(workload, settings)


@takes_settings(GenerateSettings)
def generate(
    preset: PathName = "agent-chain",
    *,
    set: str | Sequence[str] | Mapping[str, object] | None = None,
    conversations: int | None = None,
    rate: float | None = None,
    to: str | None = None,
    tokenizer: str | None = None,
    token_ids: bool | None = None,
    random_seed: int | None = None,
) -> LoadedWorkload:
    """Make a synthetic workload.

    preset: a name, or a YAML file of parameters. set: parameters to change, such as {"turns.mean": 12}.
    rate: conversations per second. to: the format of its file, for `save`.

    Raises ConfigError with all problems.
    """
    given = {name: value for name, value in locals().items() if name != "set"}
    settings = settings_from(GenerateSettings, given | {"set": {"set": set}}, but=("preset",))
    made = workload_files.GeneratedWorkload(os.fspath(preset), settings)
    file = b"".join(made)
    return LoadedWorkload(made.workload, InspectSettings(tokenizer=settings.tokenizer), file)
