"""The plan of a reply: what will be said, token by token, before anything is said."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
PartKind = Literal["reasoning", "text", "refusal", "function_call", "custom_call", "hosted_call", "client_call"]

_PATHS = {"path", "filepath", "file", "filename", "targetfile", "absolutepath"}
_RUNS = re.compile(r"(?<![a-z])(?:bash|shell|terminal|powershell|exec|executes?|command.line|cli)(?![a-z])", re.IGNORECASE)
_WRITES = re.compile(r"write|create|save", re.IGNORECASE)
_CONTENTS = ("content", "contents", "file_text", "text")
_OLD_AND_NEW = (
    ("old_string", "new_string"), ("oldString", "newString"), ("old_str", "new_str"), ("old_text", "new_text"),
    ("oldText", "newText"),
)  # fmt: skip
_READS = re.compile(r"(?:read|view|open|cat)(?:_?(?:text_?)?files?)?(?:_?contents?)?$", re.IGNORECASE)


@dataclass(slots=True, frozen=True)
class Part:
    """Tokens [start, end) of a reply, and what they are. name: the tool that a call is for."""

    kind: PartKind
    start: int
    end: int
    name: str = ""


@dataclass(slots=True)
class Reply:
    """One choice of a response, finished before its first token is due.

    ids: int32, shape (tokens,), at least one: everything the model generates, including the end-of-turn token when
        finish_reason is "stop" by the model's own will, and the tokens of a stop string it ran into.
    pieces: one text per id; joined over a part they are exactly its visible text (of a call: its arguments). A piece is
        empty where a token shows nothing (an end token, the inside of a multi-byte character, text cut off by a stop string,
        the marks around a call). Of a long reply a tuple: a pass of the garbage collector walks a list anew each time.
    parts: in order, not overlapping; tokens between them show nothing. A reply without parts is text from end to end.
    """

    ids: npt.NDArray[np.int32]
    pieces: Sequence[str]
    finish_reason: FinishReason
    stop_reason: str | int | None = None  # the stop string, or the id of the stop token, that ended it, if one did
    parts: tuple[Part, ...] = ()

    @property
    def text(self) -> str:
        """The visible answer itself."""
        if not self.parts:
            return "".join(self.pieces)
        return "".join([self.said(part) for part in self.parts if part.kind == "text"])

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """`parts`, with the one that goes without saying."""
        return self.parts or (Part("text", 0, len(self.ids)),)

    @property
    def reasoning_tokens(self) -> int:
        return sum([part.end - part.start for part in self.parts if part.kind == "reasoning"])

    def said(self, part: Part) -> str:
        return "".join(self.pieces[part.start : part.end])


@dataclass(slots=True, frozen=True)
class Grammar:
    """The form of a text. syntax: lark (also EBNF and GBNF spellings), regex, or choice: one string of a list."""

    syntax: Literal["lark", "regex", "choice"]
    definition: str = ""
    choices: tuple[str, ...] = ()


_PATCH_MARKS = ("*** Begin Patch", "*** Update File: ", "*** Add File: ", "*** End Patch")


@dataclass(slots=True, frozen=True)
class Replacement:
    """Names of the arguments for a path, an old and a new text; within: of the list of objects that have the texts."""

    path: str
    old: str
    new: str
    within: str | None = None


@dataclass(slots=True, frozen=True)
class Tool:
    """A tool the model may call. parameters: JSON Schema of a function's arguments; grammar: of a custom tool's input.

    hosted: the API runs it and the reply goes on; client: a tool of the API's own that the client runs. field: the field of
    the request that says what its input must be.
    """

    kind: Literal["function", "custom", "hosted", "client"]
    name: str
    description: str = ""
    parameters: Any = None
    grammar: Grammar | None = None
    field: str = "tools"
    found_by: str = ""  # the hosted tool that finds it: the model cannot call it before

    @property
    def own_name(self) -> str:
        """The name without the server that it belongs to: mcp__github__create_issue, wiki.ask_question."""
        return self.name.rpartition("__")[2].rpartition(".")[2] or self.name

    @property
    def edits_files(self) -> bool:
        """Tell whether it takes the commands of an editor: view, create, str_replace and others, with a path."""
        schema = self.parameters if self.kind != "custom" and isinstance(self.parameters, dict) else {}
        found = schema.get("properties")
        properties: dict[str, Any] = found if isinstance(found, dict) else {}
        command = properties.get("command")
        commands = command.get("enum") if isinstance(command, dict) else None
        known = {str(each) for each in commands} if isinstance(commands, list) else set()
        return {"view", "str_replace"} <= known and "path" in properties

    @property
    def writes_patches(self) -> bool:
        """If its input is a patch: by its grammar, or by its name, apply_patch; of a function with one text."""
        if self.grammar is not None:
            return all(mark in self.grammar.definition for mark in _PATCH_MARKS)
        if self.kind in ("custom", "client"):
            return self.name == "apply_patch"
        return self.text_argument is not None and self.own_name == "apply_patch"

    @property
    def reads_files(self) -> bool:
        """If it is a function named for reading with one path that must be given: Read, read_file, view."""
        argument = (self.text_argument or "").lower().replace("_", "")
        return argument in _PATHS and _READS.match(self.own_name) is not None

    @property
    def runs_commands(self) -> bool:
        """If it is a function that runs commands of a shell: Bash, exec_command."""
        return self.command_argument is not None and _RUNS.search(f"{self.own_name} {self.description[:200]}") is not None

    @property
    def command_argument(self) -> str | None:
        """The argument for a command that must be given, `command` or `cmd`: a text or a list of words, of any kind."""
        schema = self.parameters if self.kind == "function" and isinstance(self.parameters, dict) else {}
        properties = schema.get("properties") or {}
        for name in schema.get("required") or list(properties):
            found = properties.get(name) if name in ("command", "cmd") else None
            if isinstance(found, dict) and found.get("type") in ("string", "array") and "enum" not in found:
                return str(name)
        return None

    @property
    def content_argument(self) -> str | None:
        """The argument for all that a file is to hold, of a function named for writing that takes its path: Write."""
        texts = {name for name, kind in self._required.items() if kind == "string"}
        path = any(name.lower().replace("_", "") in _PATHS for name in texts)
        content = next((name for name in _CONTENTS if name in texts), None)
        return content if path and _WRITES.search(self.own_name) is not None else None

    @property
    def replacement(self) -> Replacement | None:
        """The arguments of a function that replaces one text in a file by another: Edit, str_replace."""
        path = next((name for name in self._required if name.lower().replace("_", "") in _PATHS), None)
        schema = self.parameters if isinstance(self.parameters, dict) else {}
        for name, kind in self._required.items() if path is not None else ():
            items = schema["properties"][name].get("items") if kind == "array" else schema
            found = items.get("properties") if isinstance(items, dict) else None
            known = found if isinstance(found, dict) else {}
            for old, new in _OLD_AND_NEW:
                if old in known and new in known and path is not None:
                    return Replacement(path, old, new, name if kind == "array" else None)
        return None

    @property
    def _required(self) -> dict[str, str]:
        """The types of a function's arguments that must be given, by name."""
        schema = self.parameters if self.kind == "function" and isinstance(self.parameters, dict) else {}
        properties = schema.get("properties") or {}
        found = {str(name): properties.get(name) for name in schema.get("required") or ()}
        return {name: str(each.get("type")) for name, each in found.items() if isinstance(each, dict)}

    @property
    def text_argument(self) -> str | None:
        """The one argument that a function must be given, if it is a text."""
        schema = self.parameters if self.kind == "function" and isinstance(self.parameters, dict) else {}
        properties = schema.get("properties") or {}
        names = schema.get("required") or list(properties)
        found = properties.get(names[0]) if len(names) == 1 else None
        return str(names[0]) if isinstance(found, dict) and found.get("type") == "string" else None


