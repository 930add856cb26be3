"""The files that a conversation shows: what was read, what was written since, and what stands in its messages.

A file is shown by a shell command that only prints it (cat, sed -n, head, tail, nl), by a tool that reads and is given its
path, by a patch that adds it, and in a message under a heading with its path. Line numbers and what harnesses write around
the output of a tool are taken off. Patches that were applied are applied here, too.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Literal

from llmirage_server.replies.printed_lines import printed_lines
from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.tool_request import words_of
from llmirage_server.replies.vocabulary import word_set

_MOST_LINES = 20_000  # of a conversation: the newest messages with so many
_MOST_OF_A_TEXT = 5_000  # lines
_MOST_NESTED = 4  # levels of arguments that are looked through
_MOST_IN_A_MESSAGE = 50  # blocks of each kind
_READING = word_set("cat display fetch get load open print read show view")
_SHELL = re.compile(r"(?:.*/)?(?:ba|z|da|k|fi)?sh|(?:.*[/\\])?(?:pwsh|powershell|cmd)(?:\.exe)?")
_WRITING = re.compile(r"(?<!>)>(?!>)|\b(?:rm|mv|cp|tee|truncate|patch)\b|\bsed\b.*\s-i")
_PATH_KEY = re.compile(r"(?:file|abs(?:olute)?|target|relative)?_?(?:path|file|name)", re.IGNORECASE)
_TEXT_KEYS = ("output", "stdout", "content", "text", "result")
# "Process exited with code 0", "Wall time: 0.1 seconds" and the like, up to a line "Output:".
_HEADER = re.compile(r"(?:[A-Z][\w ]*(?::[^\n]*| \d+(?:\.\d+)?[^\n]*)\n){0,10}Output:\n")
_WRAPPED = re.compile(r"<(content|file|output|stdout)>\n?")
_NUMBERED = re.compile(r"\s*(\d{1,9})(?:\t|→|: |\| ?)(.*)", re.DOTALL)
_LEFT_OUT = re.compile(r".*(?:…|\.\.\.|\[).*\b(?:truncated|omitted)\b.*", re.IGNORECASE)
_FAILED = re.compile(
    r"\b(?:error|fail(?:ed|ure)?|invalid|reject(?:ed)?|denied|abort(?:ed)?|exit(?:ed with)? code:? [1-9])", re.IGNORECASE
)
_NAME = r"[\w@~./\\-]{0,200}(?:\.[A-Za-z]\w{0,7}|/[\w.-]{1,100}|file)(?![\w/])"
_NAMED = re.compile(_NAME)
_NAMED_LAST = re.compile(rf"({_NAME})[\"':)*]*\Z")
_QUOTED_PATH = re.compile(r"[`\"']([^`\"'\n]{1,200})[`\"'][:)*]*\Z")
_PART = re.compile(r"lines (\d{1,9})")
_FENCE = re.compile(r"^```([^\n]*)\n", re.MULTILINE)
_NEW_TEXT = re.compile(
    r"\b(?:add|append|change|create|insert|make|overwrite|put|replace|rewrite|save|should|so that|update|write)\b",
    re.IGNORECASE,
)
_SECTION = re.compile(
    rf"^(?:={{3,80}}|-{{3,80}}|#{{3,80}})[ \t]*(?:File:?[ \t]*)?({_NAME})[ \t=#-]*$", re.MULTILINE | re.IGNORECASE
)
_SECTION_END = re.compile(r"^(?:<|={3,}|-{3,}[ \t]*$)", re.MULTILINE)
_TAGGED = re.compile(r"<(\w{1,40})\s+(?:path|name|file|filename)=\"([^\"\n]{1,200})\"[^>\n]{0,200}>\n?")

Kind = Literal["create_file", "update_file", "delete_file"]
BEGIN, END = "*** Begin Patch", "*** End Patch"
_HUNKS: Mapping[str, Kind] = {
    "*** Add File: ": "create_file", "*** Update File: ": "update_file", "*** Delete File: ": "delete_file",
}  # fmt: skip


@dataclass(slots=True, frozen=True)
class FileChange:
    """The change of one file by a patch. diff: lines of V4A: `@@`, then lines that begin with a blank, + or -."""

    kind: Kind
    path: str
    diff: Sequence[str] = ()


@dataclass(slots=True)
class ShownLines:
    """Lines of a file that follow each other. start: the number of the first, from 1; None: unknown."""

    lines: list[str]
    start: int | None = None


@dataclass(slots=True)
class ShownFile:
    """The known part of a file. pieces: in the file's order, as far as that is known. whole: there is nothing else in it."""

    path: str
    pieces: list[ShownLines] = field(default_factory=list)
    whole: bool = False

    def show(self, piece: ShownLines, whole: bool) -> None:
        """Learn what a part of the file is, or all of it."""
        if whole:
            self.pieces, self.whole = [piece], True
            return
        self.whole = False
        first, end = piece.start, None if piece.start is None else piece.start + len(piece.lines)
        kept = [
            other
            for other in self.pieces
            if first is None or end is None or other.start is None or other.start >= end
            or other.start + len(other.lines) <= first
        ]  # fmt: skip
        self.pieces = sorted([*kept, piece], key=lambda one: (one.start is not None, one.start or 0))

    def change(self, diff: Sequence[str]) -> bool:
        """Apply the hunks of a patch; False where the file does not have the lines that they change."""
        at = (0, 0)  # the piece, and the line in it, from which the next hunk is looked for
        for old, new in hunks_of(diff):
            found = next(
                (
                    (place, line)
                    for place, piece in enumerate(self.pieces[at[0] :], at[0])
                    for line in range(at[1] if place == at[0] else 0, len(piece.lines) - len(old) + 1)
                    if piece.lines[line : line + len(old)] == old
                ),
                None,
            )
            if found is None:
                return False
            place, line = found
            if not old and self.pieces:  # nothing but additions: they go to the end
                place, line = len(self.pieces) - 1, len(self.pieces[-1].lines)
            self.pieces[place].lines[line : line + len(old)] = new
            at = (place, line + len(new))
        return True


