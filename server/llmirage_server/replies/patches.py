"""Patches: what a request says to change, as a patch that applies to the files that the conversation shows.

One writer for every form of the tool: the envelope of `apply_patch`, as the input of a custom tool or the argument of a
function, and the operations with V4A diffs of the Responses API's own tool.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from llmirage_server.replies.reply import Replacement, Tool
from llmirage_server.replies.shown_files import BEGIN, END, FileChange, ShownFile, ShownFiles, hunks_of, without_files
from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.text_values import TextValues, Value
from llmirage_server.replies.vocabulary import HIDDEN, QUOTED, inside

_CONTEXT = 3  # lines around a change
_MOST_EDITS = 200
_LINES_A_STEP = 50
_MOST_REMARKED = 60  # characters
_NEW_FILE = "notes.txt"
_HEADS = {"create_file": "*** Add File: ", "update_file": "*** Update File: ", "delete_file": "*** Delete File: "}

_FILE_NAME = re.compile(r"[^\n\"`<>|*?]{1,200}\.[A-Za-z]\w{0,7}|(?:[\w.-]+/)+[\w.-]+")
_BEFORE_PATH = re.compile(r"\b(?:file|create|add|delete|remove|update|edit|change|in|to|of)\s+[\"'`]?$", re.IGNORECASE)
# What stands between the old text and the new one.
_FILLER = r"(?:[\s,:]|\b(?:in|of|from|inside|everywhere|the|all|each|every|occurrences?|lines?|files?|called|named|it)\b)*"
_BY = re.compile(rf"{_FILLER}(?:\b(?:by|with|to|into|for)\b|→|[-=]>){_FILLER}", re.IGNORECASE)
_INSTEAD = re.compile(r"\s*instead of\s*", re.IGNORECASE)
_PLAIN = re.compile(
    r"\b(?:replace|change|rename|substitute|swap|switch|turn|convert)\s+(?P<old>\S[^\n]{0,200}?)\s+"
    r"(?:by|with|to|into|→|[-=]>)\s+(?P<new>\S[^\n]{0,200}?)"
    r"(?=\s+(?:in|of|inside|everywhere|throughout|and then|then)\b|[.,;!?]*(?:\s*$|\n|[.,;!?]\s))",
    re.IGNORECASE,
)
_ADDS = re.compile(r"\b(?:add|append|insert|put|prepend)\b", re.IGNORECASE)
_EXTENDS = re.compile(r"\b(?:append|insert|prepend)\b", re.IGNORECASE)
_REMOVES = re.compile(r"\b(?:remove|delete|drop|erase)\b", re.IGNORECASE)
_ANCHORED = re.compile(r"\b(after|below|before|above)\s+(?:the\s+)?(?:lines?\s+)?$", re.IGNORECASE)
_AT_TOP = re.compile(r"\b(?:prepend|(?:top|beginning|start|head) of|at the (?:top|beginning|start))\b", re.IGNORECASE)
_DELETES_FILE = re.compile(
    r"\b(?:remove|delete|drop|erase)\s+(?:the\s+)?(?:file\s+)?(?:named\s+|called\s+)?[\"'`]?$", re.IGNORECASE
)
_SAYING = re.compile(
    r"\b(?:saying|(?:that|which) says|reading|containing|with (?:the )?(?:content|text|line)s?)\s*:?\s+"
    r"(\S[^\n]*?)(?=[.!?]\s+(?:then|next|finally|after that)\b|\n|\Z)",
    re.IGNORECASE,
)
_VIEWS = re.compile(r"\b(?:view|show|read|open|look|list|cat|print|display|check|see|inspect)\b", re.IGNORECASE)
_WRITES = re.compile(
    r"\b(?:add|append|change|create|delete|edit|fix|insert|make|new|prepend|put|remove|rename|replace|save|store|substitute|"
    r"swap|update|write)\b",
    re.IGNORECASE,
)
_CREATES = re.compile(r"\b(?:create|make|new|note|put|remember|save|store|write)\b", re.IGNORECASE)
_COMMENTS: Sequence[tuple[str, str, str]] = (
    ("# ", "", "py sh rb yaml yml toml cfg conf ini pl r jl tf mk"),
    ("// ", "", "c h cc cpp hpp cs go java js jsx ts tsx kt rs swift php scala dart proto"),
    ("<!-- ", " -->", "html htm xml md svg vue"), ("-- ", "", "sql lua hs"), ("/* ", " */", "css scss less"),
)  # fmt: skip
_WORDS = re.compile(r"\w{3,}")


def patch_input(tool: Tool, text: str, files: ShownFiles, seed: int) -> Any:
    """Return the input of a call of a patch tool: a text for a custom tool, else a JSON value. Applies it to `files`.

    text: what the call is about.
    """
    changes = changes_for(text, files, seed)
    for change in changes:
        files.apply(change)
    if tool.kind == "client":
        return {"operation": _operation(changes[0])}
    lines = [line for change in changes for line in (f"{_HEADS[change.kind]}{change.path}", *change.diff)]
    envelope = "\n".join([BEGIN, *lines, END])
    return envelope if tool.kind == "custom" else {tool.text_argument: envelope}


def editor_input(tool: Tool, text: str, files: ShownFiles, seed: int) -> dict[str, Any]:
    """Return the command of an editor that a text asks for. Edits apply to the files shown, and to `files`.

    A file that is not shown is viewed first, unless it is to be created.
    """
    properties = tool.parameters["properties"]
    commands, folder = properties["command"]["enum"], _root_of(properties["path"])
    text = text.replace(HIDDEN, " ")
    change = changes_for(text, files, seed)[0]
    named = change.path in files.paths or posixpath.basename(change.path) in text
    path = _below(folder, change.path if named else (files.paths or [folder or "."])[-1])
    if change.kind == "delete_file" and "delete" in commands:
        return {"command": "delete", "path": path}
    if change.kind == "create_file" and _CREATES.search(text) and (named or not _VIEWS.search(text)):
        path = _below(folder, change.path)
        files.apply(FileChange("create_file", path, change.diff))
        return {"command": "create", "path": path, "file_text": "".join([f"{line[1:]}\n" for line in change.diff])}
    shown = files.get(change.path)
    if shown is None or change.kind != "update_file" or (_VIEWS.search(text) and not _WRITES.search(text)):
        return {"command": "view", "path": path}
    old, new = hunks_of(change.diff)[0]
    if not old:
        files.apply(change)
        line = sum([len(piece.lines) for piece in shown.pieces])
        written = "".join([f"{each}\n" for each in new])
        field = "insert_text" if "insert_text" in properties else "new_str"
        return {"command": "insert", "path": path, "insert_line": line, field: written}
    old, new = _unique(shown, old, new)
    files.apply(FileChange("update_file", change.path, ["@@", *[f"-{each}" for each in old], *[f"+{each}" for each in new]]))
    return {"command": "str_replace", "path": path, "old_str": "\n".join(old), "new_str": "\n".join(new)}


def replacing_input(replacement: Replacement, text: str, files: ShownFiles, seed: int) -> dict[str, Any] | None:
    """Return the arguments of a tool that replaces a text in a file; None where the text in question is not known."""
    change = changes_for(text, files, seed)[0]
    shown = files.get(change.path)
    if change.kind != "update_file" or not (hunks := hunks_of(change.diff)):
        return None
    old, new = hunks[0]
    if not old:
        if shown is None or not shown.pieces[-1].lines:
            return None
        old, new = [shown.pieces[-1].lines[-1]], [shown.pieces[-1].lines[-1], *new]
    if shown is not None:
        old, new = _unique(shown, old, new)
    texts = {replacement.old: "\n".join(old), replacement.new: "\n".join(new)}
    given = texts if replacement.within is None else {replacement.within: [texts]}
    return {replacement.path: change.path, **given}


def content_said(text: str, files: ShownFiles, seed: int) -> str | None:
    """Return the content that a text says a new file is to have; None if it says none in so many words."""
    change = changes_for(text, files, seed)[0]
    if change.kind != "create_file" or _SAYING.search(text.replace(HIDDEN, " ")) is None:
        return None
    return "".join([f"{line[1:]}\n" for line in change.diff])


def _unique(shown: ShownFile, old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Return the old lines and the new ones, with all lines around them if the file has the old ones more than once."""
    whole = next((piece.lines for piece in shown.pieces if "\n".join(old) in "\n".join(piece.lines)), [])
    if "\n".join(whole).count("\n".join(old)) > 1:
        place = next(at for at in range(len(whole)) if whole[at : at + len(old)] == old)
        return list(whole), [*whole[:place], *new, *whole[place + len(old) :]]
    return old, new