@dataclass(slots=True, frozen=True)
class ToolChoice:
    """The choice of tools: if they must be called, and which. names: the only ones allowed; None: all."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None


AUTO = ToolChoice()
ANY_OBJECT: dict[str, Any] = {"type": "object"}  # the `json_schema` of a request for an object of any kind


# Not frozen, as what else is made for every request: a frozen class sets each field by a call.
@dataclass(slots=True)
class ReplyRequest:
    """The part of a request that a reply source may know.

    max_tokens is a limit: the model stops by itself, unless ignore_eos is set. Without a seed, conversations that a client
    tells apart get different replies to the same words, as a model that samples would give them: else every run would find
    its replies in the cache.
    """

    prompt_ids: npt.NDArray[np.int32]
    last_user_text: str  # the text of the last user message (chat) or the prompt (completions)
    max_tokens: int | None
    limit_tokens: int  # never more than this many tokens: what is left of the context window
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    include_stop_str: bool = False
    stop_token_ids: tuple[int, ...] = ()  # the reply ends at the first of them, which shows nothing without include_stop_str
    shows_end: bool = False  # the token that ends the turn shows as text
    seed: int | None = None
    conversation: str | None = None  # the client's own name for the conversation, where it has one
    choice: int = 0  # index among n choices
    greedy: bool = False  # temperature 0: every choice says the same
    reasoning_tokens: int = 0  # to think before the answer at most; they count towards max_tokens
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = AUTO
    parallel_tool_calls: bool = True
    called: tuple[str, ...] = ()  # names of the tools called since the last user message, each time they were
    results: tuple[str, ...] = ()  # what those calls gave
    messages: Sequence[Mapping[str, Any]] = ()  # the conversation, in chat's form
    most_hosted_calls: int = 8
    json_schema: Any = None  # the answer is a JSON value valid against it; {"type": "object"} for any object
    form_field: str = "response_format"  # the field of the request that gives json_schema or grammar
    fenced: bool = False  # that value stands in a Markdown code block
    instructions: tuple[str, ...] | None = None  # texts of the prompt that may ask for a form of the answer
    grammar: Grammar | None = None  # the answer matches it
    compacts: bool = False  # the answer is a summary of the conversation, for the turns that follow it
    may_refuse: bool = False  # decline messages that ask for harm
    length_factor: float = 1.0  # how long a reply that ends by itself is, compared with others


class ReplySource(Protocol):
    """Something that knows what to say."""

    def reply(self, request: ReplyRequest) -> Reply:
        """Return the plan for one choice; deterministic by the source's seed and the request."""
        ...
