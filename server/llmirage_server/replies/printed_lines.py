"""The lines of a file that a shell command prints: cat, sed -n, head, tail or nl, and pipelines of them."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_PRINTING = frozenset(("cat", "nl", "head", "tail", "sed", "less", "more", "bat", "type", "Get-Content", "gc"))
_SED_LINES = re.compile(r"(\d{1,9})(?:,(?:\d+|\$))?p;?")
_MOST_OF_A_COMMAND = 2_000  # characters


@dataclass(slots=True)
class PrintedLines:
    """A part of a file that is printed. path: "" for its input. start: number of the first line; 0: all; None: unknown."""

    path: str = ""
    numbered: bool = False
    start: int | None = 0


def printed_lines(command: str) -> PrintedLines | None:
    """Return the output of a command line, if that is lines of one file and nothing else."""
    if len(command) > _MOST_OF_A_COMMAND:
        return None
    lexer = shlex.shlex(command.strip(), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return None
    folder = ""
    if len(words) > 3 and words[0] == "cd" and words[2] == "&&":
        folder, words = words[1], words[3:]
    stages: list[list[str]] = [[]]
    for word in words:
        if word == "|":
            stages.append([])
        else:
            stages[-1].append(word)
    printed = PrintedLines()
    for place, stage in enumerate(stages):
        read = _stage(stage)
        if read is None or bool(read.path) == bool(place):
            return None
        start = read.start if printed.start == 0 else printed.start if read.start in (0, 1) else None
        printed = PrintedLines(printed.path or read.path, printed.numbered or read.numbered, start)
    printed.path = posixpath.join(folder, printed.path)
    return printed


def _stage(words: Sequence[str]) -> PrintedLines | None:
    """Return the output of one command of a pipeline for its file or its input."""
    program, *rest = words or [""]
    if program not in _PRINTING or any(set(word) <= set("();<>&|") for word in rest):
        return None
    options = [word for word in rest if word.startswith("-") and len(word) > 1]
    others = [word for word in rest if word not in options]
    read = PrintedLines(numbered=program == "nl")
    if program == "nl" and any(not option.startswith("-b") for option in options):
        return None
    if program == "cat":
        if not set("".join(options)) <= set("-nbu"):
            return None
        read.numbered = bool(set("".join(options)) & set("nb"))
    elif program == "sed":
        lines = _SED_LINES.fullmatch(others[0]) if others and "-n" in options else None
        if lines is None:
            return None
        read.start, others = int(lines[1]), others[1:]
    elif program in ("head", "tail"):
        if {"-n", "-c", "--lines", "--bytes"} & set(options):
            others = others[1:]
        read.start = 1 if program == "head" else None
    read.path = others[0] if others else ""
    return read if len(others) < 2 else None
