"""What a tool is for, as its name, description and parameters tell."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from llmirage_server.replies.asked import VERBS, Act
from llmirage_server.replies.lexicon import EMPTY, meaning, said_as, split_words, stem, word_set
from llmirage_server.replies.reply import Grammar, Tool
from llmirage_server.replies.structured.schema import types_of
from llmirage_server.replies.sums import NAMES as OPERATIONS

_DESCRIBED = 240  # characters of a description that count: it begins with what the tool does
_SEARCHES = word_set("search browse lookup google bing wikipedia wiki tavily duckduckgo brave exa serp serpapi "
                     "perplexity retrieve "
                     "retriever retrieval knowledge rag faq ask query find")  # fmt: skip
_SEARCHED = word_set("web internet online base documents document docs knowledge wikipedia info information results json "
                     "api engine "
                     "google preview text pages page run vector store similar semantic content context relevant qa "
                     "question news "
                     "deep fast quick public general policy policies handbook kb mcp tool server hosted")  # fmt: skip
_FILED = word_set(
    "retrieve retriever retrieval knowledge rag faq docs documents document policy policies handbook kb manual"
)
_SHELLS = word_set("bash shell terminal cmd command commands powershell zsh console sh exec execute process")
_COMMANDS = word_set("command commands cmd script bash")
_CALCULATORS = word_set("calculator calculate calc compute math maths arithmetic evaluate eval expression solver wolfram")
_DATABASES = word_set("sql database db postgres postgresql mysql sqlite bigquery snowflake duckdb")
_CODES = word_set("python code interpreter repl ipython notebook sandbox jupyter")
_HANDOFF = re.compile(r"(?:transfer|handoff|hand_?off|delegate|route|escalate|assign|switch)_?_?to_?_?", re.IGNORECASE)
_HANDED = re.compile(r"\s*(?:hand ?off|transfer|delegate|assign task|escalate)\b", re.IGNORECASE)
_DESKS = word_set("agent agents assistant specialist expert team desk department bot worker")
_ANSWERS = re.compile(
    r"(?:final_?|structured_?|provide_?|submit_?|return_?|give_?|emit_?|generate_?|output_?)+(?:answer|result|response|"
    r"output|report|schema)\w*|json_?tool_?call|json|answer|respond|response|"
    r"structuredoutput|attempt_completion|finish|done",
    re.IGNORECASE,
)
_SIGNATURE = re.compile(r"\s*\w+\([^()\n]*\)(?: -> [^\n]+)?\n")  # LlamaIndex: "add(a: int) -> int\nAdds ..."
_SCHEMA_NAME = re.compile(r"(?:[A-Z][a-z0-9]+)+(?:\[\w+\])?")
_ACTING = frozenset({"create", "update", "delete", "send"})


class Traits:
    """One tool, read."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.words = split_words(_HANDOFF.sub("", tool.name) if self.hands_over else tool.name)
        self.described = split_words(_SIGNATURE.sub("", tool.description)[:_DESCRIBED])
        verbs = [word for word in self.words if word in VERBS]
        self.objects = {stem(word) for word in meaning_words(self.words) if word not in VERBS or word in _NOUNS}
        self.verbs = {stem(word) for word in verbs}
        first = verbs[:1] or [word for word in self.described[:1] if word.removesuffix("s") in VERBS or word in VERBS]
        self.acts: frozenset[Act] = frozenset[Act]().union(
            *(VERBS.get(word) or VERBS.get(word.removesuffix("s"), frozenset()) for word in first)
        )
        self.about = {word for word in meaning(self.described) if word not in _VERB_STEMS}  # what the description speaks of
        self._said_for_objects = said_as(self.objects)
        self._said_for_about = said_as(self.about)

    @cached_property
    def properties(self) -> Mapping[str, Any]:
        found = self.tool.parameters.get("properties") if isinstance(self.tool.parameters, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    @cached_property
    def hands_over(self) -> bool:
        """It gives the conversation to another agent."""
        return bool(_HANDOFF.match(self.tool.name)) or bool(_HANDED.match(self.tool.description))

    @cached_property
    def changes(self) -> bool:
        return bool(self.acts) and self.acts <= _ACTING

    @cached_property
    def searches(self) -> bool:
        """It searches for anything, not for one kind of thing."""
        words = set(self.words)
        return (
            bool(words & _SEARCHES or (words & _FILED))
            and words <= _SEARCHES | _SEARCHED | {"the", "for", "get", "internal", "company", "my", "ai", "with"}
            and not self.calculates
        )

    @cached_property
    def searches_files(self) -> bool:
        """What it searches is the caller's own: any question may be about it."""
        return self.searches and bool(set(self.words) & _FILED)

    @cached_property
    def is_shell(self) -> bool:
        return bool(set(self.words) & _SHELLS) and (
            not self.properties or any(set(split_words(name)) & _COMMANDS for name in self.properties)
        )

    @cached_property
    def uses_computer(self) -> bool:
        """It is a screen, a mouse and a keyboard."""
        return self.tool.kind == "client" and self.words == ["computer"]

    @cached_property
    def queries(self) -> bool:
        """It takes SQL."""
        return bool(set(self.words) & _DATABASES)

    @cached_property
    def runs_code(self) -> bool:
        return bool(set(self.words) & _CODES) and not self.is_shell and not set(self.words) & {"search", "review"}

    @cached_property
    def calculates(self) -> bool:
        """It does any arithmetic."""
        return bool(set(self.words) & _CALCULATORS) and not self.hands_over

    @cached_property
    def numbers(self) -> list[str]:
        """Names of the parameters that are numbers, or lists of them."""
        return [name for name, schema in self.properties.items() if is_numeric(schema)]

    def does(self, kind: str) -> bool:
        """Whether it is there for one operation of arithmetic."""
        if self.hands_over or not set(self.words) & OPERATIONS[kind]:
            return False
        lists = [name for name in self.numbers if "array" in types_of(self.properties[name])]
        return not self.properties or bool(lists) or len(self.numbers) >= (1 if kind == "sqrt" else 2)

    @cached_property
    def takes_the_answer(self) -> bool:
        """It takes the final answer: an agent library's way to structured output."""
        return _ANSWERS.fullmatch(self.tool.name) is not None

    @cached_property
    def named_as_class(self) -> bool:
        return _SCHEMA_NAME.fullmatch(self.tool.name) is not None

    @cached_property
    def is_schema(self) -> bool:
        """It is named as a class is, and for no act: WeatherReport. Beside tools of plainer names it takes the answer."""
        acts = self.acts or self.is_shell or self.searches or self.verbs
        return not acts and self.named_as_class

    @cached_property
    def is_for_sums(self) -> bool:
        """It does one operation of arithmetic, and is called for nothing else."""
        return any(self.does(kind) and (self.numbers or self.words == [kind]) for kind in OPERATIONS)

    def desk(self) -> set[str]:
        """Of a handoff: the words for what the other agent is there for."""
        return {word for word in self.objects | self.about if word not in _DESK_STEMS}

    def matched(self, said: set[str], deep: bool = True) -> tuple[set[str], set[str]]:
        """The words said that its name, and that its description, speak of."""
        named = self._said_for_objects & said
        about = self._said_for_about & said if deep else set()
        return named, about - named


def traits_of(tool: Tool) -> Traits:
    """Agents send the same tools with every request: each is read once."""
    return _traits(tool.kind, tool.name, tool.description[: _DESCRIBED * 2], json.dumps(tool.parameters), tool.grammar)


@lru_cache(maxsize=4096)
def _traits(kind: Any, name: str, description: str, parameters: str, grammar: Grammar | None) -> Traits:
    return Traits(Tool(kind, name, description, json.loads(parameters), grammar))


_NOUNS = word_set(
    "grep glob email mail message text query file order book search lookup translate convert post notes note plan record"
)
_VERB_STEMS = {stem(verb) for verb in VERBS if verb not in _NOUNS} | {
    "handl",
    "hand",
    "handoff",
    "transf",
    "transfer",
    "agent",
    "request",
}
_DESK_STEMS = {stem(word) for word in _DESKS}


def meaning_words(words: Sequence[str]) -> list[str]:
    return [word for word in words if word not in EMPTY and len(word) > 1]


def is_numeric(schema: Any) -> bool:
    """Whether a parameter is a number or a list of numbers, null aside."""
    if not isinstance(schema, Mapping) or "enum" in schema:
        return False
    options = [schema, *(option for key in ("anyOf", "oneOf") for option in schema.get(key) or ())]
    for option in options:
        kinds = set(types_of(option)) if isinstance(option, Mapping) else set()
        if "array" in kinds:
            return isinstance(option.get("items"), Mapping) and bool({"number", "integer"} & set(types_of(option["items"])))
        if {"number", "integer"} & kinds:
            return True
    return False
