"""Conversations a line whose turns accumulate live replies, as evalscope runs them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from llmirage_client.workload.checking import FIELD_REQUIRED, Checker
from llmirage_client.workload.files import ARRAY_OF_ARRAYS, read_records, read_values
from llmirage_client.workload.format import Option
from llmirage_client.workload.loading import LeftOut
from llmirage_client.workload.request_graph import free_name
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError
from llmirage_shared.plural import plural
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.tokenizer_loader import load
from llmirage_shared.tokens import TokenizerError

MAX_TURNS = Option("max_turns", "integer", "use only this many turns of a conversation", minimum=1)
SKIP_BAD_LINES = Option("skip_bad_lines", "boolean", "skip invalid lines instead of refusing the file", False)
TOKENIZER = Option("tokenizer", "text", "folder or Hugging Face name of the tokenizer that counts", None)
LENGTHS = (
    Option("min_prompt_length", "integer", "skip conversations whose first user message is shorter", 0),
    Option("max_prompt_length", "integer", "skip conversations whose first user message is longer", 131_072),
    TOKENIZER,
)
"""The length is in characters, or with a tokenizer in tokens, chat template included."""


ReadLine = Callable[[Any, Checker], tuple[Turn, ...]]


def load_lines(
    path: str, format_name: str, read: ReadLine, left_out: LeftOut, skip_bad_lines: bool, of_arrays: bool = False
) -> Workload:
    """Load every line of the file, or element of its array, for which `read` returns turns: conversation_<line>.

    of_arrays: each conversation is an array.

    Raises WorkloadError with all problems, each with line and field, or when no conversation is left.
    """
    problems: list[Problem] = []
    sessions: list[Session] = []
    names: set[str] = set()
    for line, value in read_values(path, problems, ARRAY_OF_ARRAYS) if of_arrays else read_records(path, problems):
        check = Checker(line)
        turns = read(value, check)
        problems += check.problems
        if turns and not check.problems:
            sessions.append(conversation(free_name(f"conversation_{line}", names), turns, line))
    note = bad_lines_note(path, problems, skip_bad_lines and bool(sessions))
    if not sessions:
        raise WorkloadError(path, [Problem(f"has no conversation that can run; {'; '.join(left_out.notes())}")])
    return Workload.of_roots(format_name, path, sessions, (*left_out.notes(), *note))


def bad_lines_note(path: str, problems: list[Problem], skip: bool) -> list[str]:
    """Return the note on bad lines that are left out. Raises WorkloadError for bad lines unless they are to be skipped."""
    if not problems:
        return []
    error = WorkloadError(path, problems)
    if not skip:
        raise error
    bad = len({problem.line for problem in problems})
    return [f"left out {plural(bad, 'bad line')}; the first: {error.problems[0]}"]


def conversation(session_id: str, turns: tuple[Turn, ...], line: int | None = None) -> Session:
    """Return a session as evalscope runs one: live replies accumulate, and a failed request ends it."""
    return Session(session_id, turns, line=line, ends_on_failure=True)


def required(check: Checker, values: Mapping[str, Any], key: str, prefix: str = "") -> bool:
    """Return whether the key is there; note a missing one with a key that looks like it."""
    if key in values:
        return True
    near = difflib.get_close_matches(key, values, n=1, cutoff=0.7)
    check.fail(prefix + key, f"{FIELD_REQUIRED} (is it '{near[0]}'?)" if near else FIELD_REQUIRED)
    return False


class LengthFilter:
    """Keeps conversations whose first user message is long enough and not too long.

    Lengths are characters, or with a tokenizer tokens of its chat prompt.
    """

    def __init__(self, path: str, low: int, high: int, tokenizer: str | None, left_out: LeftOut) -> None:
        if low > high:
            message = f"{low} is more than max_prompt_length {high}"
            raise WorkloadError(path, [Problem(message, field="option min_prompt_length")])
        self._path = path
        self._low = low
        self._high = high
        self._tokenizer = tokenizer
        self._left_out = left_out
        unit = "characters" if tokenizer is None else "tokens"
        self._reason = f"conversations whose first user message is not {low:,} to {high:,} {unit} long"

    def keeps(self, text: str) -> bool:
        """Note and drop a text outside the limits. Raises WorkloadError when the tokenizer cannot be loaded."""
        kept = self._low <= (len(text) if self._tokenizer is None else self._tokens(text)) <= self._high
        if not kept:
            self._left_out.add(self._reason)
        return kept

    def _tokens(self, text: str) -> int:
        return len(self._encoder.encode_chat([{"role": "user", "content": text}]))

    @cached_property
    def _encoder(self) -> PromptEncoder:
        try:
            return PromptEncoder(*load(self._tokenizer))
        except TokenizerError as error:
            raise WorkloadError(self._path, [Problem(str(error), field="option tokenizer")]) from None