class ShownFiles:
    """The files of a conversation, by the paths under which they were shown. messages: in chat's form."""

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self._messages = messages

    @cached_property
    def _files(self) -> dict[str, ShownFile]:
        files: dict[str, ShownFile] = {}
        results = {
            str(message.get("tool_call_id")): _text_of(message.get("content"))
            for message in self._messages
            if message.get("role") in ("tool", "function")
        }
        for message in self._messages[self._first_read() :]:
            if message.get("role") in ("user", "system"):
                text = _text_of(message.get("content"))
                for place in _places(text):
                    spend()
                    piece = ShownLines(
                        _lines(text[place.start : place.end]), 1 if place.first is None else place.first or None
                    )
                    _shown(files, place.path).show(piece, place.first is None)
            for called in message.get("tool_calls") or ():
                if (result := results.get(str(called.get("id")))) is not None:
                    _follow(files, called, result)
        return files

    def _first_read(self) -> int:
        """Return the place of the first message that is read: what many lines before say is forgotten."""
        lines = 0
        for place in range(len(self._messages) - 1, -1, -1):
            lines += 1 + _text_of(self._messages[place].get("content")).count("\n")
            if lines > _MOST_LINES:
                return place
        return 0

    def get(self, path: str) -> ShownFile | None:
        """Return the file of this path; relative and absolute paths of it are the same."""
        found = _known(self._files, path)
        return None if found is None else self._files[found]

    @property
    def paths(self) -> list[str]:
        """All files, the one shown last at the end."""
        return list(self._files)

    def apply(self, change: FileChange) -> None:
        _apply(self._files, change)

    def recent(self, most_characters: int) -> str:
        """Return the files shown last, as a message shows files, in so many characters."""
        written: list[str] = []
        for path, shown in reversed(self._files.items()):
            for piece in reversed(shown.pieces):
                lines = "".join([f"{line}\n" for line in piece.lines])
                part = f"`{path}`\n```{'' if shown.whole else f'lines {piece.start or 0}'}\n{lines}```\n"
                most_characters -= len(part)
                if most_characters >= 0 and "\n```" not in f"\n{lines}" and "`" not in path:
                    written.insert(0, part)
        return "\n".join(written)


