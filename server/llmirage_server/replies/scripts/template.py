"""Texts with placeholders: `{1}` for a group of a regular expression, `{result}` for what a tool returned, and so on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_server.replies.scripts.conditions import Groups, ScriptRequest
from llmirage_server.replies.structured.budget import spend
from llmirage_shared.settings import did_you_mean

_CHARACTERS, _MOST_STEPS = 16, 62_500  # of a step of planning; of a text, which is copied and becomes tokens
_NAME = r"\w[\w-]*(?:\.[\w-]+)*"
_PLACEHOLDER = re.compile(rf"\{{(\{{{_NAME}\}})\}}|\{{({_NAME})\}}")
PLACEHOLDERS: Mapping[str, str] = {
    "user": "the last user message, or the prompt",
    "model": "the model's name in the request",
    "result": "the newest tool result; `{result.status}`: a value in its JSON",
    "results": "all tool results since the last user message, a line each; `{results.get_order}`: that of one tool",
    "count": "how many replies this rule has given, with this one",
}


class ScriptError(ValueError):
    """A rule that cannot reply to a request that it matches. The message says why."""


@dataclass(slots=True)
class Scope:
    """The values of the placeholders of one reply."""

    request: ScriptRequest
    groups: Groups
    count: int

    def value(self, name: str) -> str:
        """Return the value of a placeholder. Raises ScriptError for a value that this request does not have."""
        head, _, path = name.partition(".")
        if head.isdecimal():
            return self.groups.numbered[int(head) - 1]
        if head in self.groups.named:
            return self.groups.named[head]
        if head == "result":
            return self._of_result(self._newest(), path)
        if head == "results":
            return self._of_results(path)
        return str(self.count) if head == "count" else str(getattr(self.request, head))

    def _newest(self) -> tuple[str, str]:
        results = self.request.newest_results or self.request.results
        if not results:
            raise ScriptError("{result} needs a tool result, and this request has none: add tool_result: true to `when`")
        return results[-1]

    def _of_results(self, path: str) -> str:
        if not path:
            return "\n".join([content for _, content in self.request.results])
        tool, _, rest = path.partition(".")
        found = [result for result in self.request.results if result[0] == tool]
        if not found:
            raise ScriptError(f"{{results.{path}}} needs a result of {tool}, and this request has none")
        return self._of_result(found[-1], rest)

    def _of_result(self, result: tuple[str, str], path: str) -> str:
        name, content = result
        if not path:
            return content
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            raise ScriptError(f"the result of {name} is not JSON, so it has no {path}") from None
        for key in path.split("."):
            if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            elif isinstance(value, dict) and key in value:
                value = value[key]
            else:
                raise ScriptError(f"the result of {name} has no {path}")
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Template:
    """A text, in turn literal and the name of a placeholder: the names have odd indexes."""

    parts: tuple[str, ...]

    @staticmethod
    def of(text: str) -> Template:
        """`{{name}}` is the text {name}; braces without a name between them stay as they are."""
        parts = [""]
        at = 0
        for found in _PLACEHOLDER.finditer(text):
            parts[-1] += text[at : found.start()]
            at = found.end()
            if found[1] is None:
                parts += [found[2], ""]
            else:
                parts[-1] += found[1]
        parts[-1] += text[at:]
        return Template(tuple(parts))

    @property
    def names(self) -> Sequence[str]:
        return self.parts[1::2]

    @property
    def bare(self) -> bool:
        """If it is one placeholder and nothing else."""
        return len(self.parts) == 3 and not self.parts[0] and not self.parts[2]

    def __str__(self) -> str:
        return "".join([f"{{{part}}}" if index % 2 else part for index, part in enumerate(self.parts)])

    def render(self, scope: Scope) -> str:
        """Return the text with the placeholders' values. Raises ScriptError, and BudgetError for more than is left."""
        texts: list[str] = []
        steps = 0
        for index, part in enumerate(self.parts):
            texts.append(scope.value(part) if index % 2 else part)
            spend(more := len(texts[-1]) // _CHARACTERS + index % 2)
            if (steps := steps + more) > _MOST_STEPS:
                raise ScriptError(
                    f"its text would have more than {_MOST_STEPS * _CHARACTERS} characters, {_CHARACTERS} for a placeholder"
                )
        return "".join(texts)


def literal(text: str) -> str:
    """Return the template that says this text."""
    return _PLACEHOLDER.sub(lambda found: "{" + found[0] + "}", text) if "{" in text else text


def problems_of(name: str, groups: int, named: Sequence[str], results: bool) -> Iterator[str]:
    """Return the problem with a placeholder. groups, named: of the rule's regular expressions; results: may there be any?"""
    head = name.partition(".")[0]
    if head.isdecimal():
        if not 1 <= int(head) <= groups:
            there = (
                f"the rule's regular expressions have {groups} groups" if groups else "the rule has no regular expression"
            )
            yield f"{{{name}}}: {there}; write {{{{{name}}}}} for the text itself"
    elif head not in (*PLACEHOLDERS, *named):
        hint = did_you_mean(head, [*PLACEHOLDERS, *named])
        yield f"{{{name}}}: unknown placeholder{hint}; write {{{{{name}}}}} for the text itself"
    elif head in ("result", "results") and not results and head not in named:
        yield f"{{{name}}}: the rule is for requests without tool results; add tool_result to `when`"


def templated(value: Any) -> Any:
    """JSON data with a Template for each text that has placeholders or braces."""
    if isinstance(value, str):
        template = Template.of(value)
        return template if len(template.parts) > 1 or template.parts[0] != value else value
    if isinstance(value, dict):
        return {key: templated(item) for key, item in value.items()}
    if isinstance(value, list):
        return [templated(item) for item in value]
    return value


def rendered(value: Any, render: Callable[[Template, tuple[str, ...]], Any], path: tuple[str, ...] = ()) -> Any:
    """JSON data again. render: gets each template and the keys that lead to it; `*` stands for an index."""
    if isinstance(value, Template):
        return render(value, path)
    if isinstance(value, dict):
        return {key: rendered(item, render, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [rendered(item, render, (*path, "*")) for item in value]
    return value


def templates_in(value: Any) -> Iterator[Template]:
    """All templates of JSON data."""
    if isinstance(value, Template):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from templates_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from templates_in(item)
