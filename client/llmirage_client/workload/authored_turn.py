"""One authored turn of AIPerf's single_turn and multi_turn formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmirage_client.workload.checking import MOST_TOKENS, Checker, StrayKeys
from llmirage_client.workload.session import Turn
from llmirage_client.workload.user_content import MODALITY_KEYS, Content, ContentReader

TURN_KEYS = (*MODALITY_KEYS, "type", "timestamp", "delay", "role", "session_id", "output_length", "extra")
_MS_PER_S = 1e3


@dataclass(slots=True, frozen=True)
class AuthoredTurn:
    """bare: it has nothing but a role and text, so it may become a system prompt."""

    turn: Turn
    role: str
    content: Content
    bare: bool
    session_id: str | None

    @property
    def system_text(self) -> str | None:
        """The text of a turn that is nothing but a system prompt."""
        text = "\n".join(self.content.texts)
        return text if self.role == "system" and self.bare and text else None


class TurnReader:
    """Reads the turns of one file."""

    def __init__(self) -> None:
        self._contents = ContentReader()
        self.stray = StrayKeys()

    def read(self, row: Mapping[str, Any], check: Checker, prefix: str = "") -> AuthoredTurn:
        """Raises nothing: every problem goes to the checker."""
        self.stray.look(row, TURN_KEYS, check, prefix)
        check_type(row, "single_turn", check, prefix)
        content = self._contents.read(row, check, prefix)
        role = check.given(row, "role", check.text, prefix)
        timing = read_timing(row, check, prefix)
        if row.get("timestamp") and row.get("delay"):
            check.rule("timestamp and delay cannot be set together", prefix[:-1] or None)
        max_tokens = read_output_length(row, check, prefix)
        extra = read_extra(row, check, prefix)
        session_id = check.given(row, "session_id", check.text, prefix)
        turn = Turn(
            messages=({"role": role or "user", "content": content.rendered()},),
            max_tokens=max_tokens,
            extra=extra,
            delay_s=timing.delay_s,
            arrival_s=timing.arrival_s,
        )
        dispatched = ("timestamp", "delay", "output_length", "extra")
        bare = content.only_text and all(row.get(key) is None for key in dispatched)
        return AuthoredTurn(turn, role or "user", content, bare, session_id or None)


@dataclass(slots=True, frozen=True)
class Timing:
    arrival_s: float | None
    delay_s: float


def read_timing(row: Mapping[str, Any], check: Checker, prefix: str = "") -> Timing:
    """`timestamp` and `delay`, milliseconds both."""
    timestamp_ms = check.given(row, "timestamp", check.number, prefix)
    delay_ms = check.given(row, "delay", check.number, prefix)
    return Timing(None if timestamp_ms is None else timestamp_ms / _MS_PER_S, (delay_ms or 0.0) / _MS_PER_S)


def read_output_length(row: Mapping[str, Any], check: Checker, prefix: str = "") -> int | None:
    value = row.get("output_length")
    return None if value is None else check.integer(value, f"{prefix}output_length", minimum=1, maximum=MOST_TOKENS)


NO_EXTRA: Mapping[str, Any] = {}


def read_extra(row: Mapping[str, Any], check: Checker, prefix: str = "") -> Mapping[str, Any]:
    value = row.get("extra")
    return NO_EXTRA if value is None else check.mapping(value, f"{prefix}extra") or NO_EXTRA


def check_type(row: Mapping[str, Any], name: str, check: Checker, prefix: str = "") -> None:
    """`type`, where it is given, is the name of the format."""
    if row.get("type", name) != name:
        check.fail(f"{prefix}type", f"Input should be '{name}'")