@dataclass(slots=True, frozen=True)
class _FileInMessage:
    """A file in a message: where its heading starts, and its lines; first: the number of the first, None: it is all."""

    path: str
    heading: int
    start: int
    end: int
    first: int | None = None


def without_files(text: str) -> str:
    """Return a message without the files that stand in it, and without their headings."""
    kept, at = [], 0
    for place in sorted(_places(text), key=lambda place: place.heading):
        if place.heading >= at:
            kept.append(text[at : place.heading])
            at = place.end
    return "".join([*kept, text[at:]])


def _places(text: str) -> list[_FileInMessage]:
    """Return the files in a message.

    A file is a code block under a line that ends with a path, or whose first line names it, if that line asks for nothing;
    a block in tags with a path; or what follows a line such as `===== lib/fib.py`.
    """
    places: list[_FileInMessage] = []
    at = 0
    for _ in range(_MOST_IN_A_MESSAGE):
        fence = _FENCE.search(text, at)
        end = -1 if fence is None else text.find("\n```", fence.end() - 1)
        if fence is None or end < 0:
            break
        at = end + 4
        before = text[max(0, fence.start() - 200) : fence.start()].rstrip()
        info, heading = fence[1][:200], before[before.rfind("\n") + 1 :]
        above = max(0, fence.start() - 200) + len(before) - len(heading)
        lines = _PART.match(info)
        named = None if lines or not {".", "/"} & set(info) else _NAMED.search(info)
        where = fence.start() if named else above
        named = named or _QUOTED_PATH.search(heading) or _NAMED_LAST.search(heading)
        if named is not None and not _NEW_TEXT.search(heading):
            first = int(lines[1]) if lines else None
            places.append(_FileInMessage(named[named.lastindex or 0], where, fence.end(), max(fence.end(), end + 1), first))
    for match in islice(_TAGGED.finditer(text), _MOST_IN_A_MESSAGE):
        end = text.find(f"</{match[1]}>", match.end())
        if end >= 0:
            places.append(_FileInMessage(match[2], match.start(), match.end(), end))
    for match in islice(_SECTION.finditer(text), _MOST_IN_A_MESSAGE):
        below = _SECTION_END.search(text, match.end() + 1)
        end = below.start() if below else len(text)
        places.append(_FileInMessage(match[1], match.start(), min(match.end() + 1, end), end))
    return places


def changes_of(patch: str) -> list[FileChange]:
    """Return the changes of a text in the form of `apply_patch`; [] for any other text."""
    lines = patch.strip().split("\n")
    if lines[0].strip() != BEGIN:
        return []
    changes: list[FileChange] = []
    moved: list[FileChange] = []  # what is known of a file that gets another name is forgotten
    diff: list[str] = []
    for line in lines[1:]:
        header = next((start for start in _HUNKS if line.startswith(start)), None)
        if header is not None:
            diff = []
            changes.append(FileChange(_HUNKS[header], line[len(header) :].strip(), diff))
        elif changes and line.startswith("*** Move to: "):
            moved.append(FileChange("delete_file", changes[-1].path))
        elif not line.startswith("*** "):
            diff.append(line)
    return [*changes, *moved]


# --- what a call shows --------------------------------------------------------------------------------------------------