def _root_of(path: Mapping[str, Any]) -> str:
    """Return the folder that a pattern of paths begins with, "" for none."""
    match = re.match(r"\^(/\w+)", str(path.get("pattern") or ""))
    return match[1] if match else ""


def _below(folder: str, path: str) -> str:
    inside = not folder or path == folder or path.startswith(f"{folder}/")
    return path if inside else f"{folder}/{posixpath.basename(path)}"


def _operation(change: FileChange) -> dict[str, str]:
    operation = {"type": change.kind, "path": change.path}
    return operation if change.kind == "delete_file" else {**operation, "diff": "".join([f"{x}\n" for x in change.diff])}


# --- what to change -----------------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Edit:
    """Lines [start, end) become others."""

    start: int
    end: int
    lines: Sequence[str]


@dataclass(slots=True, frozen=True)
class _Asked:
    """The request in a text, in words and in quotation marks, without the path of the file.

    pairs: old and new texts; plain: such a pair without quotation marks.
    """

    text: str
    quoted: Sequence[Value]
    pairs: Sequence[tuple[str, str]]
    plain: tuple[str, str] | None


def changes_for(text: str, files: ShownFiles, seed: int) -> list[FileChange]:
    """Return the changes that a text asks for, at least one: in each file that it names with something to change there."""
    text = without_files(text).replace(HIDDEN, " ")
    quoted = [Value(match.start(), match.end(), inside(match).removesuffix("\n")) for match in QUOTED.finditer(text)]
    pairs = list(_pairs(text, quoted))
    in_pairs = {place for pair in pairs for place in pair}
    paths = _paths(text, files, quoted, in_pairs)
    blank = text
    for path in paths:
        blank = blank[: path.start] + " " * (path.end - path.start) + blank[path.end :]
    changes = []
    for path, begin, end in _clauses(
        text, paths, files, [(quoted[min(pair)].start, quoted[pair[0]].written) for pair in pairs]
    ):
        asked = _Asked(
            " " * begin + blank[begin:end],
            [one for one in quoted if begin <= one.start < end and not any(one.start <= p.start < one.end for p in paths)],
            [(quoted[old].written, quoted[new].written) for old, new in pairs if begin <= quoted[min(old, new)].start < end],
            None if pairs else _plain_pair(text[begin:end]),
        )
        deletes = path.written != "" and _DELETES_FILE.search(text[: path.start]) is not None
        changes.append(_change(path.written, deletes, asked, files, seed))
    return changes


