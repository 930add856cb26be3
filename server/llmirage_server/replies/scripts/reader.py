"""Scripts as they are written: YAML or JSON. Every problem is told with its line, all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from llmirage_server.replies.embedding import same_text
from llmirage_server.replies.scripts.checks import argument_problem, declared_tools, rule_problems, shadowed
from llmirage_server.replies.scripts.conditions import (
    CONVERSING,
    ENDPOINTS,
    Condition,
    CountCondition,
    EndpointCondition,
    Kind,
    NamedTexts,
    ResultCondition,
    Span,
    TextCondition,
    TextMatch,
    ToolCondition,
)
from llmirage_server.replies.scripts.rule import (
    ALL,
    FALLBACKS,
    FILE_KEYS,
    FINISH_REASONS,
    KEYS,
    MOST_RULES,
    MOST_TOKENS,
    Fallback,
    Script,
    ScriptedCall,
    ScriptedReply,
    ScriptedVector,
    ScriptRule,
    Template,
    templated,
)
from llmirage_shared.settings import ConfigError, convert_to, did_you_mean
from llmirage_shared.yaml_lines import Entry, YamlNode, node_of, read_mapping

_MOST_COORDINATES = 8192
Report = Callable[[int, str, str], None]
"""Called with line, field and problem."""
FaultReader = Callable[[YamlNode, str, Report, str], Any]
"""Reads a fault: its node, its field, whom to tell problems, the file. None if something is wrong with it."""


def read_scripts(paths: Sequence[str], read_fault: FaultReader) -> Script:
    """Return the rules of files, in order. Raises ConfigError with `file:line: field: problem` for all problems."""
    problems: list[str] = []
    script = Script()
    for path in paths:
        reader = ScriptReader(path, read_fault)
        try:
            read = reader.script(read_mapping(path, "a script"))
        except ConfigError as error:
            problems += error.problems
            continue
        problems += reader.problems
        if "generated" not in (script.fallback, read.fallback) and script.fallback != read.fallback:
            problems.append(f"{path}: fallback: {read.fallback}, but another script says {script.fallback}")
        fallback = read.fallback if read.fallback != "generated" else script.fallback
        script = Script([*script.rules, *read.rules], fallback, vectors={**read.vectors, **script.vectors})
    problems += shadowed(script.rules)
    if problems:
        raise ConfigError(problems)
    return script


def script_of(data: Mapping[str, Any], read_fault: FaultReader, name: str = "script") -> Script:
    """Return the script in JSON data. name: what problems and rules call it. Raises ConfigError."""
    reader = ScriptReader(name, read_fault)
    script = reader.script(node_of(data).entries or ())
    if problems := [*reader.problems, *shadowed(script.rules)]:
        raise ConfigError(problems)
    return script


class ScriptReader:
    """Reads one script and collects what is wrong with it."""

    def __init__(self, path: str, read_fault: FaultReader) -> None:
        self._path = path
        self._read_fault = read_fault
        self._tools: Mapping[str, Any] = {}
        self._problems: list[tuple[int, str]] = []

    @property
    def problems(self) -> list[str]:
        """In the order of the lines."""
        return [problem for _, problem in sorted(self._problems, key=lambda found: found[0])]

    def script(self, entries: Iterable[Entry]) -> Script:
        found = self._known(entries, "", FILE_KEYS)
        self._tools = self._given(found, "tools", declared_tools) or {}
        vectors: list[tuple[str, ScriptedVector]] = []
        if "embeddings" in found:
            vectors = self._list(found["embeddings"].node, "embeddings", self._vector, may_be_empty=True)
        elif "rules" not in found:
            self._report(0, "rules", "missing: a list of rules, each with `when` and `reply`")
        rules = self._rules(found["rules"].node) if "rules" in found else []
        fallback: Fallback = self._given(found, "fallback", lambda value: _one_of(value, FALLBACKS)) or "generated"
        return Script([rule for rule in rules if rule is not None], fallback, vectors=dict(vectors))

    def _vector(self, node: YamlNode, place: str) -> tuple[str, ScriptedVector]:
        found = self._mapping(node, place, KEYS["embedding"])
        if "text" not in found or len(found.keys() & {"near", "vector"}) != 1:
            self._report(node.line, place, "must have a text, and either near or vector")
        text, near = (self._given(found, name, _text, place) or "" for name in ("text", "near"))
        vector = self._given(found, "vector", _coordinates, place) or ()
        return same_text(text), ScriptedVector(self._where(node, place), vector, near)

    def _where(self, node: YamlNode, place: str) -> str:
        return f"{self._path}:{node.line}" if node.line else f"{self._path} {place}"

    def _rules(self, node: YamlNode) -> list[ScriptRule | None]:
        if node.items is not None and len(node.items) > MOST_RULES:
            self._report(node.line, "rules", f"must be at most {MOST_RULES:,} rules, not {len(node.items):,}")
            return []
        return self._list(node, "rules", self._rule, may_be_empty=True)

    # --- rules ------------------------------------------------------------------------------------------------------

    def _rule(self, node: YamlNode, place: str) -> ScriptRule | None:
        before = len(self._problems)
        found = self._mapping(node, place, KEYS["rule"])
        if not found.keys() & {"reply", "fault"}:
            self._report(node.line, place, "reply is missing")
        when, nth = self._when(found["when"].node, f"{place}.when") if "when" in found else ({}, ALL)
        replies = [ScriptedReply()]
        if "reply" in found:
            replies = self._replies(found["reply"].node, f"{place}.reply")
        if "fault" in found:
            fault = self._fault(found["fault"].node, f"{place}.fault")
            replies = [reply if reply.fault is not None else replace(reply, fault=fault) for reply in replies]
        if len(self._problems) > before or not replies:
            return None
        calls = [each.calls for reply in replies for each in (reply, *reply.choices)]
        if any(calls):
            when.setdefault("endpoint", EndpointCondition(CONVERSING))
            if len(replies) == 1:
                when.setdefault("tool_result", ResultCondition(False))
        rule = ScriptRule(self._where(node, place), when, replies, nth)
        for problem in rule_problems(rule):
            self._report(node.line, place, problem)
        return rule if len(self._problems) == before else None

    def _when(self, node: YamlNode, place: str) -> tuple[dict[str, Condition], Span]:
        when: dict[str, Condition] = {}
        nth = ALL
        for name, entry in self._mapping(node, place, KEYS["when"]).items():
            there = f"{place}.{name}"
            read = self._guarded(entry.node, there, self._condition_reader(name))
            if isinstance(read, Span):
                nth = read
            elif read is not None:
                when[name] = read
        return when, nth

    def _condition_reader(self, name: str) -> Callable[[YamlNode, str], Condition | Span | None]:
        if name == "endpoint":
            return lambda node, _: EndpointCondition(_endpoints(node.value))
        if name == "tool_result":
            return self._tool_result
        if name in _COUNTED_FROM:
            return lambda node, place: CountCondition(name, self._span(node, place, _COUNTED_FROM[name]))
        if name == "nth":
            return self._span
        if name == "tool":
            return lambda node, place: ToolCondition(self._match(node, place, "glob"))
        if name in ("header", "metadata"):
            return lambda node, place: NamedTexts(name, tuple(self._named(node, place)))
        kind: Kind = "glob" if name == "model" else "contains"
        return lambda node, place: TextCondition(name, self._match(node, place, kind))

    def _match(self, node: YamlNode, place: str, kind: Kind) -> TextMatch:
        """kind: what a text alone means. Raises ValueError."""
        if node.entries is None:
            return TextMatch.of(kind, _text(node.value, " or one of contains, exact, regex"))
        found = self._mapping(node, place, KEYS["match"])
        if len(found) != 1:
            raise ValueError("must have one of contains, exact, regex")
        [(given, entry)] = found.items()
        value = entry.node.value
        texts = value if given == "contains" and isinstance(value, list) and value else [value]
        return TextMatch.of(given, *map(_text, texts))  # type: ignore[arg-type]

    def _named(self, node: YamlNode, place: str) -> Iterator[tuple[str, TextMatch]]:
        if not node.entries:
            raise ValueError("must be a mapping of names to texts")
        for entry in node.entries:
            match = self._guarded(entry.node, f"{place}.{entry.key}", lambda node, there: self._match(node, there, "glob"))
            if match is not None:
                yield entry.key, match

    def _tool_result(self, node: YamlNode, place: str) -> ResultCondition:
        if isinstance(node.value, bool):
            return ResultCondition(node.value)
        if node.entries is None:
            return ResultCondition(True, TextMatch.of("glob", _text(node.value, ", true, false or {name, content}")))
        found = self._mapping(node, place, KEYS["tool_result"])
        if not found:
            raise ValueError("must have name, content, or both")
        name = self._match(found["name"].node, f"{place}.name", "glob") if "name" in found else None
        content = self._match(found["content"].node, f"{place}.content", "contains") if "content" in found else None
        return ResultCondition(True, name, content)

    def _span(self, node: YamlNode, place: str, least: int = 1) -> Span:
        if node.entries is None:
            number = _whole(node.value, least)
            return Span(number, number)
        found = self._mapping(node, place, KEYS["span"])
        ends = {name: _whole(entry.node.value, least) for name, entry in found.items()}
        span = Span(ends.get("from", least), ends.get("to"))
        if span.last is not None and span.last < span.first:
            raise ValueError(f"can never match: from {span.first} to {span.last}")
        return span

    # --- replies ----------------------------------------------------------------------------------------------------

    def _replies(self, node: YamlNode, place: str) -> list[ScriptedReply]:
        if node.items is None:
            return [self._reply(node, place)]
        return self._list(node, place, self._reply)

    def _reply(self, node: YamlNode, place: str, of_choice: bool = False) -> ScriptedReply:
        if node.entries is None:
            text = self._guarded(node, place, lambda node, _: Template.of(_text(node.value, ", or a mapping")))
            return ScriptedReply(text)
        known = [name for name in KEYS["reply"] if not of_choice or name not in _OF_WHOLE_REPLIES]
        found = self._mapping(node, place, known)
        values = {}
        for name, entry in found.items():
            there = f"{place}.{name}"
            if name in _REPLY_LISTS:
                value: Any = tuple(self._list(entry.node, there, getattr(self, _REPLY_LISTS[name])))
            elif name == "json":
                value = templated(entry.node.value)
            elif name == "fault":
                value = self._fault(entry.node, there)
            elif name == "usage":
                value = self._usage(entry.node, there)
            else:
                value = self._given(found, name, _REPLY_VALUES[name], place)
            values[_FIELDS.get(name, name)] = value
        self._check_together(node, place, list(found))
        return ScriptedReply(**{name: value for name, value in values.items() if value is not None or name == "json"})

    def _check_together(self, node: YamlNode, place: str, found: Sequence[str]) -> None:
        if not node.entries:
            self._report(node.line, place, f"is empty; known: {', '.join(KEYS['reply'])}")
        for group in _EXCLUSIVE:
            if len(both := [name for name in found if name in group]) > 1:
                self._report(node.line, place, f"{' and '.join(both)} exclude each other")
                break

    def _call(self, node: YamlNode, place: str) -> ScriptedCall:
        found = self._mapping(node, place, KEYS["tool_call"])
        if "name" not in found:
            self._report(node.line, place, "name is missing")
            return ScriptedCall("", {})
        name = self._given(found, "name", _word, place) or ""
        arguments: Any = {}
        if "arguments" in found:
            at = found["arguments"].node
            if at.entries is None and not isinstance(at.value, str):
                self._report(at.line, f"{place}.arguments", f"must be a mapping or a text, not {at.value!r}")
            arguments = Template.of(at.value) if isinstance(at.value, str) else templated(at.value)
        call = ScriptedCall(name, arguments)
        if self._tools and name and (problem := argument_problem(call, self._tools)):
            self._report(node.line, place, problem)
        return call

    def _choice(self, node: YamlNode, place: str) -> ScriptedReply:
        return self._reply(node, place, of_choice=True)

    def _usage(self, node: YamlNode, place: str) -> Mapping[str, int]:
        found = self._mapping(node, place, KEYS["usage"])
        read = {name: self._given(found, name, lambda value: _whole(value, 0), place) for name in found}
        return {name: value for name, value in read.items() if value is not None}

    def _fault(self, node: YamlNode, place: str) -> Any:
        return self._read_fault(node, place, self._report, self._path)

    # --- mappings, lists and problems ---------------------------------------------------------------------------------

    def _mapping(self, node: YamlNode, place: str, known: Sequence[str]) -> dict[str, Entry]:
        if node.entries is None:
            self._report(node.line, place, f"must be a mapping with {', '.join(known)}; not {node.value!r}")
            return {}
        return self._known(node.entries, f"{place}.", known)

    def _known(self, entries: Iterable[Entry], place: str, known: Sequence[str]) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for entry in entries:
            if entry.key not in known:
                hint = did_you_mean(entry.key, known) or f"; known: {', '.join(known)}"
                self._report(entry.line, f"{place}{entry.key}", f"unknown key{hint}")
            else:
                found[entry.key] = entry
        return found

    def _list(
        self, node: YamlNode, place: str, read: Callable[[YamlNode, str], Any], may_be_empty: bool = False
    ) -> list[Any]:
        if node.items is None or not (node.items or may_be_empty):
            empty = "must not be empty" if node.items is not None else f"must be a list, not {node.value!r}"
            self._report(node.line, place, empty)
            return []
        return [read(item, f"{place}[{index}]") for index, item in enumerate(node.items)]

    def _given(self, found: Mapping[str, Entry], name: str, read: Callable[[Any], Any], place: str = "") -> Any:
        """Return the value of a key, None without one and for a wrong one. place: of the mapping."""
        if name not in found:
            return None
        return self._guarded(found[name].node, f"{place}.{name}" if place else name, lambda node, _: read(node.value))

    def _guarded(self, node: YamlNode, place: str, read: Callable[[YamlNode, str], Any]) -> Any:
        try:
            return read(node, place)
        except ValueError as error:
            self._report(node.line, place, str(error))
            return None

    def _report(self, line: int, place: str, problem: str) -> None:
        at = f"{self._path}:{line}" if line else self._path
        self._problems.append((line, f"{at}: {place}: {problem}"))


_COUNTED_FROM = {"turn": 1, "assistant_messages": 0}
_OF_WHOLE_REPLIES = ("choices", "usage", "delay_s", "fault")
_REPLY_LISTS = {"tool_calls": "_call", "choices": "_choice"}
_FIELDS = {"tool_calls": "calls"}
_EXCLUSIVE = (
    ("text", "json", "tokens", "refusal", "choices"),
    ("tool_calls", "json", "tokens", "refusal", "choices"),
    ("reasoning", "choices"),
    ("finish_reason", "choices"),
)


def _coordinates(value: Any) -> tuple[float, ...]:
    numbers = value if isinstance(value, list) else []
    if not numbers or len(numbers) > _MOST_COORDINATES:
        raise ValueError(f"must be a list of 1 to {_MOST_COORDINATES:,} numbers")
    if odd := [one for one in numbers if isinstance(one, bool) or not isinstance(one, int | float) or not isfinite(one)]:
        raise ValueError(f"must be a list of numbers; {odd[0]!r} is none")
    return tuple(map(float, numbers))


def _text(value: Any, alternatives: str = "") -> str:
    if not isinstance(value, str):
        quoted = "; put it in quotes" if isinstance(value, bool | int | float) else ""
        raise ValueError(f"must be a text{alternatives}; not {value!r}{quoted}")
    return value


def _word(value: Any) -> str:
    if not _text(value):
        raise ValueError("must not be empty")
    return str(value)


def _whole(value: Any, least: int, most: int | None = None) -> int:
    number: int = convert_to((int,), value)
    if number < least or (most is not None and number > most):
        raise ValueError(f"must be at least {least}{f' and at most {most:,}' if most else ''}, not {number}")
    return number


def _seconds(value: Any) -> float:
    seconds: float = convert_to((float,), value)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"must be a number of seconds from 0 on, not {seconds:g}")
    return seconds


def _one_of(value: Any, choices: Sequence[str]) -> str:
    if value not in choices:
        raise ValueError(f"must be one of {', '.join(choices)}; not {value!r}{did_you_mean(value, choices)}")
    return str(value)


def _endpoints(value: Any) -> frozenset[str]:
    names = value if isinstance(value, list) and value else [value]
    return frozenset(_one_of(name, list(ENDPOINTS.values())) for name in names)


def _template(value: Any) -> Template:
    return Template.of(_text(value))


_REPLY_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "text": _template,
    "reasoning": _template,
    "refusal": _template,
    "tokens": lambda value: _whole(value, 1, MOST_TOKENS),
    "finish_reason": lambda value: _one_of(value, FINISH_REASONS),
    "delay_s": _seconds,
}