def _follow(files: dict[str, ShownFile], called: Mapping[str, Any], result: str) -> None:
    """Learn from a call and its result."""
    inner = called.get("function") or called.get("custom") or {}
    written = inner.get("arguments") if "arguments" in inner else inner.get("input")
    written = written if isinstance(written, str) else ""
    arguments = _parsed(written)
    if not isinstance(arguments, dict):
        arguments = {}
    if changes := _changes_in(written, arguments):
        if "Success" in result or not _FAILED.search(result[:500]):
            for change in changes:
                _apply(files, change)
    elif arguments.get("command") != "view" and (commands := list(_commands(arguments, _MOST_NESTED))):
        folder = str(arguments.get("workdir") or arguments.get("cwd") or "")
        for command in commands:
            printed = printed_lines(command) if len(commands) == 1 else None
            if printed is not None:
                _learn(files, posixpath.join(folder, printed.path), _output(result), printed.numbered, printed.start)
            elif _WRITING.search(command):
                for path in [path for path in files if posixpath.basename(path) in command]:
                    del files[path]
    elif (path := _path_in(arguments)) and (
        arguments.get("command") == "view" or _READING & set(words_of(str(inner.get("name", ""))))
    ):
        is_part = any(isinstance(value, int | list) for value in arguments.values())
        _learn(files, path, _output(result), None, None if is_part else 0)