def _clauses(
    text: str, paths: Sequence[Value], files: ShownFiles, changed: Sequence[tuple[int, str]]
) -> list[tuple[Value, int, int]]:
    """Return the parts of a text about one file each, with its path. changed: places of old texts, and the texts."""
    if len(paths) > 1 and changed:
        if any(start < paths[0].start for start, _ in changed):  # the path comes after what changes
            bounds = [0, *[path.end for path in paths[:-1]], len(text)]
        else:
            bounds = [*[path.start for path in paths], len(text)]
        parts = list(zip(paths, bounds[:-1], bounds[1:], strict=True))
        parts = [part for part in parts if any(part[1] <= start < part[2] for start, _ in changed)]
        if len(parts) > 1:
            return parts
    holds = [path for path in paths if (shown := files.get(path.written)) and any(_finds(shown, old) for _, old in changed)]
    return [((holds or paths or [Value(0, 0, "")])[0], 0, len(text))]


def _change(path: str, deletes: bool, asked: _Asked, files: ShownFiles, seed: int) -> FileChange:
    """Return the change of one file. path: as the text has it, "" for the one shown last; deletes: after "delete"."""
    path = path or _changed_file(files, [asked.plain[0]] if asked.plain else [one.written for one in asked.quoted])
    shown = files.get(path)
    if deletes and not asked.quoted:
        return FileChange("delete_file", path if shown is None else shown.path)
    if shown is not None:
        spend(sum([len(piece.lines) for piece in shown.pieces]) // _LINES_A_STEP)
        edited = _edits(shown, asked) or [(0, [_remark(shown.pieces[0].lines, path, asked.text, seed)])]
        return FileChange(
            "update_file", shown.path, [line for place, edits in edited for line in _diff(shown.pieces[place].lines, edits)]
        )
    # What the request itself quotes of a file is there; all else would be a guess.
    pairs = asked.pairs or ([asked.plain] if asked.plain else [])
    if pairs:
        return FileChange(
            "update_file",
            path,
            [
                line
                for old, new in pairs
                for line in _diff(old.split("\n"), [_Edit(0, old.count("\n") + 1, new.split("\n"))])
            ],
        )
    content = _content(path, asked)
    if _EXTENDS.search(asked.text) and asked.quoted:
        return FileChange("update_file", path, _diff([], [_Edit(0, 0, content)]))
    return FileChange("create_file", path, [f"+{line}" for line in content])


def _changed_file(files: ShownFiles, texts: Sequence[str]) -> str:
    """Return the path of the file shown last that has one of the texts, else of the one shown last."""
    paths = files.paths[::-1] or [_NEW_FILE]
    holding = [path for path in paths if (shown := files.get(path)) and any(_finds(shown, text) for text in texts)]
    return (holding or paths)[0]


def _edits(shown: ShownFile, asked: _Asked) -> list[tuple[int, list[_Edit]]]:
    """Return the changes of each piece of a file; [] where the text names nothing that the file has."""
    pairs = asked.pairs or [pair for pair in (asked.plain,) if pair is not None and _finds(shown, pair[0])]
    if not pairs and asked.plain is not None:
        words = asked.plain[0].split(" ")
        pairs = [
            (old, asked.plain[1])
            for old in (" ".join(words[place:]) for place in range(1, len(words)))
            if _finds(shown, old)
        ][:1]
    if pairs:
        return _in_order(shown, [list(_replaced(piece.lines, pairs)) for piece in shown.pieces])
    texts = [one.written for one in asked.quoted]
    if texts and _REMOVES.search(asked.text):
        return _in_order(shown, [list(_removed(piece.lines, texts)) for piece in shown.pieces])
    if _ADDS.search(asked.text) and (added := _added(shown, asked)) is not None:
        return [added]
    blocks = [text for text in texts if "\n" in text]
    if blocks and shown.whole:
        return [(0, [_rewritten(shown.pieces[0].lines, blocks[0].split("\n"))])]
    return []


def _in_order(shown: ShownFile, found: list[list[_Edit]]) -> list[tuple[int, list[_Edit]]]:
    """Return the edits of all pieces where their order is known, else of the last that has any."""
    edited = [(place, edits[:_MOST_EDITS]) for place, edits in enumerate(found) if edits]
    return edited if all(piece.start is not None for piece in shown.pieces) else edited[-1:]


def _finds(shown: ShownFile, text: str) -> bool:
    return any(text in "\n".join(piece.lines) for piece in shown.pieces)


def _replaced(lines: Sequence[str], pairs: Sequence[tuple[str, str]]) -> Iterator[_Edit]:
    """Every line that has an old text, with the new ones."""
    if any("\n" in old for old, _ in pairs):
        text = "\n".join(lines)
        old, new = next(pair for pair in pairs if "\n" in pair[0])
        at = text.find(old)
        if at >= 0 and old != new:
            start, end = text.count("\n", 0, at), text.count("\n", 0, at + len(old)) + 1
            yield _Edit(start, end, "\n".join(lines[start:end]).replace(old, new, 1).split("\n"))
        return
    exact = any(old in line for line in lines for old, _ in pairs)
    for place, line in enumerate(lines):
        changed = line
        for old, new in pairs:
            if exact:
                changed = changed.replace(old, new)
            elif old.lower() in changed.lower():
                changed = re.sub(re.escape(old), new.replace("\\", r"\\"), changed, flags=re.IGNORECASE)
        if changed != line:
            yield _Edit(place, place + 1, changed.split("\n"))


def _removed(lines: Sequence[str], texts: Sequence[str]) -> Iterator[_Edit]:
    whole = {line.strip() for text in texts for line in text.split("\n")}
    exact = any(line.strip() in whole for line in lines)
    for place, line in enumerate(lines):
        if exact and line.strip() in whole and line.strip():
            yield _Edit(place, place + 1, [])
        elif not exact and (found := next((text for text in texts if text and text in line), None)) is not None:
            yield _Edit(place, place + 1, [line.replace(found, "").rstrip()])


def _added(shown: ShownFile, asked: _Asked) -> tuple[int, list[_Edit]] | None:
    """Return the lines added, after or before a line that is quoted, at the top, or at the end."""
    anchor, below = None, False
    texts = []
    for one in asked.quoted:
        beside = _ANCHORED.search(asked.text[max(0, one.start - 60) : one.start]) if one.start < len(asked.text) else None
        if beside is not None:
            anchor, below = one.written, beside[1].lower() in ("after", "below")
        else:
            texts.append(one.written)
    said = _SAYING.search(asked.text)
    lines = texts[0].split("\n") if texts else [_said(said)] if said else []
    if not lines:
        return None
    for place, piece in enumerate(shown.pieces):
        for number, line in enumerate(piece.lines):
            if anchor is not None and anchor in line:
                at = number + below
                return place, [_Edit(at, at, lines)]
    place = 0 if _AT_TOP.search(asked.text) else len(shown.pieces) - 1
    at = 0 if _AT_TOP.search(asked.text) else len(shown.pieces[place].lines)
    return place, [_Edit(at, at, lines)]


def _rewritten(old: Sequence[str], new: Sequence[str]) -> _Edit:
    """All lines become others; those that stay at both ends are left alone."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    if start == len(old) == len(new):  # a patch must change something
        return _Edit(len(old), len(old), [""])
    return _Edit(start, len(old) - end, new[start : len(new) - end])


def _remark(lines: Sequence[str], path: str, asked: str, seed: int) -> _Edit:
    """One line with what is asked for as a remark: of those that have most of its words, chosen by the seed."""
    words = set(_WORDS.findall(asked.lower()))
    places = [place for place, line in enumerate(lines) if line.strip() and not line.endswith("\\")]
    if not places:
        return _Edit(len(lines), len(lines), [_commented(path, asked)])
    common = [len(words & set(_WORDS.findall(lines[place].lower()))) for place in places]
    most = max(common)
    best = [place for place, count in zip(places, common, strict=True) if count == most]
    chosen = best[seed % len(best)]
    return _Edit(chosen, chosen + 1, [f"{lines[chosen]}  {_commented(path, asked)}"])


def _commented(path: str, asked: str) -> str:
    """Return the words of a request as a comment in a file of this kind; in brackets where there are no comments."""
    line = next((line for line in asked.split("\n") if _WORDS.search(line)), "")
    words = re.sub(r"^(?:to|please|and|then|so that)\s", "", " ".join(re.findall(r"[\w'.:/-]+", line))) or "changed"
    words = words if len(words) <= _MOST_REMARKED else words[:_MOST_REMARKED].rpartition(" ")[0] or words[:_MOST_REMARKED]
    kind = posixpath.basename(path).rpartition(".")[2].lower()
    opening, closing = next(((start, end) for start, end, kinds in _COMMENTS if kind in kinds.split()), ("(", ")"))
    return f"{opening}{words.strip(' .')}{closing}"


def _content(path: str, asked: _Asked) -> list[str]:
    """Return the lines of a new file: what is quoted, what it is said to say, else the request itself."""
    if asked.quoted:
        return max([one.written for one in asked.quoted], key=lambda text: "\n" in text).split("\n")
    said = _SAYING.search(asked.text)
    return [_said(said) if said else _commented(path, asked.text).strip("()")]


def _said(match: re.Match[str]) -> str:
    return re.sub(r"\s+(?:to|in|into|at|of)\s*$", "", match[1]).rstrip(" .")


# --- what a text names --------------------------------------------------------------------------------------------------


def _pairs(text: str, quoted: Sequence[Value]) -> Iterator[tuple[int, int]]:
    """Yield the places of old and new texts among quoted ones: `a` by `b`, `a` in file.py with `b`, `b` instead of `a`."""
    place = 0
    while place < len(quoted) - 1:
        for after in range(place + 1, min(place + 3, len(quoted))):
            parts = [text[quoted[number].end : quoted[number + 1].start] for number in range(place, after)]
            between = " ".join(parts)
            between = re.sub(r"[\w./-]+\.[A-Za-z]\w{0,7}\b", " ", between)  # a path
            if after == place + 1 and _INSTEAD.fullmatch(between):
                yield after, place
                place = after
                break
            named = all(_FILE_NAME.fullmatch(quoted[number].written) for number in range(place + 1, after))
            if named and _BY.fullmatch(between):
                yield place, after
                place = after
                break
        place += 1


def _plain_pair(text: str) -> tuple[str, str] | None:
    """Old and new text without quotation marks: rename fib() to fibonacci(), change the port from 80 to 81."""
    match = _PLAIN.search(text)
    if match is None:
        return None
    old, new = match["old"], match["new"].rstrip(".,;!?")
    return old.strip("\"'`"), new.strip("\"'`")


def _paths(text: str, files: ShownFiles, quoted: Sequence[Value], in_pairs: Set[int]) -> list[Value]:
    """Return the files that a text names, in its order. in_pairs: places of the quoted texts that are old or new ones."""
    found: list[Value] = []
    for path in files.paths:
        for name in dict.fromkeys((path, posixpath.basename(path))):
            match = re.search(rf"(?<![\w/.-])(?:\./)?{re.escape(name)}(?![\w/-]|\.\w)", text)
            if match is not None:
                found.append(Value(match.start(), match.end(), path))
                break
    for value in TextValues(text).left("path"):
        looks_so = "." in posixpath.basename(value.written).strip(".") or _BEFORE_PATH.search(text[: value.start])
        if looks_so and not any(one.start <= value.start < one.end for one in quoted):
            found.append(value)
    found += [one for place, one in enumerate(quoted) if place not in in_pairs and _FILE_NAME.fullmatch(one.written)]
    kept: list[Value] = []
    for one in sorted(found, key=lambda one: (one.start, -one.end)):
        inside = any(place in in_pairs and quoted[place].start <= one.start < quoted[place].end for place in in_pairs)
        if not inside and not any(one.start < other.end or one.written == other.written for other in kept):
            kept.append(one)
    return kept


# --- the patch ----------------------------------------------------------------------------------------------------------


def _diff(lines: Sequence[str], edits: Sequence[_Edit]) -> list[str]:
    """Return the hunks of V4A for edits in order: each with the lines around it."""
    diff: list[str] = []
    at = -1  # the line from which no context was written yet; -1: no hunk is open
    for place, edit in enumerate(edits):
        if at < 0:
            at = max(0, edit.start - _CONTEXT)
            diff.append("@@")
        diff += [f" {line}" for line in lines[at : edit.start]]
        diff += [f"-{line}" for line in lines[edit.start : edit.end]]
        diff += [f"+{line}" for line in edit.lines]
        at = edit.end
        following = edits[place + 1].start if place + 1 < len(edits) else len(lines) + 3 * _CONTEXT
        if following - at > 2 * _CONTEXT:
            diff += [f" {line}" for line in lines[at : at + _CONTEXT]]
            at = -1
    return diff
