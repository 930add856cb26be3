"""Regular expressions of files and options: matched by RE2, in time that grows with the text, and counted as planning."""

from __future__ import annotations

import re
from typing import Any

import re2

from llmirage_server.replies.structured.budget import spend

LONGEST = 100_000  # characters of a text that an expression sees
_OF_A_STEP = 1_000  # characters times places of the expression: 9 µs at worst, mostly a hundredth
_ESCAPES = re.compile(r"\\(?s:.)|\[\^?\]?|\]")
_CLASSES = {"w": r"\pL\pN_", "d": r"\p{Nd}", "s": r"\s\v\pZ\x1c-\x1f\x{85}"}  # as in Python, of every script


def compiled(written: str) -> Any:
    r"""Return the pattern. `\w`, `\d` and `\s` are of every script, as in Python, and `\Z` is the end; `\b` is of ASCII.

    Raises ValueError for one that is no regular expression, or needs to be tried in several ways: look-arounds,
    back-references.
    """
    inside = False

    def as_re2(found: re.Match[str]) -> str:
        nonlocal inside
        token = found[0]
        if token.startswith("["):
            if not inside:
                inside = True
                return token
            inside = not token.endswith("]")
            return "\\" + token
        if token == "]":
            inside = False
            return token
        if (name := _CLASSES.get(token[1].lower())) is not None:
            if inside and token[1].isupper():
                raise ValueError(f"is not a regular expression of RE2: {token} within brackets")
            return name if inside else f"[{'^' * token[1].isupper()}{name}]"
        return r"\z" if token == r"\Z" else token

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(_ESCAPES.sub(as_re2, written), options)
    except re2.error as error:
        raise ValueError(f"is not a regular expression of RE2: {_said(error)}") from None


def search(pattern: Any, text: str) -> Any:
    """Return the first match, None without. Raises BudgetError where planning has too few steps left."""
    text = text[:LONGEST]
    spend(1 + len(text) * pattern.programsize // _OF_A_STEP)
    return pattern.search(text)


def _said(error: Exception) -> str:
    [reason] = error.args
    said = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    hint = " (look-arounds and possessive repetitions are not possible)" if "perl operator" in said or "++" in said else ""
    return said + hint