def _learn(files: dict[str, ShownFile], path: str, text: str, numbered: bool | None, start: int | None) -> None:
    """Keep the lines of a text as a file's. numbered: None: as they look. start: of the first line; 0: it is all."""
    lines = _lines(text)
    if len(lines) > _MOST_OF_A_TEXT:
        lines, start = lines[:_MOST_OF_A_TEXT], start or (1 if start == 0 else None)
    spend(len(lines) // 2)
    runs = _without_numbers(lines) if numbered is not False else []
    if numbered and lines and not runs:
        return
    runs = runs or [(start or (1 if start == 0 else None), lines)]
    pieces = [piece for first, run in runs for piece in _pieces(first, run)] or [ShownLines([])]
    shown = _shown(files, path)
    for piece in pieces:
        shown.show(piece, start == 0 and len(pieces) == 1 and (piece.start is not None))


def _pieces(first: int | None, lines: list[str]) -> list[ShownLines]:
    """Return the lines, in parts where some are left out."""
    cuts = [place for place, line in enumerate(lines) if len(line) < 200 and _LEFT_OUT.fullmatch(line)]
    parts = [lines[begin + 1 : end] for begin, end in zip([-1, *cuts], [*cuts, len(lines)], strict=True)]
    if not cuts:
        return [ShownLines(lines, first)]
    return [ShownLines(part, None if place else first) for place, part in enumerate(parts) if part]


def _without_numbers(lines: Sequence[str]) -> list[tuple[int | None, list[str]]]:
    """Return the runs of lines with consecutive numbers: (first number, lines). One line alone is none, unless it is all."""
    runs: list[tuple[int | None, list[str]]] = []
    expected = -1
    for line in lines:
        match = _NUMBERED.fullmatch(line)
        if match is None:
            if expected > 0 and not line.strip():  # `nl` numbers no empty line
                runs[-1][1].append("")
            else:
                expected = -1
            continue
        if int(match[1]) != expected:
            runs.append((int(match[1]), []))
        runs[-1][1].append(match[2])
        expected = int(match[1]) + 1
    return [run for run in runs if len(run[1]) > 1 or len(lines) == 1]


def _commands(arguments: Mapping[str, Any], levels: int) -> Iterator[str]:
    """Yield the lines that a call gives to a shell."""
    for key, value in arguments.items():
        if key == "commands" and isinstance(value, list):
            yield from (line for line in value if isinstance(line, str))
        elif key in ("cmd", "command") and isinstance(value, str):
            yield value
        elif key in ("cmd", "command") and isinstance(value, list) and value and all(isinstance(w, str) for w in value):
            yield value[-1] if _SHELL.fullmatch(value[0]) and len(value) > 1 else shlex.join(value)
        elif isinstance(value, dict) and levels:
            yield from _commands(value, levels - 1)


def _path_in(arguments: Mapping[str, Any]) -> str:
    """Return the one path among the arguments of a call, "" for none."""
    found = [value for key, value in arguments.items() if isinstance(value, str) and value and _PATH_KEY.fullmatch(key)]
    return found[0] if len(found) == 1 else ""


def _changes_in(written: str, arguments: Mapping[str, Any]) -> list[FileChange]:
    """Return the patch that a call is: as text, as an argument, or as an operation of the API's own tool."""
    operation = arguments.get("operation")
    if isinstance(operation, dict) and operation.get("type") in _HUNKS.values():
        return [FileChange(operation["type"], str(operation.get("path")), _lines(str(operation.get("diff") or "")))]
    if (edit := _command_of_editor(arguments)) is not None:
        return [edit]
    texts = [written, *[value for value in arguments.values() if isinstance(value, str)]]
    return next((found for text in texts if text.lstrip().startswith(BEGIN) and (found := changes_of(text))), [])


def _command_of_editor(arguments: Mapping[str, Any]) -> FileChange | None:
    """Return the change that a command of an editor makes, None for a command that changes nothing."""
    command, path = arguments.get("command"), arguments.get("path")
    if not isinstance(path, str):
        return None
    if command == "create":
        return FileChange("create_file", path, [f"+{line}" for line in _lines(str(arguments.get("file_text") or ""))])
    if command == "delete":
        return FileChange("delete_file", path)
    if command == "str_replace":
        old, new = (str(arguments.get(name) or "").split("\n") for name in ("old_str", "new_str"))
        return FileChange("update_file", path, ["@@", *[f"-{line}" for line in old], *[f"+{line}" for line in new]])
    return None


def _output(result: str) -> str:
    """Return the text of a result without what a harness writes around it."""
    parsed = _parsed(result)
    entries = parsed if isinstance(parsed, list) else [parsed]
    texts = [text for entry in entries if isinstance(entry, dict) and (text := _first_text(entry)) is not None]
    if texts and len(texts) == len(entries):
        return "".join(texts)
    if (header := _HEADER.match(result)) is not None:
        return result[header.end() :]
    if result.lstrip().startswith("<") and (wrapped := _WRAPPED.search(result, 0, 2_000)) is not None:
        end = result.rfind(f"</{wrapped[1]}>")
        return result[wrapped.end() : end if end > 0 else len(result)]
    if result.rstrip().endswith("</system-reminder>"):
        return result[: result.rfind("<system-reminder>")].rstrip("\n")
    return result


def _parsed(text: str) -> Any:
    """Return the JSON value that a text is, None for any other text."""
    try:
        return json.loads(text) if text.startswith(("{", "[")) else None
    except (ValueError, RecursionError):
        return None


def _first_text(entry: Mapping[str, Any]) -> str | None:
    return next((entry[key] for key in _TEXT_KEYS if isinstance(entry.get(key), str)), None)


# --- what a patch does --------------------------------------------------------------------------------------------------


def _apply(files: dict[str, ShownFile], change: FileChange) -> None:
    key = _known(files, change.path)
    if change.kind == "create_file":
        created = _shown(files, change.path)
        created.show(ShownLines([line[1:] for line in change.diff if line.startswith("+")], 1), True)
    elif key is not None and (change.kind == "delete_file" or not _shown(files, key).change(change.diff)):
        del files[key]


def hunks_of(diff: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """Return the lines that each hunk expects, and those that it leaves."""
    hunks: list[tuple[list[str], list[str]]] = []
    for line in diff:
        if line.startswith("@@") or not hunks:
            hunks.append(([], []))
        if not line.startswith("@@"):
            mark, text = line[:1], line[1:]
            if mark != "+":
                hunks[-1][0].append(text)
            if mark != "-":
                hunks[-1][1].append(text)
    return hunks


# --- paths and lines ----------------------------------------------------------------------------------------------------


def _shown(files: dict[str, ShownFile], path: str) -> ShownFile:
    """Return the file of this path, which is now the last."""
    key = _known(files, path) or posixpath.normpath(path)
    shown = files.pop(key, None) or ShownFile(key)
    files[key] = shown
    return shown


def _known(files: Mapping[str, ShownFile], path: str) -> str | None:
    path = posixpath.normpath(path)
    if path in files:
        return path
    absolute = [known for known in files if known.endswith(f"/{path}") or path.endswith(f"/{known}")]
    return absolute[-1] if absolute else None


def _lines(text: str) -> list[str]:
    """Return the lines of a text without their ends."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join([part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)])
    return content if isinstance(content, str) else ""
