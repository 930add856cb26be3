"""A workload in another format."""

from __future__ import annotations

from llmirage_client.load.turn_calls import written_out
from llmirage_client.workload.convert import ConversionError, Converted
from llmirage_client.workload.convert import convert as in_format
from llmirage_client.workload.registry import ALIASES
from llmirage_client.workload.session import Workload
from llmirage_client.workload.writers import WRITERS
from llmirage_shared.settings import ConfigError, InputRefused


def check_writable(to: str) -> None:
    """Raise ConfigError for a format that cannot be written."""
    if ALIASES.get(to, to) not in WRITERS:
        raise ConfigError([f"Invalid value for --to: {to!r} cannot be written; choose one of {', '.join(WRITERS)}"])


def convert(workload: Workload, to: str, tokenizer: str | None = None, seed: int = 0) -> Converted:
    """Convert a workload; where the format has no lengths, write out the texts that the file gives by length.

    Raises ConfigError for a format that cannot be written, or that cannot represent the workload.
    """
    check_writable(to)
    synthetic = any(turn.synthetic is not None for session in workload.sessions.values() for turn in session.turns)
    try:
        try:
            return in_format(workload, to)
        except ConversionError:
            if not synthetic:
                raise
        return in_format(written_out(workload, tokenizer, seed), to)
    except ConversionError as error:
        raise InputRefused([f"{workload.path}: {error}"]) from None
