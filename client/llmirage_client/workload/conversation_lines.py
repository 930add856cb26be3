"""What evalscope's conversation formats have in common: a conversation a line, of turns that accumulate live replies."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from llmirage_client.workload.checking import FIELD_REQUIRED, Checker
from llmirage_client.workload.files import read_bytes, read_json_lines
from llmirage_client.workload.format_options import Option
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError

MAX_TURNS = Option("max_turns", "integer", "leave out the turns of a conversation after so many", minimum=1)
SKIP_BAD_LINES = Option("skip_bad_lines", "boolean", "leave bad lines out instead of refusing the file", False)
TOKENIZER = Option("tokenizer", "text", "folder or hub name of the tokenizer that counts", None)
LENGTHS = (
    Option("min_prompt_length", "integer", "leave out conversations whose first user message is shorter", 0),
    Option("max_prompt_length", "integer", "leave out conversations whose first user message is longer", 131_072),
    TOKENIZER,
)
"""The length is in characters, or with a tokenizer in tokens, chat template included."""


@dataclass(slots=True)
class Left:
    """What a loader left out of a valid file, by reason, for the notes."""

    reasons: Counter[str] = field(default_factory=Counter)

    def out(self, reason: str) -> None:
        self.reasons[reason] += 1

    def notes(self) -> Iterator[str]:
        for reason, count in self.reasons.items():
            yield f"left out {count:,}: {reason}"


ReadLine = Callable[[Any, Checker], tuple[Turn, ...]]


def load_lines(path: str, format_name: str, read: ReadLine, left: Left, skip_bad_lines: bool) -> Workload:
    """Every line of the file as a session conversation_<line>; lines for which `read` gives no turns have none.

    Raises WorkloadError with all problems, each with line and field, or when no conversation is left.
    """
    problems: list[Problem] = []
    sessions: dict[str, Session] = {}
    for line, value in read_json_lines(read_bytes(path), problems):
        check = Checker(line)
        turns = read(value, check)
        problems += check.problems
        if turns and not check.problems:
            session = conversation(f"conversation_{line}", turns, line)
            sessions[session.id] = session
    problems.sort(key=lambda problem: problem.line or 0)
    if problems and not (skip_bad_lines and sessions):
        raise WorkloadError(path, problems)
    if not sessions:
        raise WorkloadError(path, [Problem(f"holds no conversation that can run; {'; '.join(left.notes())}")])
    bad = list(dict.fromkeys(problem.line for problem in problems))
    note = [f"left out {len(bad):,} bad line{'s' * (len(bad) != 1)}; the first: {problems[0]}"] if bad else []
    return Workload(format_name, path, sessions, tuple(sessions), (*left.notes(), *note))


def conversation(session_id: str, turns: tuple[Turn, ...], line: int | None = None) -> Session:
    """A session as evalscope runs one: live replies accumulate, and a failed request ends it."""
    return Session(session_id, turns, line=line, ends_on_failure=True)


def required(check: Checker, values: Mapping[str, Any], key: str, prefix: str = "") -> bool:
    """Whether the key is there; notes it when not, with a key that looks like it."""
    if key in values:
        return True
    near = difflib.get_close_matches(key, values, n=1, cutoff=0.7)
    check.fail(prefix + key, f"{FIELD_REQUIRED} (is it '{near[0]}'?)" if near else FIELD_REQUIRED)
    return False


class LengthFilter:
    """Whether a first user message is as long as asked for: in characters, or in the tokens of a tokenizer's chat prompt."""

    def __init__(self, path: str, low: int, high: int, tokenizer: str | None) -> None:
        if low > high:
            message = f"{low} is more than max_prompt_length {high}"
            raise WorkloadError(path, [Problem(message, field="option min_prompt_length")])
        self._path = path
        self._low = low
        self._high = high
        self._tokenizer = tokenizer

    def keeps(self, text: str) -> bool:
        """Raises WorkloadError when the tokenizer cannot be loaded."""
        return self._low <= (len(text) if self._tokenizer is None else self._tokens(text)) <= self._high

    @property
    def reason(self) -> str:
        unit = "characters" if self._tokenizer is None else "tokens"
        return f"conversations whose first user message is not {self._low:,} to {self._high:,} {unit} long"

    def _tokens(self, text: str) -> int:
        return len(self._encoder.encode_chat([{"role": "user", "content": text}]))

    @cached_property
    def _encoder(self) -> Any:
        from llmirage_shared.prompt_encoder import PromptEncoder
        from llmirage_shared.tokenizer_loader import load
        from llmirage_shared.tokens import TokenizerError

        try:
            return PromptEncoder(*load(self._tokenizer))
        except TokenizerError as error:
            raise WorkloadError(self._path, [Problem(str(error), field="option tokenizer")]) from None
