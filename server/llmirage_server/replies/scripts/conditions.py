"""Conditions of a rule on the requests that it replies to."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from llmirage_server.replies import patterns
from llmirage_server.replies.structured.budget import spend

Kind = Literal["contains", "exact", "regex", "glob"]

_SEARCHED = 1 << 14  # characters in a step


@dataclass(slots=True)
class Groups:
    """Matches of the groups of a rule's regular expressions, in the order of the rule's conditions."""

    numbered: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)


@functools.lru_cache(maxsize=4)  # every rule looks at the same texts, which may be long
def _folded(text: str) -> str:
    return text.casefold()


@dataclass(frozen=True, slots=True)
class TextMatch:
    """One condition on a text. texts: what it looks for, one text unless `contains` needs several.

    contains: all texts occur, whatever their case. exact: the whole text is equal. glob: the whole text is equal, where `*`
    stands for anything. regex: a regular expression matches somewhere.
    """

    kind: Kind
    texts: tuple[str, ...]
    pattern: Any = field(default=None, compare=False)

    @staticmethod
    def of(kind: Kind, *texts: str) -> TextMatch:
        """Return a match of texts. Raises ValueError for a regular expression that is none, and for an empty text."""
        if not all(texts) and kind != "exact":
            raise ValueError("must not be empty")
        if kind == "contains":
            return TextMatch(kind, tuple(text.casefold() for text in texts))
        if kind == "exact":
            return TextMatch(kind, texts)
        written = texts[0] if kind == "regex" else r"(?s)\A" + ".*".join(map(re.escape, texts[0].split("*"))) + r"\z"
        return TextMatch(kind, texts, patterns.compiled(written))

    @property
    def group_names(self) -> Mapping[str, int]:
        return dict(self.pattern.groupindex) if self.pattern is not None else {}

    @property
    def group_count(self) -> int:
        return int(self.pattern.groups) if self.pattern is not None else 0

    def fits(self, text: str, groups: Groups | None = None) -> bool:
        """Return True for a text that fits. groups: gets what the groups of a regular expression matched.

        Raises BudgetError where planning has too few steps left.
        """
        if self.kind == "contains":
            spend(len(self.texts) * (1 + len(text) // _SEARCHED))
            folded = _folded(text)
            return all(wanted in folded for wanted in self.texts)
        if self.kind == "exact":
            return text == self.texts[0]
        found = patterns.search(self.pattern, text)
        if found is None:
            return False
        if groups is not None:
            groups.numbered += [group or "" for group in found.groups()]
            groups.named |= {name: value or "" for name, value in found.groupdict().items()}
        return True

    def covers(self, other: TextMatch) -> bool:
        """Return if it is certain that every text which fits `other` fits this one."""
        if self == other:
            return True
        if other.kind == "exact":
            return self.fits(other.texts[0])
        if self.kind == "contains" and other.kind == "contains":
            return all(any(mine in theirs for theirs in other.texts) for mine in self.texts)
        return self.kind == "glob" and other.kind == "glob" and self.fits(other.texts[0])


ENDPOINTS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/generate": "generate",
}
"""The endpoints whose replies can be scripted: paths, and how rules call them."""
CONVERSING = frozenset(("chat", "responses", "messages"))  # the others have a prompt: no messages, no tools


@dataclass(frozen=True, slots=True)
class ScriptRequest:
    """A request as rules see it.

    user: the last user message, or the prompt. turn, assistant_messages: how many messages there are of the user and of the
    assistant. tools: names of the tools that the request declares. results: (tool, content) of each tool
    result since the last user message; newest: how many of them, at the end, came with the last message.
    header: a header's value by its name in lower case.
    """

    endpoint: str
    model: str
    user: str
    system: str = ""
    turn: int = 1
    assistant_messages: int = 0
    tools: tuple[str, ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    newest: int = 0
    header: Callable[[str], str | None] = lambda _: None
    metadata: Mapping[str, Any] | None = None

    @property
    def newest_results(self) -> tuple[tuple[str, str], ...]:
        return self.results[len(self.results) - self.newest :]


class Condition(Protocol):
    """One key of `when`."""

    def fits(self, request: ScriptRequest, groups: Groups) -> bool:
        """Return if a request fits; adds what regular expressions matched to `groups`."""
        ...

    def covers(self, other: Any) -> bool:
        """Return if it is certain that every request which fits `other`, of the same key, fits this one."""
        ...


@dataclass(frozen=True, slots=True)
class EndpointCondition:
    """A condition on the endpoint of a request."""

    names: frozenset[str]

    def fits(self, request: ScriptRequest, groups: Groups) -> bool:
        return request.endpoint in self.names

    def covers(self, other: EndpointCondition) -> bool:
        return other.names <= self.names


@dataclass(frozen=True, slots=True)
class TextCondition:
    """On the model's name, the last user message or the system prompt."""

    field: str
    match: TextMatch

    def fits(self, request: ScriptRequest, groups: Groups) -> bool:
        return self.match.fits(getattr(request, self.field), groups)

    def covers(self, other: TextCondition) -> bool:
        return self.match.covers(other.match)


