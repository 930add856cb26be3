"""Commands of a shell that a text asks for, by the rules of docs/replies.md.

A text that has no command gets one that changes nothing, or an empty file: the words of a request are not given to a shell.
"""

from __future__ import annotations

import re
import shlex
from itertools import islice

from llmirage_server.replies.text_values import TextValues, Value
from llmirage_server.replies.vocabulary import CODE, HIDDEN, inside, word_set

_MOST_BEGINNINGS = 40  # places at which a command may begin that are looked at
_LONGEST = 500  # characters of a command in words
_PROGRAMS = word_set(
    "apt apt-get awk aws black bun cargo cd chmod chown cmake cp curl df docker du eslint ffmpeg gcc gh git gradle grep "
    "gzip helm java javac jq kubectl ln ls mkdir mv mvn mypy node npm npx perl php pip pip3 pnpm poetry ps psql pwd pytest "
    "python python3 rg rm rmdir rsync ruby ruff rustc scp sed sh sqlite3 ssh tar tsc uname unzip uv uvx wc wget whoami "
    "xargs yarn zip zsh"
)
# English words, too: they begin a command only after "run" and the like.
_AMBIGUOUS = word_set(
    "bash cat cut date diff dig echo env export file find go head history kill less make more printf sleep sort stat tail "
    "tee test time top touch tr tree true uniq uptime watch which who"
)
_BEGINS = re.compile(
    r"(?P<runs>\b(?:run|execute|type|issue|invoke|launch|try)(?:\s+(?:the|this|a))?(?:\s+(?:following|shell|bash|terminal))*"
    r"(?:\s+commands?)?\s*:?\s+)|(?:\A|[.!?\n])\s*|\b(?:show|give|tell)\s+me\s+(?:the\s+(?:output|result)s?\s+of\s+)?",
    re.IGNORECASE,
)
_END = re.compile(r"\n|(?<=[^\s.])[.!?](?=\s|$)|\Z")
_TAIL = re.compile(
    rf"{HIDDEN}.*|(?<!\s)[,;]?\s+(?:and|then)(?:\s+then)?\s+(?:please\s+)?(?:tell|show|report|explain|summari[sz]e|say|check|see|"
    r"describe|fix|give|let|return|answer|what)\b.*|(?<!\s)[,;]?\s+(?:please|for me|now|again|first)\s*$",
    re.IGNORECASE | re.DOTALL,
)
_WITH = re.compile(r"(?<![\s,])[\s,]+(?:with|using|via|through|in|by|on)(?:\s+(?:the|a|your))?\s*$", re.IGNORECASE)
# Before a command that an agent's instructions name for the end of its work.
_ENDS_WORK = re.compile(
    r"\b(?:submit|finish|complete|end)\b[^.`]{0,40}\b(?:answer|changes|session|solution|task|work)\b[^.`]*\Z", re.IGNORECASE
)
_NEAR = 160  # characters before a command
_RUNS = re.compile(
    r"(?:\A|[.!?,;\n]|\b(?:please|and|then|you|to|now|let's))[^\S\n]*(?:please\s+)?(?:run|execute|install|launch)\b",
    re.IGNORECASE,
)
_LISTS = re.compile(r"\b(?:list|directory|folder|files)\b", re.IGNORECASE)
_CREATES = re.compile(r"\b(?:create|make|touch|new)\b", re.IGNORECASE)


def command_in(text: str) -> Value | None:
    """Return the command that a text has: the first one marked as code, else words that begin with a program's name."""
    if (code := CODE.search(text)) is not None:
        return Value(code.start(), code.end(), inside(code).strip("\n"))
    for begins in islice(_BEGINS.finditer(text), _MOST_BEGINNINGS):
        start = begins.end()
        end = _END.search(text, start, start + _LONGEST)
        command = _TAIL.sub("", text[start : start + _LONGEST if end is None else end.start()])
        command = _WITH.sub("", command).rstrip()
        program = command.split(maxsplit=1)[0] if command else ""
        if program in _PROGRAMS or program.startswith("./") or (begins["runs"] is not None and program in _AMBIGUOUS):
            return Value(start, start + len(command), command)
    return None


def ending_command(text: str) -> str | None:
    """Return the command that an agent's instructions name for the end of its work."""
    for code in CODE.finditer(text):
        if _ENDS_WORK.search(text, max(0, code.start() - _NEAR), code.start()) is not None:
            return inside(code).strip()
    return None


def asks_to_run(text: str) -> bool:
    """Return if the text has a command in words, or asks to run, install or launch something."""
    return _RUNS.search(text) is not None or (CODE.search(text) is None and command_in(text) is not None)


def harmless_command(text: str) -> str:
    """Return a command for a text that has none: it prints, lists or creates the file that is named, or lists all."""
    path = next((shlex.quote(value.written) for value in TextValues(text).left("path")), "")
    if path and _CREATES.search(text):
        return f"touch {path}"
    return f"cat {path}" if path and not _LISTS.search(text) else f"ls {path}".rstrip()