@dataclass(frozen=True, slots=True)
class ResultCondition:
    """On tool results. there: whether this turn has any. name, content: of one of the newest results."""

    there: bool
    name: TextMatch | None = None
    content: TextMatch | None = None

    def fits(self, request: ScriptRequest, groups: Groups) -> bool:
        if self.name is None and self.content is None:
            return bool(request.results) == self.there
        return any(self._one_fits(name, content, groups) for name, content in request.newest_results[::-1])

    def _one_fits(self, name: str, content: str, groups: Groups) -> bool:
        return (self.name is None or self.name.fits(name)) and (self.content is None or self.content.fits(content, groups))

    def covers(self, other: ResultCondition) -> bool:
        return (
            self.there == other.there
            and (self.name is None or (other.name is not None and self.name.covers(other.name)))
            and (self.content is None or (other.content is not None and self.content.covers(other.content)))
        )


@dataclass(frozen=True, slots=True)
class Span:
    """Numbers from `first` to `last`; None: no end."""

    first: int = 1
    last: int | None = None

    def __contains__(self, number: int) -> bool:
        return self.first <= number and (self.last is None or number <= self.last)

    def covers(self, other: Span) -> bool:
        ends = self.last is None or (other.last is not None and other.last <= self.last)
        return self.first <= other.first and ends


@dataclass(frozen=True, slots=True)
class CountCondition:
    """On how many messages of the user (`turn`) or of the assistant there are."""

    field: str
    span: Span

    def fits(self, request: ScriptRequest, groups: Groups) -> bool:
        return getattr(request, self.field) in self.span

    def covers(self, other: CountCondition) -> bool:
        return self.span.covers(other.span)


@dataclass(frozen=True, slots=True)
class ToolCondition:
    """On the tools that a request declares: one of them has this name."""

    name: TextMatch

    def fits(self, request: ScriptRequest, groups: Groups) -> bool:
        return any(self.name.fits(name) for name in request.tools)

    def covers(self, other: ToolCondition) -> bool:
        return self.name.covers(other.name)


@dataclass(frozen=True, slots=True)
class NamedTexts:
    """On headers, or on the request's metadata: each name has a value that fits."""

    where: str
    wanted: tuple[tuple[str, TextMatch], ...]

    def fits(self, request: ScriptRequest, groups: Groups) -> bool:
        return all(self._one_fits(request, name, match, groups) for name, match in self.wanted)

    def _one_fits(self, request: ScriptRequest, name: str, match: TextMatch, groups: Groups) -> bool:
        value = request.header(name.lower()) if self.where == "header" else (request.metadata or {}).get(name)
        return isinstance(value, str) and match.fits(value, groups)

    def covers(self, other: NamedTexts) -> bool:
        theirs = dict(other.wanted)
        return all(name in theirs and match.covers(theirs[name]) for name, match in self.wanted)
